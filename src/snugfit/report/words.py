"""What several cards and figures say in the same words: recipes and operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snugfit.fields import as_typed
from snugfit.recipe import Recipe

_NAMES_SHOWN = 3


def recipe_in_words(recipe: Recipe | None) -> str:
    """Returns `field=value` for every field that is not plain, long lists of names shortened."""
    if recipe is None:
        return "none: a hand-written step, as it is"
    changed = recipe.to_mapping(defaults=False)
    return ", ".join(f"{name}={_short(value)}" for name, value in changed.items()) or "plain"


def as_options(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as words of a command line; None and False need none."""
    words = []
    for name, value in settings.items():
        if value is not None and value is not False:  # 0 says something
            words += ["--" + name.replace("_", "-"), *([] if value is True else [as_typed(value)])]
    return words


def _short(value: Any) -> str:
    if isinstance(value, list):
        if len(value) > _NAMES_SHOWN:
            return f"{value[0]},... ({len(value)} blocks)"
        return ",".join(map(str, value))
    return str(value)


def short_operator(name: str) -> str:
    """Returns an operator's name without its library and its default overload (`aten.mm.default` -> `mm`)."""
    return name.removeprefix("aten.").removesuffix(".default")
