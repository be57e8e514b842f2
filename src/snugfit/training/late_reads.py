"""Is a weight read again after it was updated in the middle of backward? Tried on a few samples before the first update.

`step_in_backward` updates a weight when its gradient is complete. What reads it later in the same backward pass finds
another one: a product with `weight.detach()` or `weight.data` elsewhere, a block that is computed again and uses the weight
without a gradient, somebody's own function that looks it up. Torch notices the first of these, by a version counter and in
words that say nothing of the reason, and none of the others. A gradient that comes in pieces, as that of a weight which
reentrantly checkpointed blocks share, would be used before it is whole.

So a few samples go through twice: as they are, and with each weight negated at the moment of its update. Gradients must be
the same. Negation is undone to the bit and takes no memory, no gradient outlives its weight's turn, and model and random
numbers are put back (`untouched.py`). Where two plain passes differ already, nothing can be said. A simulation has no
numbers: there the operators of the backward pass are watched for weights that they read late.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from snugfit.errors import InputError
from snugfit.private_torch import DirectMode, without_modes
from snugfit.private_torch.dispatcher import places_written
from snugfit.private_torch.fake_tensors import FakeTensor
from snugfit.recipe import Recipe
from snugfit.techniques.batches import batch_length, tensors_of
from snugfit.training.claimed import leaves
from snugfit.training.out_of_memory import is_out_of_memory, release_traceback
from snugfit.training.passes import Passes
from snugfit.training.separation import ROUGH, TOLERANCES, places
from snugfit.training.untouched import untouched

SAMPLES = 4
"""Samples that are tried; batch norm needs more than one."""
PLACES = 64
"""Elements of each gradient that are compared."""
_NOISE = 1e-2
"""Part of the tolerance that counts from the norm of all gradients, for those that are nothing but rounding."""

Looks = dict[str, Tensor]
"""Name of a weight -> some elements of its gradient."""


class _InPieces(Exception):
    """Raised when a gradient was complete twice in one backward pass."""


class LateReads:
    """The check of one run, until it is done."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.pending = True
        """Whether the check is still to be made."""

    def check(self, batch: Any, recipe: Recipe, weights: Mapping[str, nn.Parameter]) -> None:
        """Checks before the first update in backward; `InputError` for a late read, or a gradient that comes in pieces."""
        passes = self._passes
        if not (self.pending and recipe.step_in_backward) or passes.ranks is not None:
            return
        if _simulated(weights):
            return  # no numbers: operators are watched instead, in the step itself
        self.pending = False
        few = batch
        with suppress(InputError):  # nobody can cut it
            if recipe.compile == "none" and batch_length(batch) > SAMPLES:  # each size would be compiled anew
                few = passes.split(batch, SAMPLES)[0]
        trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        with passes.around_step():
            found = late_read(lambda: passes.loss_of(passes.arrived(few)), (*passes.parts, batch), trained)
        if found is not None:
            raise refusal(found)

    @contextmanager
    def watched(self, recipe: Recipe, weights: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Context of a backward pass with its updates; a simulation's first is watched operator by operator."""
        if not recipe.step_in_backward:
            yield
            return
        trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        try:
            with _Reads(trained) if self.pending and _simulated(trained) else nullcontext():
                yield
        except RuntimeError as error:  # in a step that the few samples were not like
            if "modified by an inplace operation" in str(error) or "has been modified inplace" in str(error):
                raise refusal() from error
            raise
        self.pending = False


class _Reads(DirectMode):
    """A dispatch mode that refuses an operator which reads a weight after its update."""

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = weights
        self._updated: dict[int, str] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Any:
        for name, weight in self._weights.items():  # behind the hooks that update
            note = functools.partial(self._note, name)
            self._hooks.append(weight.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _note(self, name: str, weight: Tensor) -> None:
        self._updated[weight.untyped_storage()._cdata] = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._updated and not func.is_view and func.namespace != "prim":  # neither of them reads a number
            written = {position for position, _ in places_written(func)}  # what left for the host comes back so
            read = [one for position, one in enumerate(args) if position not in written]
            for tensor in tensors_of((read, kwargs)):
                bits = not (tensor.is_floating_point() or tensor.is_complex())  # a sum of bits makes no gradient
                if not bits and tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self._updated:
                    raise refusal(self._updated[tensor.untyped_storage()._cdata])
        return func(*args, **kwargs)


def _simulated(weights: Mapping[str, nn.Parameter]) -> bool:
    return any(isinstance(weight, FakeTensor) for weight in weights.values())


def refusal(name: str = "a weight") -> InputError:
    """Returns the error for a model that an update in the middle of backward would train wrongly."""
    return InputError(
        f"step_in_backward updates each weight as soon as its gradient is complete, and {name} is read once more in the "
        "same backward pass: by weight.detach() or .data beside the weight itself, by a checkpointed block that uses it "
        "without a gradient or shares it, or by a function of your own. It would find the updated weight, and gradients "
        "would be wrong. Leave step_in_backward out; snugfit.plan(..., forbid=['step_in_backward']) plans without it."
    )


def late_read(
    loss_of: Callable[[], Tensor], parts: tuple[object, ...], weights: Mapping[str, nn.Parameter]
) -> str | None:
    """Returns the name of a weight that is read after its gradient is complete; None where none is found.

    `parts`: model and functions that run; the state of all modules in them is put back.
    """
    look = functools.partial(_look, loss_of, parts, weights)
    try:
        plain = look(())
    except _InPieces as error:
        return str(error)
    except Exception as error:  # a few samples cannot run, for whatever reason: the step itself will say it
        release_traceback(error)
        return None

    def differs(names: Collection[str]) -> bool:
        try:
            return not _same(plain, look(names), weights)
        except RuntimeError as error:  # torch's version counter
            found = not is_out_of_memory(error)
            release_traceback(error)
            return found

    # All weights at once. Where that changes a gradient, and a second plain pass does not, one is found by halves.
    suspects = list(plain)
    if not differs(suspects) or differs(()):
        return None
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        suspects = half if differs(half) else suspects[len(half) :]
    return suspects[0]


def _look(
    loss_of: Callable[[], Tensor],
    parts: tuple[object, ...],
    weights: Mapping[str, nn.Parameter],
    negated: Collection[str],
) -> Looks:
    """One pass, in which some weights are negated when their gradient is complete."""
    found: Looks = {}
    turned: list[nn.Parameter] = []

    def complete(name: str, weight: Tensor) -> None:
        gradient, weight.grad = weight.grad, None
        if name in found:
            raise _InPieces(name)
        assert gradient is not None
        found[name] = places(gradient, PLACES)
        if name in negated:
            with torch.no_grad(), without_modes():  # `untouched` would copy it first
                turned.append(weight.neg_())  # type: ignore[arg-type]

    hooks = [
        weight.register_post_accumulate_grad_hook(functools.partial(complete, name))  # type: ignore[no-untyped-call]
        for name, weight in weights.items()
    ]
    others: list[tuple[Tensor, Tensor | None]] = []
    try:
        with untouched(parts):
            loss = loss_of()
            mine = {id(weight) for weight in weights.values()}
            others = [(leaf, leaf.grad) for leaf in leaves(loss) if id(leaf) not in mine]
            for leaf, _ in others:
                leaf.grad = None
            try:
                loss.backward()  # type: ignore[no-untyped-call]
            finally:
                with torch.no_grad(), without_modes():
                    for weight in turned:
                        weight.neg_()
    finally:
        for hook in hooks:
            hook.remove()
        for weight in weights.values():
            weight.grad = None
        for leaf, gradient in others:
            leaf.grad = gradient
    return found


def _same(one: Looks, other: Looks, weights: Mapping[str, nn.Parameter]) -> bool:
    if one.keys() != other.keys():
        return False
    size = max((float(gradient.norm()) for gradient in one.values()), default=0.0)
    for name, gradient in one.items():
        tolerance = TOLERANCES.get(weights[name].dtype, ROUGH)
        allowed = tolerance * (float(gradient.norm()) + _NOISE * size)
        if not float((gradient - other[name]).norm()) <= allowed:
            return False
    return True
