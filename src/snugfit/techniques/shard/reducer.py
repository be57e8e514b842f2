"""What a process holds of a model's parameters as plain ones, and their gradients once all processes have added them up.

The update sees shares: plain parameters on the memory of torch's sharded ones, or of the model's own where each process
holds everything. Gradients come to a share added up: by torch where it shares out (with zeros where this process has none),
in `buckets.py` else. What has a gradient in no process keeps none, as with one process: weight decay and momentum would move
it.

Hooks that the caller has put on parameters are given the sum: what they make of parts of it may add up to something else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.errors import InputError
from snugfit.private_torch import hooks_of
from snugfit.private_torch.collectives import lying_as, own_part, taken_apart
from snugfit.private_torch.shared_units import watch_shared_out
from snugfit.techniques.shard.buckets import Buckets
from snugfit.techniques.shard.first_steps import FirstSteps

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from snugfit.techniques.shard.ranks import Ranks


class Reducer:
    """Gives shares their gradients."""

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        *,
        dtype: torch.dtype | None,
        at_once: bool,
        outside: list[str] | None = None,
    ) -> None:
        """Decides who adds up the gradients: torch where weights are shared out, else our buckets.

        `at_once`: whether parameters are updated in the middle of backward, for which the processes talk about each.
        `outside`: gets the names of parameters that are used outside of the model that is shared out; None: nobody
        looks.
        `dtype`: format in which gradients are added up; None: each in its own.
        """
        self.adds_up = True
        """Whether the next pass adds up; where it does not, gradients stay with the parameters until one does."""
        self._at_once = at_once
        self.ranks = ranks
        self._active = False
        self._shares: dict[nn.Parameter, nn.Parameter] = {}
        self._names: dict[nn.Parameter, str] = {}
        self._handles: dict[nn.Parameter, RemovableHandle] = {}
        self._hooks: dict[nn.Parameter, tuple[dict[int, Any], dict[int, Any]]] = {}
        self._buckets = Buckets(ranks, dtype, self._taken, self._hand_over)
        # Of what torch adds up: what this process has had a gradient of in this pass, and what others perhaps have.
        self._had: set[nn.Parameter] = set()
        self._unsure: list[tuple[nn.Parameter, Tensor]] = []
        self.first_steps = FirstSteps(ranks, model, [] if outside is None else outside)
        watch_shared_out(model, self)

    def share_of(self, weight: nn.Parameter, name: str, *, sparse: bool = False) -> nn.Parameter:
        """Returns what this process holds of a parameter, as a plain parameter that gets the summed gradient."""
        if weight in self._shares:
            return self._shares[weight]
        share = self._shares[weight] = nn.Parameter(own_part(weight).detach(), requires_grad=weight.requires_grad)
        self._names[weight] = name
        if not self._comes_added_up(weight):
            self._buckets.add(weight, share, sparse=sparse)
        if weight.requires_grad:
            self._handles[weight] = weight.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
        return share

    def is_cut(self, name: str) -> bool:
        """Returns whether processes hold different parts of a parameter of the model."""
        return name in self.ranks.cut or any(
            name == own and self.ranks.is_shared_out(weight) for weight, own in self._names.items()
        )

    def _comes_added_up(self, weight: nn.Parameter) -> bool:
        return self.ranks.sharers == 1 or self.ranks.is_shared_out(weight)

    def beside(self) -> set[nn.Parameter]:
        """Returns the shares that each process holds whole although the model is shared out."""
        if not any(map(self.ranks.is_shared_out, self._shares)):
            return set()
        return {share for weight, share in self._shares.items() if weight in self._buckets}

    def watched(
        self, again: Callable[[], contextlib.AbstractContextManager[None]], *, first: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Returns the context of the passes of a step in which the processes are compared (the first ones).

        `again`: context in which there has been one more pass, which leaves no trace behind it.
        """
        shares = {
            self._names[weight]: (weight, share) for weight, share in self._shares.items() if weight.requires_grad
        }
        return self.first_steps.step(shares, again, first=first)

    # -- a backward pass

    @contextlib.contextmanager
    def own_pass(self) -> Iterator[None]:
        """Context of a backward pass of the step, after which every share has its gradient; other passes are left alone."""
        self._had.clear()
        self._buckets.begin()
        try:
            self._take_hooks()
            self._active = True
            yield
            if self.adds_up:
                with torch.no_grad():
                    self._buckets.finish()
                    self._settle()
        finally:
            self._active = False
            self._buckets.forget()
            self._unsure.clear()
            self._put_hooks_back()

    def _arrived(self, weight: nn.Parameter) -> None:
        """Called when a parameter has a gradient: this process's, or its share of the sum where torch adds up."""
        if not self._active or not (self.adds_up or self.ranks.is_shared_out(weight)):
            return
        if weight in self._buckets:
            self._buckets.arrived(weight)
            return
        gradient = self._taken(weight)
        assert gradient is not None
        # Torch gives zeros where this process had no gradient; whether any other had one is known when the pass is
        # over.
        if weight in self._had or not self.ranks.is_shared_out(weight):
            self._hand_over(weight, gradient)
        elif not self._at_once:
            self._unsure.append((weight, gradient))

    # What torch's sharding tells (`private_torch.collectives.Watch`).

    def before(self, number: int, way: str) -> None:
        """Called before a unit asks the other processes for something."""
        self.first_steps.before(number, way)

    def whole(self, weights: list[tuple[Tensor, Tensor]], *, there: bool) -> None:
        """Called when a unit has been collected, and once more before it is freed."""
        self.first_steps.whole(weights, there=there)

    def gradients(self, weights: list[nn.Parameter], here: list[bool]) -> None:
        """Notes which parameters of a unit have a gradient here, before the sum arrives."""
        there = self.ranks.any_of(here) if self._at_once else here
        self._had.update(weight for weight, one in zip(weights, there, strict=True) if one)

    def _settle(self) -> None:
        """Hands over the gradients that another process had and this one had not."""
        shared_out = [weight for weight in self._shares if self.ranks.is_shared_out(weight)]
        if not shared_out or self._at_once:
            return
        told = self.ranks.any_of([weight in self._had for weight in shared_out])
        somewhere = {weight for weight, there in zip(shared_out, told, strict=True) if there}
        unsure, self._unsure = self._unsure, []
        for weight, gradient in unsure:
            if weight in somewhere:
                self._hand_over(weight, gradient)

    def _taken(self, weight: nn.Parameter) -> Tensor | None:
        if weight.grad is None:
            return None
        gradient, weight.grad = own_part(lying_as(weight.grad, weight)).detach(), None
        if self._names[weight] in self.ranks.seen_in_part:
            self.ranks.add_up_layers(gradient)
        return gradient

    def _hand_over(self, weight: nn.Parameter, gradient: Tensor) -> None:
        """Gives a share its gradient as autograd would: hooks, accumulation, post-accumulate hooks."""
        share = self._shares[weight]
        before, after = self._hooks.get(weight, ({}, {}))
        gradient = gradient.to(share.dtype)
        for hook in list(before.values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        if share.grad is None:
            share.grad = gradient
        else:
            share.grad.add_(gradient)
        del gradient
        for hook in list(after.values()):
            weight.grad = share.grad
            hook(weight)
            share.grad, weight.grad = weight.grad, None
        for hook in list(hooks_of(share)[1].values()):
            hook(share)

    # -- hooks of the caller's

    def _take_hooks(self) -> None:
        """Takes the caller's hooks off for the pass: they are to see the sum, not this process's part of it."""
        for weight in self._shares:
            before, after = hooks_of(weight)
            own = self._handles[weight].id if weight in self._handles else None
            if before or len(after) > (own is not None):
                self._hooks[weight] = dict(before), {key: hook for key, hook in after.items() if key != own}
                if self.ranks.is_shared_out(weight):
                    raise InputError(hook_message(self._names[weight]))
                for table, kept in zip((before, after), self._hooks[weight], strict=True):
                    for key in kept:
                        del table[key]

    def _put_hooks_back(self) -> None:
        for weight, taken in self._hooks.items():
            for table, hooks in zip(hooks_of(weight), taken, strict=True):
                table.update(hooks)
        self._hooks.clear()

    # -- between passes

    def show(self) -> None:
        """Puts the gradients of the update on the model's parameters, where their owner looks for them."""
        for weight, share in self._shares.items():
            weight.grad = None if share.grad is None else taken_apart(weight)[1](share.grad)

    def drop(self) -> None:
        """Frees the gradients that backward passes have left on the parameters."""
        for weight in self._shares:
            weight.grad = None

    def release(self) -> None:
        """Takes its hooks off the parameters."""
        for handle in self._handles.values():
            handle.remove()


def hook_message(name: str) -> str:
    """Returns the message for a hook on a parameter that is shared out."""
    return (
        f"parameter {name!r} has a hook (register_hook), which is to see its gradient, and each process has a share of it "
        "only. Use shard='none', or take the hook off and change the gradient in the loss."
    )
