"""What the frozen settings classes share: help from field docstrings, text to values, all mistakes at once.

`Recipe` and `Workload` are plain dataclasses; everything about a field (type, choices, default, docstring) is read from
the class itself, so the command line, YAML files and error messages cannot drift apart. Imports no torch.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import linecache
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union

from snugfit.errors import RecipeError, did_you_mean, nearest
from snugfit.techniques.spellings import meant, suggestion

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
_ELSEWHERE = {
    "criterion": "loss",
    "gradient_clip_val": "clip_norm",
    "learning_rate": "lr",
    "max_grad_norm": "clip_norm",
}
"""Names that the field's trainers have -> ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldInfo:
    """One field of a settings class, as people meet it."""

    owner: type
    """The class whose field it is."""
    name: str
    default: Any
    choices: tuple[str, ...]
    """Allowed words; empty when the field is not a choice of words."""
    kinds: tuple[type, ...]
    """Allowed Python types, `str` included for a choice; without None."""
    optional: bool
    """Whether None is allowed."""

    @property
    def doc(self) -> str:
        """The docstring under the field, in the class or a base; read from the source when it is asked for."""
        return field_docs(self.owner).get(self.name, "")

    @property
    def option(self) -> str:
        """The option's name on the command line."""
        return "--" + self.name.replace("_", "-")


