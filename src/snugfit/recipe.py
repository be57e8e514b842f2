"""The recipe: how a training step is held in memory. Every knob, frozen, checked, to and from YAML.

The fields are those that the techniques declare; their docstrings are the help texts of the command line. A recipe never
says what is learned (that is the `Workload`), so two recipes can always be compared on one workload. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import snugfit.techniques as techniques
from snugfit.errors import InputError, RecipeError
from snugfit.fields import SettingsBase, type_problems, whatever_was_meant
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import said
from snugfit.techniques.spellings import SWITCH_WORDS, meant, suggestion

_NAMES = {field: keywords for row in TECHNIQUES for field, keywords in row.names.items()}
"""Fields that take names of modules or patterns -> their words that are no names."""
_FREE = {row.fields[0]: row.free_word for row in TECHNIQUES if row.free_word}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(
    # A dataclass takes the fields of its last base first: from the bottom up this is the order of the fields.
    techniques.tensor_parallel.Fields,
    techniques.shard.Fields,
    techniques.quantize.Fields,
    techniques.adapter.Fields,
    techniques.compile.Fields,
    techniques.loss_impl.Fields,
    techniques.attention.Fields,
    techniques.loading.Fields,
    techniques.inplace.Fields,
    techniques.init.Fields,
    techniques.stochastic_rounding.Fields,
    techniques.step_in_backward.Fields,
    techniques.offload_optimizer.Fields,
    techniques.optimizer_impl.Fields,
    techniques.optimizer.Fields,
    techniques.offload_activations.Fields,
    techniques.checkpoint.Fields,
    techniques.accumulate_dtype.Fields,
    techniques.microbatch.Fields,
    techniques.mixed_precision.Fields,
    SettingsBase,
):
    """How a training step is held in memory; the default is plain PyTorch.

    Raises:
        RecipeError: Listing every field that is wrong and every pair that contradicts itself.
    """

    SUBJECT = "recipe"

    def __new__(cls, *_: Any, **given: Any) -> Recipe:
        """Raises for names that are no field, as for all other mistakes; the fields are set by `__init__`."""
        if any(name not in cls.__dataclass_fields__ for name in given):
            cls.from_mapping(given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, keywords in _NAMES.items():
            object.__setattr__(self, name, _names(getattr(self, name), keywords))
        wrong = type_problems(self)
        found = [*wrong.values(), *whatever_was_meant(self, wrong, _problems)]
        if found:
            raise RecipeError(found)

    @classmethod
    def from_yaml(cls, path: str | Path, **changes: Any) -> Recipe:
        """Reads a recipe from a YAML file, or from what `snugfit plan --json` printed.

        Args:
            path: The file.
            **changes: Field name -> value that goes before the file's.

        Returns:
            The recipe.

        Raises:
            InputError: The file is missing, unreadable or no mapping.
            RecipeError: Listing every mistake in its fields.
        """
        from snugfit.yaml_files import read_yaml

        given = read_yaml(path, "recipe file", example="checkpoint: all")
        if isinstance(of_plan := given.get("recipe"), dict):
            given = of_plan
        fields = {str(name).replace("-", "_"): value for name, value in given.items()}
        return cls.from_mapping({**fields, **changes}, subject=f"recipe {str(path)!r}")

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Returns the recipe as YAML, and writes it where a path is given.

        Args:
            path: File to write, or None.

        Returns:
            The YAML text, all fields in the order of the class.

        Raises:
            InputError: The file cannot be written.
        """
        import yaml

        text: str = yaml.safe_dump(self.to_mapping(), sort_keys=False)
        if path is not None:
            try:
                Path(path).write_text(text, encoding="utf-8")
            except OSError as error:
                raise InputError(f"recipe file {str(path)!r} cannot be written: {error.strerror}.") from error
        return text


def _names(value: Any, keywords: tuple[str, ...]) -> Any:
    """Names with commas between them become a tuple; keywords, `every:N` and anything odd are left to the checks."""
    if not isinstance(value, str):
        return value
    value = value.strip()
    if not value or value in keywords or (":" in value and any(":" in word for word in keywords)):
        return value
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _problems(recipe: Recipe) -> Iterator[str]:
    """A sentence for each value or pair of fields that is wrong for every workload: what was given, what to do."""
    for name in _NAMES:
        value = getattr(recipe, name)
        if not value or (isinstance(value, tuple) and not all(isinstance(part, str) and part for part in value)):
            yield f"{name} is {value!r}; give a word such as none or all, or names of modules separated by commas."
        elif isinstance(value, tuple) and len(value) == 1 and value[0].lower() in SWITCH_WORDS:
            yield f"{name} is {value[0]!r}, which is no name of a module; {suggestion(name, value[0], ())}"
    for name, what in _FREE.items():
        value = getattr(recipe, name)
        known = meant(name, value, ())
        if known and value not in known:
            yield f"{name} is {value!r}, which is no {what}; {suggestion(name, value, ())}"
    for row in TECHNIQUES:
        yield from said(row.rules, recipe)
