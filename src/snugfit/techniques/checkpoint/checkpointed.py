"""A block whose forward pass keeps only its inputs and is computed again in backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from snugfit import device_kinds
from snugfit.attributes import attributes_set
from snugfit.errors import InputError, about, warn
from snugfit.private_torch import NormBase
from snugfit.techniques.checkpoint.as_in_forward import AsInForward
from snugfit.techniques.checkpoint.given_arguments import Again, GivenArguments
from snugfit.techniques.checkpoint.trial import alike, tried
from snugfit.techniques.forward_state import Contents, ForwardState
from snugfit.techniques.offload_activations.apply import ActivationOffload

_HOST = torch.device("cpu")
_aten = torch.ops.aten
_own: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
"""Activation module that a recipe forbids to overwrite -> the model's own choice."""
WITHOUT = "Name the blocks to checkpoint without this one, or set checkpoint='none'."
KEPT_OPERATORS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_attention_math.default,
    }
)
"""What `selective` keeps: the operators whose work grows faster than their output."""
_UNSEEN = frozenset({_aten.unsafe_split.Tensor, _aten.unsafe_split_with_sizes.default})
"""Views with version counters of their own: what is written into them does not show on what they are views of."""


class Checkpointed:
    """Runs a block's forward method so that only its inputs are kept, and its state moves once."""

    alone = True
    """Whether this process trains alone. Where weights are shared out, they come and go with every pass."""
    last_again = ""
    """The block that was computed again last, of all of them."""

    def __init__(
        self, name: str, block: nn.Module, device: torch.device, selective: bool, offload: ActivationOffload | None
    ) -> None:
        self.name = name
        self.block = block
        self.device = device
        self.selective = selective
        self.offload = offload
        self.left_alone = self.called = False
        self.modules = list(block.modules())
        self.norms = [module for module in self.modules if isinstance(module, NormBase) and module.track_running_stats]
        self._state: ForwardState | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy of a wrapped model takes along: what the block holds is found anew."""
        return {**vars(self), "_state": None}

    def __call__(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the forward method."""
        self.called = True
        if self.left_alone or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            # A compiled graph moves the statistics once by itself, and takes no context that is not a dispatch mode.
            return self._checkpointed(forward, args, kwargs, self._contexts if self.selective else None)
        if self._state is None:
            return self._first(forward, args, kwargs)
        return self._checkpointed(forward, args, kwargs, self._contexts)

    def _checkpointed(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], contexts: Any
    ) -> Any:
        if self.alone and not torch.compiler.is_compiling():
            forward = AsInForward(self.name, self.modules, self.norms, forward)
        around = _weights_cast_anew() if self.selective else nullcontext()
        with around, self.offload.saving() if self.offload else nullcontext():
            settings = {} if contexts is None else {"context_fn": contexts}
            if not torch.compiler.is_compiling() and (given := GivenArguments(*args, *kwargs.values())):
                forward = Again(self.name, forward, given)
            return checkpoint(forward, *args, use_reentrant=False, **kwargs, **settings)

    def _first(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first pass, after a trial; a block that cannot be computed again is left unwrapped."""
        self._state = ForwardState(self.block, without_buffers=self.norms)
        drawn = self._drawn()
        still = _still_statistics(self.norms)
        iterators, wanted = self._state.iterators(), None
        if iterators:
            reason = f"it holds an iterator ({iterators[0]}), which cannot be wound back"
        else:
            with GivenArguments(*args, *kwargs.values()).kept():
                reason, wanted = tried(forward, args, kwargs, self.block, self._state, still)
        self._draw(drawn)
        if reason:
            self.left_alone = True
            warn(
                f"checkpoint leaves {self.name!r} as it is: {reason}, so it cannot be computed again. Its activations are "
                "kept."
            )
            return forward(*args, **kwargs)
        if self.selective:
            forbid_overwriting(self.block)  # if somebody else looks at what it overwrites, the outputs differ
        output = self._checkpointed(forward, args, kwargs, self._contexts)
        if not alike(wanted, output):
            raise InputError(
                f"checkpoint: block {self.name!r}, run twice from the same state, gives two results, so it cannot be "
                f"computed again: it keeps or draws something that cannot be put back. Nothing was updated. {WITHOUT}"
            )
        return output

    def _drawn(self) -> tuple[Any, Any]:
        """The states of torch's generators, put back after the trial; a recomputation restores them by itself."""
        return device_kinds.drawn_from(_HOST), device_kinds.generator_state(self.device)

    def _draw(self, state: tuple[Any, Any]) -> None:
        device_kinds.draw_from(_HOST, state[0])
        device_kinds.set_generator_state(self.device, state[1])

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        assert self._state is not None or torch.compiler.is_compiling()
        once, kept = nullcontext(), None
        if self.selective:
            once, kept = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
        before = None if self._state is None else self._state.take()
        again = _Recomputation(self, before, kept)
        return (once if before is None else self._watched(before, once)), again

    @contextmanager
    def _watched(self, before: Contents, around: AbstractContextManager[Any]) -> Iterator[None]:
        """The pass itself. It has to be known what it writes into, or there would be no copy of it."""
        assert self._state is not None
        written = self._state.written(before)
        with around:
            yield
        for place, times in self._state.written(before).items():
            if times != written[place]:
                raise InputError(
                    f"checkpoint: block {self.name!r} writes into {self._state.name(place)} now, which it did not in "
                    f"its first pass, so it cannot be computed again. Nothing was updated. {WITHOUT}"
                )

    @contextmanager
    def again(self, before: Contents | None, kept: AbstractContextManager[Any] | None) -> Iterator[None]:
        """Context of the recomputation in backward, with the state the block had before its first pass.

        `before`: what the block's state was before the pass; None where a compiler looks after it.
        """
        Checkpointed.last_again = self.name
        state = nullcontext() if before is None or self._state is None else self._state.as_it_was(before)
        with state, _still_statistics(self.norms), kept or nullcontext():
            yield


@contextmanager
def _weights_cast_anew() -> Iterator[None]:
    """Context without autocast's store of cast weights.

    What it holds from a pass before is not cast in this one, but again in backward, where torch counts every operator.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class _Recomputation:
    """Context of every recomputation; entered once for each time that backward goes through the block."""

    def __init__(self, block: Checkpointed, before: Contents | None, kept: AbstractContextManager[Any] | None) -> None:
        self._block, self._before, self._kept = block, before, kept
        self._spent = False
        self._around = ExitStack()

    def __enter__(self) -> None:
        if self._spent:
            with about("checkpoint"):
                raise InputError(
                    "checkpoint='selective' keeps the results of a block for one backward pass, and this is a second one "
                    "through the same forward pass (retain_graph, a gradient of a gradient). Take checkpoint='all'."
                )
        self._spent = self._kept is not None
        self._around.enter_context(self._block.again(self._before, self._kept))

    def __exit__(self, *error: Any) -> bool | None:
        ended = self._around.__exit__(*error)
        if self._kept is not None and isinstance(error[1], RuntimeError) and "has been mutated" in str(error[1]):
            with about("checkpoint"):
                raise InputError(
                    f"checkpoint='selective' keeps the results of matmuls, and the code of block {self._block.name!r} "
                    "overwrites one of them in place. Take checkpoint='all', or write that operation without its "
                    "underscore."
                ) from error[1]
        return ended


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if operator in _UNSEEN:
        with about("checkpoint"):
            raise InputError(
                "checkpoint='selective' keeps the results of matmuls, and code of a block cuts one up by unsafe_chunk or "
                "unsafe_split, whose parts may be overwritten without a trace (torch's GRU does so on a processor). Take "
                "checkpoint='all'."
            )
    return CheckpointPolicy.MUST_SAVE if operator in KEPT_OPERATORS else CheckpointPolicy.PREFER_RECOMPUTE


def _still_statistics(norms: list[Any]) -> AbstractContextManager[None]:
    """Keeps batch norms from updating their running statistics a second time, in the recomputation."""
    return attributes_set(norms, momentum=0.0, num_batches_tracked=None)


def forbid_overwriting(block: nn.Module) -> None:
    """Selective checkpointing keeps results of matmuls, and an in-place activation right behind one would spoil them."""
    for module in block.modules():
        if getattr(module, "inplace", False) is True:
            _own.setdefault(module, True)
            setattr(module, "inplace", False)  # noqa: B010 - Module declares no such attribute


def allow_overwriting(model: nn.Module) -> None:
    """Gives activation modules the choice back that the model itself has made."""
    for module in model.modules():
        if module in _own:
            setattr(module, "inplace", _own.pop(module))  # noqa: B010 - Module declares no such attribute
