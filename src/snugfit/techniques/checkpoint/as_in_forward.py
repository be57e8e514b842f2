"""What a block computes with in forward, kept for the pass that computes it again.

Backward may come when the block has other weights: `torch.func.functional_call` lends it some for one call (MAML's fast
weights), an optimizer steps in between, `eval()` is called. Weights that were lent and modes are put back for the
recomputation; weights that were changed in place are gone, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from snugfit.errors import InputError, about


class AsInForward:
    """A block's forward method that runs a second time with the tensors and modes of the first."""

    def __init__(self, name: str, modules: list[nn.Module], norms: list[Any], forward: Callable[..., Any]) -> None:
        """Records the block's tensors and modes, in every pass; so names are looked up only when a message needs them.

        `norms`: modules in it whose buffers are kept here; all others are state of the block (`forward_state.py`).
        """
        self._name, self._block = name, modules[0]
        self._forward = forward
        self._first = True
        self._modes = [(module, module.training) for module in modules]
        tables: list[dict[str, Any]] = [module._parameters for module in modules if module._parameters]
        self._weights = [
            (weight, weight.requires_grad, weight._version)
            for table in tables
            for weight in table.values()
            if weight is not None
        ]
        self._tables = [(table, dict(table)) for table in (*tables, *(norm._buffers for norm in norms))]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the block: the first time as it is now, the second time as it was then."""
        if self._first:
            self._first = False
            return self._forward(*args, **kwargs)
        with self._as_it_was():
            return self._forward(*args, **kwargs)

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        lent = [(table, _others(table, was)) for table, was in self._tables]
        present = [(table, {name: table[name] for name in others}) for table, others in lent]
        modes = [(module, module.training, was) for module, was in self._modes if module.training != was]
        trained = [(weight, was) for weight, was, _ in self._weights if weight.requires_grad != was]
        self._check_versions()
        try:
            for table, others in lent:
                table.update(others)
            for module, _, was_training in modes:
                module.training = was_training
            for weight, was in trained:
                weight.requires_grad_(was)
            yield
        finally:
            for table, others in present:
                table.update(others)
            for module, training, _ in modes:
                module.training = training
            for weight, was in trained:
                weight.requires_grad_(not was)

    def _check_versions(self) -> None:
        for weight, _, version in self._weights:
            if weight._version != version:
                name = next((name for name, one in self._block.named_parameters() if one is weight), "a weight")
                with about("checkpoint"):
                    raise InputError(
                        f"{name!r} of the checkpointed block {self._name!r} was changed between its forward pass and its "
                        "backward pass (by an optimizer's step, perhaps), and checkpointing computes the block again in "
                        "backward, from weights that are gone. Call backward() first, or leave that block out of checkpoint."
                    )


def _others(table: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Entries of `wanted` that a table has others for; an entry that is None now was switched off on purpose."""
    return {name: one for name, one in wanted.items() if table.get(name) is not None and table[name] is not one}
