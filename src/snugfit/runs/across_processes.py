"""A run in several processes: joined where they are there, started where they are not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from snugfit.runs.joining import joined
from snugfit.runs.launching import launched
from snugfit.runs.standing import agreed_options, place_here

P = ParamSpec("P")
T = TypeVar("T")


def across_processes(train: Callable[P, T]) -> Callable[P, T]:
    """Wraps a function like `snugfit.train`: it joins processes that are there already, or starts them."""

    @functools.wraps(train)
    def trained(*given: P.args, **named: P.kwargs) -> T:
        place = place_here()
        if place is None:
            return launched(train, *given, **named)  # type: ignore[arg-type, return-value]
        waits = {name: named[name] for name in ("rdzv", "rdzv_timeout", "device") if named.get(name) is not None}
        with joined(place, **waits):  # type: ignore[arg-type]
            return train(*given, **{**named, **agreed_options(place, named)})  # type: ignore[arg-type]

    return trained
