"""What a model does between its equal blocks is seen at full depth, before few of them stand for all.

A model may treat its twentieth block in another way than its third: keep its output, add a loss, pass it another mask. So
its forward pass runs once with all of its blocks, of which only the first computes; the others return empty tensors of the
same shapes. What happens from one block to the next, and what each is called with, must be the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from snugfit.private_torch import tree_leaves, tree_map
from snugfit.recorder.materialise import Materialiser
from snugfit.recording.trace import ALLOC, FREE, Trace
from snugfit.techniques.base import WrappedForward
from snugfit.training.model_call import Forward, output_of

if TYPE_CHECKING:
    from snugfit.simulator.equal_blocks import EqualBlocks

Called = tuple[int, tuple[Any, ...]]
"""The number of the event before which a block was called, and what it was called with."""


class BetweenBlocks:
    """One pass through all blocks of a model."""

    def __init__(self, blocks: EqualBlocks, batch: Any, forward: Forward | None, device: torch.device) -> None:
        """Takes the blocks, and how a batch reaches the model."""
        self._blocks, self._batch, self._forward, self._device = blocks, batch, forward, device
        self._called: list[Called] = []
        self._output: Any = None

    def run(self, model: torch.nn.Module, recorder: Any) -> None:
        """Runs the model forward, each block but the first without computing."""
        fake = Materialiser()
        fake.module(model, self._device)
        with self._stubs(recorder), torch.no_grad():
            output_of(model.train(), fake.tree(self._batch, self._device), self._forward)

    def alike(self, trace: Trace) -> bool:
        """Returns whether the same happened between each block and the next, from the third on."""
        few, count = self._blocks.few, self._blocks.count
        if len(self._called) != count:
            return False
        starts = [event for event, _ in self._called]
        between = [_between(trace, one, other) for one, other in zip(starts[few - 1 :], starts[few:], strict=False)]
        given = [words for _, words in self._called[few - 1 :]]
        if len(set(between)) != 1 or len(set(map(len, given))) != 1:
            return False
        return all(_alike(values) for values in zip(*given, strict=True))

    @contextmanager
    def _stubs(self, recorder: Any) -> Iterator[None]:
        def stub(forward: Any, *args: Any, **kwargs: Any) -> Any:
            self._called.append((recorder.events, _words(args, kwargs)))
            if self._output is None:
                output = forward(*args, **kwargs)
                self._output = tree_map(lambda part: part.to("meta") if _is_tensor(part) else part, output)
                return output
            return tree_map(
                lambda part: (
                    torch.empty(part.shape, dtype=part.dtype, device=self._device) if _is_tensor(part) else part
                ),
                self._output,
            )

        stubbed = self._blocks.modules
        for module in stubbed:
            module.forward = WrappedForward(module, stub)
        try:
            yield
        finally:
            for module in stubbed:
                vars(module).pop("forward", None)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _words(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """What a block was called with: shapes and dtypes of tensors, plain values as they are, classes of all else."""
    plain = (int, float, str, bool, type(None))
    shapes = [
        (tuple(part.shape), str(part.dtype)) if _is_tensor(part) else part if isinstance(part, plain) else type(part)
        for part in tree_leaves((args, kwargs))
    ]
    return tuple(shapes)


def _alike(values: tuple[Any, ...]) -> bool:
    """Whether blocks were given the same, or each a number that is one more than the one before got."""
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values):
        return True
    return all(type(value) is int and value == first + place for place, value in enumerate(values))


def _between(trace: Trace, begin: int, end: int) -> tuple[Any, ...]:
    """What a trace has from one event to another: sizes that were taken and given back, and operators that ran."""
    sizes = tuple(
        (kind, trace.storages[subject].nbytes)
        for kind, subject in zip(trace.kinds[begin:end], trace.subjects[begin:end], strict=True)
        if kind in (ALLOC, FREE)
    )
    ran = tuple(
        (run.operator, run.flops, run.read_bytes, run.written_bytes) for run in trace.runs if begin <= run.at < end
    )
    return sizes, ran
