"""What an operator really does to memory on this machine: it is run, on tensors of the same layouts, and watched.

Zeros stand for all values. They are valid wherever an operator reads indices or lengths; where it refuses them (a division
of whole numbers), ones are tried. The offsets of grouped matrix products are numbers of rows, so there every group gets
the same share.

The first run makes what a library keeps (oneDNN's compiled kernels, tables); the second one counts. A few more are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from snugfit import private_torch
from snugfit.errors import in_words
from snugfit.operators.operator_call import Call
from snugfit.operators.operator_seconds import best_seconds
from snugfit.private_torch.allocators import watched
from snugfit.process_memory import keep_freed_memory
from snugfit.techniques.batches import tensors_in

_CPU = torch.device("cpu")


class Result(NamedTuple):
    """The layout of one new result."""

    shape: tuple[int, ...]
    """Its sizes."""
    stride: tuple[int, ...]
    """Its strides, in elements."""
    dtype: torch.dtype
    """Its type."""
    nbytes: int
    """Bytes of its storage; 0 where it shares that of an earlier result."""
    shares: int = -1
    """The number of the earlier result whose storage it shares; -1 where it has its own."""

    def same_as(self, other: Result) -> bool:
        """Whether two layouts take the same memory in the same order; strides of dimensions of size 1 do not matter."""
        if self._replace(stride=()) != other._replace(stride=()):
            return False
        return 0 in self.shape or all(
            size == 1 or one == two for size, one, two in zip(self.shape, self.stride, other.stride, strict=True)
        )


class Truth(NamedTuple):
    """What one run of an operator took."""

    peaks: tuple[int, ...]
    """Most bytes of blocks that are no results, while 0, 1, 2 ... of the results exist."""
    order: tuple[int, ...]
    """The results by the order in which their memory was taken."""
    results: tuple[Result, ...]
    """The new results: those that lie in no argument's storage."""
    seconds: float = 0.0
    """How long a run takes, called from Python."""


class CannotRun(Exception):
    """The operator refused to be run by itself, with zeros and with ones."""


def results_of(tensors: Sequence[torch.Tensor]) -> tuple[Result, ...]:
    """Returns the layouts of the new results of a call, real or fake."""
    first: dict[int, int] = {}
    found = []
    for number, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        owner = first.setdefault(storage._cdata, number)
        nbytes, shares = (storage.nbytes(), -1) if owner == number else (0, owner)
        found.append(Result(tuple(tensor.shape), tensor.stride(), tensor.dtype, nbytes, shares))
    return tuple(found)


def run(call: Call) -> Truth:
    """Runs a call twice, on zeros or else on ones, and reports and times the second run; CannotRun where neither goes."""
    with private_torch.nothing_above(call.gradients):
        try:
            return _run(call, 0)
        except Exception:
            try:
                return _run(call, 1)
            except Exception as error:
                raise CannotRun(in_words(error)) from error


def _run(call: Call, fill: int) -> Truth:
    args, kwargs = call.on(_CPU, fill)
    fill_in = _FITTING.get(call.operator._opname)
    if fill_in is not None:
        fill_in(args, kwargs)
    call.operator(*args, **kwargs)
    result, blocks = watched(lambda: call.operator(*args, **kwargs))
    given = {tensor.untyped_storage()._cdata for tensor in tensors_in((*args, *kwargs.values()))}
    truth = _truth(new_tensors(result, given), blocks)
    # A step does not wait for new pages in each run, as here where the heap shrinks behind every operator, or where this
    # process was started by one whose memory is read to the byte.
    keep_freed_memory()
    return truth._replace(seconds=best_seconds(lambda: call.operator(*args, **kwargs)))


def _share_rows(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Gives every group of a grouped product the same number of rows."""
    offsets = kwargs.get("offs", args[2] if len(args) > 2 and args[2] is not None else None)
    if offsets is None:
        return
    rows = args[0].shape[0] if args[0].dim() == 2 and args[1].dim() == 3 else args[0].shape[-1]
    groups = offsets.numel()
    offsets.copy_(torch.tensor([rows * (group + 1) // groups for group in range(groups)], dtype=offsets.dtype))


def _full_lengths(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Gives every sequence of a CTC loss all time steps, and its share of the labels."""
    first = 0 if args[0].dim() > 1 else 1  # behind the gradient of the losses in backward
    probabilities, labels, of_inputs, of_labels = args[first : first + 4]
    if not isinstance(of_labels, torch.Tensor):
        return
    count = of_labels.numel()
    if labels.dim() > 1:
        shares = [labels.shape[1]] * count
    else:
        shares = [labels.numel() * (one + 1) // count - labels.numel() * one // count for one in range(count)]
    of_inputs.fill_(probabilities.shape[0])
    of_labels.copy_(torch.tensor(shares, dtype=of_labels.dtype))


def _one_true(args: Sequence[Any], _: dict[str, Any]) -> None:
    """Lets a mask select something: where it selects nothing, the operator ends before it takes anything."""
    args[1].as_strided((1,), (1,), args[1].storage_offset()).fill_(True)


_FITTING = {
    "masked_select": _one_true,
    "_grouped_mm": _share_rows,
    "_scaled_grouped_mm": _share_rows,
    "_ctc_loss": _full_lengths,
    "_ctc_loss_backward": _full_lengths,
}
"""Operators that refuse some values of whole numbers -> what gives them values that fit."""


def _truth(results: Sequence[torch.Tensor], blocks: Sequence[tuple[int, int]]) -> Truth:
    layouts = results_of(results)
    owners = {
        tensor.untyped_storage().data_ptr(): number
        for number, (tensor, layout) in enumerate(zip(results, layouts, strict=True))
        if layout.shares < 0
    }
    made = _left_at_end(blocks)
    order = [number for i, (_, place) in enumerate(blocks) if i in made and (number := owners.get(place)) is not None]
    without_memory = [number for number in range(len(results)) if number not in order]
    peaks = [0] * (len(results) + 1)
    inner, exist = 0, len(without_memory)
    own: set[int] = set()
    for i, (nbytes, address) in enumerate(blocks):
        if i in made and address in owners:
            exist += 1
        elif nbytes > 0:
            inner += nbytes
            own.add(address)
        elif address in own:
            inner += nbytes
            own.discard(address)
        peaks[exist] = max(peaks[exist], inner)
    return Truth(tuple(peaks), (*without_memory, *order), layouts)


def _left_at_end(blocks: Sequence[tuple[int, int]]) -> set[int]:
    """Indices of the allocation events whose blocks were not freed again."""
    open_at: dict[int, int] = {}
    for i, (nbytes, address) in enumerate(blocks):
        if nbytes > 0:
            open_at[address] = i
        else:
            open_at.pop(address, None)
    return set(open_at.values())


def new_tensors(result: Any, known: set[int]) -> list[torch.Tensor]:
    """Returns the results whose storage is none of the arguments' (`known`: their `_cdata`)."""
    tensors = tensors_in(result if isinstance(result, list | tuple) else (result,))
    return [tensor for tensor in tensors if tensor.untyped_storage()._cdata not in known]