@functools.cache
def field_infos(cls: Any) -> dict[str, FieldInfo]:
    """Returns name -> description of the fields of a dataclass whose source is available, in order."""
    hints = typing.get_type_hints(cls)
    infos = {}
    for field in dataclasses.fields(cls):
        choices, kinds, optional = _allowed(hints[field.name])
        infos[field.name] = FieldInfo(cls, field.name, field.default, choices, kinds, optional)
    return infos


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Returns the docstring that stands under each field of a class, there or in a base, in one line each."""
    body = _classes(inspect.getsourcefile(cls) or "")[cls.__qualname__]
    docs = {name: doc for base in cls.__bases__ if base is not object for name, doc in field_docs(base).items()}
    for item, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[item.target.id] = " ".join(after.value.value.split())
    return docs


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    """The classes of a source file by name; `inspect.getsource` would read the file once for each of them."""
    body = ast.parse("".join(linecache.getlines(file))).body
    return {item.name: item for item in body if isinstance(item, ast.ClassDef)}


def _allowed(hint: Any) -> tuple[tuple[str, ...], tuple[type, ...], bool]:
    parts = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    choices: tuple[str, ...] = ()
    kinds: list[type] = []
    for part in parts:
        if typing.get_origin(part) is Literal:
            choices += typing.get_args(part)
            kinds.append(str)
        elif part is not types.NoneType:
            kinds.append(typing.get_origin(part) or part)
    return choices, tuple(dict.fromkeys(kinds)), types.NoneType in parts


_IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", tuple: "a list"}


def value_problem(info: FieldInfo, value: Any) -> str | None:
    """Returns one sentence on what is wrong with the type or word of a value, or None; ranges are not checked."""
    if value is None:
        return None if info.optional else f"{info.name} must not be empty (None)."
    if isinstance(value, bool) and bool not in info.kinds:
        pass
    elif isinstance(value, info.kinds) or (float in info.kinds and isinstance(value, int)):
        if info.choices and isinstance(value, str) and str in info.kinds and value not in info.choices:
            return f"{info.name} is {value!r}, which is unknown; {suggestion(info.name, value, info.choices)}"
        return None
    if info.choices and isinstance(value, bool | int | float):  # YAML reads 16 and true as no words
        return f"{info.name} is {value!r}, which is unknown; {suggestion(info.name, value, info.choices)}"
    allowed = " or ".join(_IN_WORDS.get(kind, kind.__name__) for kind in info.kinds)
    hint = " " + suggestion(info.name, value, ()).capitalize() if meant(info.name, value, ()) else ""
    return f"{info.name} is {value!r}; it takes {allowed}.{hint}"


def type_problems(settings: Any) -> dict[str, str]:
    """Returns field -> sentence for wrong types and words, and puts defaults in their place.

    With the defaults in place the class can go on to check ranges and contradictions, so that all mistakes come at
    once; an object with problems is never handed out.
    """
    problems = {}
    for name, info in field_infos(type(settings)).items():  # type: ignore[arg-type]
        problem = value_problem(info, getattr(settings, name))
        if problem:
            problems[name] = problem
            object.__setattr__(settings, name, info.default)
    return problems


def whatever_was_meant(settings: T, wrong: Iterable[str], check: Callable[[T], Iterable[str]]) -> list[str]:
    """Returns the problems that stay, whatever was meant by the wrong fields.

    A default stands in their place, and it may contradict another field where the value that was meant would not: then
    one mistake would be told as two.

    `wrong`: the fields that had bad values.
    """
    stay = list(check(settings))
    for name in wrong:
        info = field_infos(type(settings))[name]  # type: ignore[arg-type]
        for value in info.choices:
            if not stay:
                return stay
            object.__setattr__(settings, name, value)
            others = set(check(settings))
            stay = [problem for problem in stay if problem in others]
        object.__setattr__(settings, name, info.default)
    return stay


def check_keywords(function: Callable[..., Any], given: Iterable[str], *classes: type) -> None:
    """Raises for keywords that are no argument of a function and no field of its settings, with a hint among them all."""
    fields = [name for owner in classes for name in field_infos(owner)]
    known = [*inspect.signature(function).parameters, *fields]
    wrong = [
        f"{name!r} is no option; {nearest(_ELSEWHERE.get(name, name), known)}see snugfit.{function.__name__}."
        for name in given
        if name not in fields
    ]
    if wrong:
        raise RecipeError(wrong, subject=f"options of snugfit.{function.__name__}")


class SettingsBase:
    """What settings classes share: to and from plain data, and copies with changes."""

    __slots__ = ()
    SUBJECT: ClassVar[str]
    """What is being read, for the headline of an error."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], *, subject: str | None = None) -> Self:
        """Builds a settings object from plain data, with every unknown name and every bad value in one error.

        Args:
            given: Field name -> value; missing fields take their default, and dashes are taken as underscores.
            subject: What is being read, where it is not just `SUBJECT`.

        Returns:
            The object.

        Raises:
            RecipeError: Listing every mistake.
        """
        infos = field_infos(cls)  # type: ignore[arg-type]
        problems, known = [], {}
        for key, value in given.items():
            name = str(key).replace("-", "_")
            if name in infos:
                known[name] = tuple(value) if isinstance(value, list) else value
            else:
                problems.append(f"{key!r} is no field; {did_you_mean(_ELSEWHERE.get(name, name), infos)}")
        try:
            made = cls(**known)
        except RecipeError as error:
            problems.extend(error.problems)
        if problems:
            raise RecipeError(problems, subject=subject or cls.SUBJECT)
        return made

    def to_mapping(self, *, defaults: bool = True) -> dict[str, Any]:
        """Returns it as plain data for YAML and JSON.

        Args:
            defaults: Whether fields at their default are kept.

        Returns:
            Field name -> plain value; tuples become lists.
        """
        plain = {}
        for name, info in field_infos(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            if defaults or value != info.default:
                plain[name] = list(value) if isinstance(value, tuple) else value
        return plain

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, checked.

        Args:
            **changes: Field name -> new value.
        """
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return self.from_mapping({**{field.name: getattr(self, field.name) for field in fields}, **changes})


def from_text(info: FieldInfo, text: str) -> Any:
    """Returns what a text from a command line means for a field; unreadable text comes back for the class to judge."""
    if info.optional and text.lower() == "none" and "none" not in info.choices:
        return None
    if bool in info.kinds and text.lower() in ("true", "yes", "on", "false", "no", "off"):
        return text.lower() in ("true", "yes", "on")
    for kind in (int, float):
        if kind in info.kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if tuple in info.kinds and str not in info.kinds:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        try:
            return tuple(float(part) for part in parts)
        except ValueError:
            return tuple(parts)
    return text


def as_typed(value: Any) -> str:
    """Returns a value as people type it: several names with commas between them."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def as_data(value: Any, *, without: Iterable[str] = ()) -> Any:
    """Returns a result as plain data for JSON: objects by their fields (some left out), or their own `to_mapping`."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name not in without]
        return {name: _inner_data(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: _inner_data(one) for key, one in value.items()}
    return [_inner_data(one) for one in value] if isinstance(value, tuple | list) else value


def _inner_data(value: Any) -> Any:
    return value.to_mapping() if hasattr(value, "to_mapping") else as_data(value)
