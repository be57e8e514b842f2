"""The pieces of user code as models of the zoo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.zoo_models.subject import Subject
from benchmarks.zoo_user_code import CASES, Case


def _make(make: Callable[[], Case]) -> Subject:
    case = make()
    return Subject(
        family="user code",
        name=f"user:{make.__name__}",
        build=case.build,
        batch=lambda _: case.batch(),
        arguments={name: value for name, value in case.arguments().items() if name != "optimizer"},
        optimizer=case.optimizer,
        again=partial(_make, make),
        assume=case.assume,
    )


SUBJECTS: dict[str, Callable[[], Subject]] = {f"user:{make.__name__}": partial(_make, make) for make in CASES}
"""Name -> makes the model."""
