"""Foreign code as snugfit is given it: its model, a batch for it, and what its own loop calls."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import torch

LINES = 10
"""Most lines that an adoption may have."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adopted:
    """A training step of somebody else's code."""

    model: Callable[[], torch.nn.Module]
    """Builds the foreign model, with random values."""
    batch: Callable[[], Any]
    """Makes one batch with values, on cpu."""
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    """Function of (output, batch); None: the model, or `forward`, returns its loss."""
    forward: Callable[[Any, Any], Any] | None = None
    """Function of (model, batch); None: as for `snugfit.prepare`."""
    loss_weight: Any = "samples"
    """As for `snugfit.prepare`."""
    optimizer: Any = "adamw"
    """adam, adamw or sgd; or a function from parameters to one; with `step`, from the model to what that gets."""
    lr: float = 1e-3
    """Learning rate of an optimizer by name."""
    step: Callable[[Any, Any, Any], Any] | None = None
    """Function of (model, optimizer, batch) for a loop that keeps its own backward and updates; returns its loss."""
    assume: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Assumptions that the simulation must be told."""

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments that `estimate`, `plan` and `prepare` share, beside model, batch and optimizer."""
        return {"loss": self.loss, "forward": self.forward, "loss_weight": self.loss_weight}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A row to be: a piece of foreign code and how it is adopted."""

    name: str
    """Its name, unique among the rows."""
    kind: str
    """What it is about."""
    repository: str
    """Where it is from, as `owner/name`."""
    adopt: Callable[[], Adopted]
    """Imports the foreign code."""

    @property
    def lines(self) -> int:
        """Lines of the adoption: comments, empty ones and `step`, which is the foreign loop itself, are not counted."""
        source = textwrap.dedent(inspect.getsource(self.adopt))
        function = ast.parse(source).body[0]
        assert isinstance(function, ast.FunctionDef)
        lines = source.splitlines()
        own = set(range(function.lineno + 1, len(lines) + 1))
        for node in function.body:
            if isinstance(node, ast.FunctionDef) and node.name == "step":
                own -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return sum(bool(lines[i - 1].strip()) and not lines[i - 1].strip().startswith("#") for i in own)


CASES: dict[str, Case] = {}
"""Name -> row to be, in the order in which they are written down."""


def adopts(repository: str, *, kind: str) -> Callable[[Callable[[], Adopted]], Callable[[], Adopted]]:
    """Enters a function into the table under its own name.

    Args:
        repository: Where the foreign code is from, as `owner/name`.
        kind: What it is about.
    """

    def enter(adopt: Callable[[], Adopted]) -> Callable[[], Adopted]:
        name = adopt.__name__
        assert name not in CASES, f"two cases are called {name}"
        CASES[name] = Case(name=name, kind=kind, repository=repository, adopt=adopt)
        return adopt

    return enter
