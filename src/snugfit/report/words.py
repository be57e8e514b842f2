"""What several cards and figures say in the same words: recipes and operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from snugfit.fields import as_typed
from snugfit.recipe import Recipe

_NAMES_SHOWN = 3


def recipe_in_words(recipe: Recipe | None) -> str:
    """Returns `field=value` for every field that is not plain, long lists of names shortened."""
    if recipe is None:
        return "none: your own step, as it is"
    changed = recipe.to_mapping(defaults=False)
    return ", ".join(f"{name}={_short(value)}" for name, value in changed.items()) or "plain"


def answers_in_words(answered: Iterable[str]) -> str:
    """Returns what a simulation was told in place of values; the same of several lines of code is said once."""
    places: dict[tuple[str, str], list[str]] = {}
    for text in answered:
        found = _AT.match(text)
        before, place, behind = found.groups() if found else (text, "", "")
        places.setdefault((before, behind), []).append("/".join(Path(place).parts[-2:]))
    return "; ".join(
        before + (f" at {', '.join(dict.fromkeys(found))}" if found[0] else "") + behind
        for (before, behind), found in places.items()
    )


_AT = re.compile(r"(assumed .*) at (\S+\.py:\d+)(.*)", re.DOTALL)


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
