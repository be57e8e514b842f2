"""Is the loss of a batch the weighted sum of the losses of its pieces? Found out by trying it on a few samples.

Microbatches give the update of the whole batch only where it is. It is not for contrastive losses and in-batch negatives,
for statistics of the batch taken by hand, for a loss that divides by a quantity of the batch, for a sum that is weighted as
a mean; and random numbers drawn in the forward pass are others for a piece than for the whole. None of this shows in the
model's structure, so the model's own code runs: a few samples at once, the same samples in two pieces, and the first piece
once more; and so with a few samples of the batch's end. A second pass with the same random numbers, which sees what the
first has left behind, must give the same to the bit, and leave all buffers where the first has left them. Losses are
compared, and gradients at some thousand places of all parameters.

Where a second run of the same piece differs, random numbers were drawn. Layers known to draw masks or to take statistics
are then put into evaluation mode, and after them the whole model, so that what couples samples is still seen beside them.

The check holds no more than one microbatch does, leaves no trace on model and random numbers (`untouched.py`), changes no
gradient, and runs once. It is a check of these samples: a loss that couples some samples and not others (by equal labels,
by length) shows only where the few have such a pair. `coupled_samples` declares what is known.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import InputError, message_of
from snugfit.techniques.batches import LossWeight, Split, batch_length, loss_weights
from snugfit.techniques.reachable import captured_modules
from snugfit.training import random_state
from snugfit.training.out_of_memory import is_out_of_memory, release_traceback
from snugfit.training.separation_verdict import Separation
from snugfit.training.untouched import untouched
from snugfit.workloads.tasks import shifted_labels
from snugfit.workloads.traits import draws_masks, uses_batch_statistics

MOST = 8
"""Samples that the check takes at most."""
PLACES = 4096
"""Elements of the gradients that are compared, over all parameters."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Relative difference that rounding may make, by the dtype of the loss and its gradients; 16 bits: `ROUGH`."""
ROUGH = 3e-2
_NOISE = 10
"""Differences of up to this many times those of two equal passes come from kernels without a fixed order."""
_MOVES = (
    "what the model or loss keeps from one forward pass to the next (running scales, counters) moves with every pass, and "
    "microbatches make more passes."
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """What one pass over some samples gave."""

    loss: float
    gradient: Tensor
    """At some places of all parameters: float64 [places], on the host."""
    tolerance: float


def separation(
    loss_of: Callable[[Any], Tensor],
    batch: Any,
    *,
    parts: Sequence[object],
    parameters: Sequence[nn.Parameter],
    split: Split,
    size: int,
    loss_weight: LossWeight,
    quiet: bool,
    scale: float = 1.0,
    rough: bool = False,
) -> Separation:
    """Tries whether the loss of a batch is the weighted sum of the losses of its pieces.

    `parts`: model and functions that run; what they hold is put back.
    `quiet`: whether layers that draw masks or take statistics of the batch are known, and to be left out of it.
    `scale`: factor of the loss before its backward pass, where gradients would be too small for their dtype.
    `rough`: whether the passes compute in fewer than fp32's bits.
    `batch`: samples; the first few are used.
    Returns what was found; never raises for what the caller's code does with a few samples.
    """
    stages = [_known_layers_quiet, _all_quiet] if quiet else [_as_it_is, _known_layers_quiet, _all_quiet]
    random = False
    parts = [*parts, batch]  # a model may write into it
    try:
        groups = _cut(batch, split, size)
        if not groups:
            return Separation(separates=None, sentence="the batch has too few samples to be cut.")
        for stage in stages:
            with untouched(parts):
                stage(captured_modules(*parts))

                def look(samples: Any) -> _Look:
                    return _look(loss_of, samples, parameters, scale, rough)

                piece = groups[0][1][0]
                if _moves(look, piece, parts):
                    return Separation(separates=False, sentence=_MOVES)
                first, again = _in_turn(look, [piece, piece], parts)
                if not _agree(first, again):
                    random = True
                    continue
                # What the first pass sets for all later ones (scales from its batch) is set by the batch, or by a piece.
                judged = [
                    _judged(few, pieces, _in_turn(look, [few], parts)[0], _in_turn(look, pieces, parts), loss_weight)
                    for few, pieces in groups
                ]
            return dataclasses.replace(functools.reduce(Separation.joined, judged), random=random)
        return Separation(separates=None, random=True, sentence="two runs of the same samples give different losses.")
    except Exception as error:
        release_traceback(error)
        text = message_of(error)
        failed = not is_out_of_memory(error)
        return Separation(separates=None, random=random, failed=failed, sentence=f"a few samples cannot run ({text}).")


def _in_turn(look: Callable[[Any], _Look], samples: Sequence[Any], parts: Sequence[object]) -> list[_Look]:
    """Makes several looks in turn, each from the same state."""
    with untouched(parts):
        return [look(one) for one in samples]


def _moves(look: Callable[[Any], _Look], samples: Any, parts: Sequence[object]) -> bool:
    """Whether passes leave something behind: with the same random numbers the next differs, or moves buffers."""
    with untouched(parts):
        drawn = random_state.capture()
        first = look(samples)
        before = {place: buffer.detach().clone() for place, buffer in _buffers(parts).items()}
        random_state.restore(drawn)
        off = _difference(first, look(samples))
        moved = any(not _equal(buffer, before[place]) for place, buffer in _buffers(parts).items() if place in before)
    if moved:  # by the second pass: the first one may only have made them
        return True
    if off == 0:
        return False
    with untouched(parts):
        return off > _NOISE * _difference(first, look(samples))


def _buffers(parts: Sequence[object]) -> dict[tuple[nn.Module, str], Tensor]:
    modules = captured_modules(*parts)
    return {(module, name): one for module in modules for name, one in module._buffers.items() if one is not None}


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.layout != torch.strided or (one.shape == other.shape and torch.equal(one, other))


def _difference(one: _Look, other: _Look) -> float:
    """How far two looks are apart, relative to the first; 0 where they are equal to the bit."""
    size = float(one.gradient.norm()) if one.gradient.numel() else 0.0
    off = float((one.gradient - other.gradient).norm()) if size else 0.0
    found = abs(one.loss - other.loss) / max(abs(one.loss), 1e-30) + off / max(size, 1e-30)
    return found if math.isfinite(found) else 0.0


def _as_it_is(modules: Iterable[nn.Module]) -> None:
    """The first stage: the model as it trains."""


def _known_layers_quiet(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if draws_masks(module) or uses_batch_statistics(module):
            module.training = False


def _all_quiet(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        module.eval()


def _cut(batch: Any, split: Split, size: int) -> list[tuple[Any, list[Any]]]:
    """A few samples from the batch's beginning and from its end, each group whole and in two pieces."""
    length = batch_length(batch) if _has_length(batch) else None  # None: one that only the caller's own split knows
    size = size if length is None else min(size, length)
    pair = 2 if size % 2 == 0 and size >= 4 else 1
    half = max(min(size // 2, MOST // 2) // pair * pair, 1)
    few = [batch] if length is not None and length <= 2 * half else split(batch, 2 * half)
    ends = [few[0], few[-1]] if len(few) > 1 else [few[0]]
    groups = [(end, list(split(end, half))) for end in ends]
    return [(end, pieces) for end, pieces in groups if len(pieces) > 1]


def _look(
    loss_of: Callable[[Any], Tensor], samples: Any, parameters: Sequence[nn.Parameter], scale: float, rough: bool
) -> _Look:
    loss = loss_of(samples)
    try:
        gradients = torch.autograd.grad(loss * scale, list(parameters), allow_unused=True)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        gradients = ()  # reentrant checkpointing of the model's own refuses this; the loss must do
    each = max(PLACES // max(len(parameters), 1), 4)
    found = [
        torch.zeros(min(each, weight.numel()), dtype=torch.float64) if gradient is None else places(gradient, each)
        for gradient, weight in zip(gradients, parameters, strict=bool(gradients))
    ]
    dtypes = {gradient.dtype for gradient in gradients if gradient is not None} | {loss.dtype}
    tolerance = ROUGH if rough else max(TOLERANCES.get(dtype, ROUGH) for dtype in dtypes)
    gradient = torch.cat(found) / scale if found else torch.zeros(0, dtype=torch.float64)
    return _Look(float(loss.detach()), gradient, tolerance)


def places(gradient: Tensor, count: int) -> Tensor:
    """Returns at most `count` elements of a gradient (sparse ones too), to compare it by: float64 on the host."""
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    flat = gradient.detach().reshape(-1)
    return flat[:: max(flat.numel() // count, 1)][:count].to("cpu", torch.float64)


def _judged(few: Any, pieces: list[Any], whole: _Look, looks: list[_Look], loss_weight: LossWeight) -> Separation:
    if not _finite(whole):
        return Separation(separates=None, sentence=f"the loss of a few samples is {whole.loss:g}.")
    if whole.gradient.numel() and not bool(whole.gradient.any()):
        return Separation(separates=None, sentence="the gradient of a few samples is zero.")
    sizes = " + ".join(str(batch_length(piece)) if _has_length(piece) else "some" for piece in pieces)
    combined = _combined(pieces, looks, loss_weight)
    if combined is not None and _agree(combined, whole):
        return Separation(separates=True)
    got = "none" if combined is None else f"{combined.loss:.4g}"
    sentence = (
        f"the loss of {batch_length(few) if _has_length(few) else 'a few'} samples is {whole.loss:.4g}, and that of the "
        f"same samples in pieces of {sizes} is {got}"
    )
    if combined is not None and _close(combined.loss, whole.loss, whole.tolerance) and whole.gradient.numel():
        off = float((combined.gradient - whole.gradient).norm() / whole.gradient.norm())
        sentence += f", but their gradients differ by {100 * off:.2g} %"
    weights: dict[str, LossWeight] = {repr(name): name for name in ("samples", "sum", "tokens") if name != loss_weight}
    if isinstance(pieces[0], Mapping) and "labels" in pieces[0]:
        weights["shifted_labels (from snugfit.workloads.tasks)"] = shifted_labels
    others = {name: _combined(pieces, looks, weight) for name, weight in weights.items()}
    fitting = tuple(name for name, other in others.items() if other is not None and _agree(other, whole))
    return Separation(separates=False, sentence=f"{sentence}.", fitting=fitting)


def _has_length(batch: Any) -> bool:
    try:
        return batch_length(batch) > 0
    except InputError:
        return False


def _combined(pieces: list[Any], looks: list[_Look], loss_weight: LossWeight) -> _Look | None:
    try:
        weights = [float(weight) for weight in loss_weights(pieces, loss_weight)]
    except (InputError, LookupError, TypeError):  # labels of another form
        return None
    parts = [(weight, look) for weight, look in zip(weights, looks, strict=True) if weight != 0]
    gradient = sum((weight * look.gradient for weight, look in parts), torch.zeros_like(looks[0].gradient))
    return _Look(sum(weight * look.loss for weight, look in parts), gradient, looks[0].tolerance)


def _finite(look: _Look) -> bool:
    return math.isfinite(look.loss) and bool(torch.isfinite(look.gradient).all())


def _agree(one: _Look, other: _Look) -> bool:
    if not (_finite(one) and _finite(other)):
        return not _finite(one) and not _finite(other)
    tolerance = max(one.tolerance, other.tolerance)
    if not _close(one.loss, other.loss, tolerance):
        return False
    size = max(float(one.gradient.norm()), float(other.gradient.norm())) if one.gradient.numel() else 0.0
    return size == 0 or float((one.gradient - other.gradient).norm()) <= tolerance * size


def _close(one: float, other: float, tolerance: float) -> bool:
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
