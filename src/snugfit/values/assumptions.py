"""What a simulation may take for granted where code asks for values, which simulated tensors do not have.

One rule decides, whoever asks (the user's code, a library, snugfit's own step), in this order:

1. a value that follows from the code alone (a causal mask made of `torch.full` and `triu`, an `arange`) is worked out;
2. `loss_finite`, on unless it is switched off: everything computed is finite, so isnan and isinf are False, isfinite is
   True, and a floating-point number that is read (`loss.item()`) counts as 1.0. Checks that torch makes for libraries
   (`torch._check`) hold;
3. the other assumptions, where they were given;
4. otherwise the simulation ends with exit code 5 and names the assumption that would help.

Every assumption that was used is named in the estimate's `answered`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from snugfit.errors import InputError, RecipeError, did_you_mean
from snugfit.fields import FieldInfo, field_infos, from_text, type_problems


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """Answers to questions about values."""

    loss_finite: bool = True
    """Losses, gradients and activations are finite; a floating-point number that is read counts as 1.0."""

    nonzero: float | None = None
    """Share of a mask that is true, or of numbers that are not zero (0 to 1): x[mask], nonzero, masked_select, where."""

    unique: float | None = None
    """Share of numbers that differ from all others (0 to 1): unique, unique_consecutive."""

    integer: int | None = None
    """A whole number read out of a tensor: a length, a count."""

    branch: bool | None = None
    """A condition on values (`if (x > 0).any():`)."""

    def __post_init__(self) -> None:
        """Checks ranges; a `RecipeError` lists every mistake."""
        problems = list(type_problems(self).values())
        for name in ("nonzero", "unique"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                problems.append(f"{name} is {share}; it is a share, from 0 to 1.")
        if self.integer is not None and self.integer < 0:
            problems.append(f"integer is {self.integer}; it must be at least 0.")
        if problems:
            raise RecipeError(problems, subject="assume")

    def completed(self, given: Mapping[str, Any]) -> Assumptions:
        """Returns these, with the values `given` by a batch for what nobody set."""
        answers = {field.name: getattr(self, field.name) for field in dataclasses.fields(Assumptions)}
        return _Completed(
            **answers | {name: one for name, one in given.items() if answers[name] is None}, given=self.said
        )

    @property
    def said(self) -> Assumptions:
        """What a person has said, without what it was completed with."""
        return self


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Completed(Assumptions):
    given: Assumptions

    @property
    def said(self) -> Assumptions:
        return self.given


AssumeArgument = Assumptions | Mapping[str, Any] | Iterable[str] | str | None


def assumptions_from(given: AssumeArgument) -> Assumptions:
    """Returns assumptions from a mapping (`{"nonzero": 0.25}`) or words (`loss_finite`, `nonzero=0.25`); None: defaults."""
    if isinstance(given, Assumptions):
        return given
    infos = field_infos(Assumptions)
    if isinstance(given, Mapping):
        settings = dict(given)
    else:
        settings = dict(_read(str(word), infos) for word in ([given] if isinstance(given, str) else given or ()))
    unknown = [str(name) for name in settings if name not in infos]
    if unknown:
        raise InputError(f"assume: {unknown[0]!r} is unknown; {did_you_mean(unknown[0], infos)}")
    return Assumptions(**settings)


def _read(word: str, infos: Mapping[str, FieldInfo]) -> tuple[str, Any]:
    """Returns name and value of a word such as `loss_finite` or `nonzero=0.25`."""
    name, equals, text = word.partition("=")
    name, text = name.strip().replace("-", "_"), text.strip()
    if name not in infos:
        return name, text
    if bool in infos[name].kinds:
        return name, _truth(name, text) if equals else True
    if not equals:
        raise InputError(f"assume: {name} needs a value, such as {name}={'0.5' if float in infos[name].kinds else 8}.")
    return name, from_text(infos[name], text)


def _truth(name: str, text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise InputError(f"assume: {name} is {text!r}; give {name}=true or {name}=false.")
    return words[text.lower()]
