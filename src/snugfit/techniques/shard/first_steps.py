"""Whether processes that train a model together do the same with it, looked at in the first steps, before their updates.

Torch collects weights and adds gradients up as the modules come, so a process that takes another way than the others waits
for them in vain, or gets numbers of something else. What a model changes in forward (a running mean of its own) stays in
the process, which has seen its share of the batch only. All of it ends here, in one message in all processes.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from snugfit.errors import InputError
from snugfit.private_torch.collectives import own_part
from snugfit.techniques.shard.changes import Change, Changes
from snugfit.techniques.shard.drawing import Drawing
from snugfit.techniques.shard.ranks import Ranks, is_simulated

STEPS = 3
"""Steps that are looked at: what chance decides (layer drop) may go well in one of them."""
_WAYS = ("collects the weights", "adds up the gradients", "is through")
_MISSED, _LENT = "misses the backward pass", "has other weights"
_OF_SHARDING = ("DTensor", "FSDP", "setStorage", "storage of size 0", "RegisterPostBackward")
"""Words of torch's errors where a model uses weights that are not there."""
_WHOLE = (
    "Shared-out weights are whole only while the forward method of their block, or of the model, runs, and in the backward "
    "pass from what it returns. Use shard='none', which takes any model."
)


def refusal(error: Exception) -> str:
    """Returns the message for torch's error where it cannot train a model whose weights are shared out."""
    line = str(error).strip().split("\n")[0].rstrip(".")
    # Sets have another order in each process, and all shall say the same.
    line = re.sub(r"\{([^}]*)\}", lambda found: ", ".join(sorted(found[1].split(", "))), line)
    return f"this model cannot be trained with its weights shared out ({line[:200]}). {_WHOLE}"


class FirstSteps:
    """What one process does in its first steps, beside the others."""

    def __init__(self, ranks: Ranks, model: nn.Module, outside: list[str]) -> None:
        """`outside` is given the names of parameters that are used outside of the sharded model."""
        self.drew = False
        """Whether passes that were looked at have drawn random numbers."""
        self._ranks = ranks
        self._left = 0 if is_simulated() else STEPS
        self._looking = False
        self._units = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
        self._names: dict[Tensor, str] = {weight: name for name, weight in model.named_parameters()}
        self._changes = Changes(model)
        self._drawing = Drawing(ranks, model)
        self._came: dict[Tensor, list[Tensor]] = {}
        self._compared: list[tuple[str, Tensor, Tensor]] = []
        self._outside = outside

    @contextlib.contextmanager
    def step(
        self,
        shares: Mapping[str, tuple[nn.Parameter, nn.Parameter]],
        again: Callable[[], contextlib.AbstractContextManager[None]],
        *,
        first: bool,
    ) -> Iterator[None]:
        """Context of the passes of a step, before its update; `InputError` where the processes do not do the same.

        `shares`: name -> a parameter that is trained, and what this process holds of it, which gets the gradient. `again`:
        context in which there has been one more pass, without a gradient, which leaves no trace behind it.
        """
        if not self._left:
            yield
            return
        self._outside.clear()
        self._compared.clear()
        self._changes.begin()
        self._looking = bool(self._units)
        try:
            with self._drawing.watched(first=first):
                yield
            self.before(-1, _WAYS[2])
        except (RuntimeError, AssertionError, ValueError) as error:
            if self._units and any(word in str(error) for word in _OF_SHARDING):
                raise InputError(refusal(error)) from error
            raise
        finally:
            self._looking = False
            self._came.clear()
        if first:
            self._check_made(again)
        self._check(shares)
        self._left -= 1

    def before(self, number: int, way: str) -> None:
        """Checks that all processes are about to ask each other for the same thing.

        `number`: the unit's, in the order of modules; -1: none.
        """
        if way == _MISSED:
            raise InputError(
                f"{self._units[number] or 'the model'!r} returns nothing that torch's sharding can see (it changes what it "
                f"is given, or returns an object of a class of its own), so its backward pass goes wrong. {_WHOLE}"
            )
        if not self._looking:
            return
        if way == _LENT:
            raise InputError(
                f"{self._units[number] or 'the model'!r} is called with other weights than its own "
                f"(torch.func.functional_call), which sharding would not see. {_WHOLE}"
            )
        told = self._ranks.agree([number, _WAYS.index(way)])
        other = next((place for place, one in enumerate(told) if one != told[0]), None)
        if other is None:
            return
        self._looking = False
        raise InputError(
            f"the processes take different ways through the model: the first one {self._said(told[0])} next, and process "
            f"{other} {self._said(told[other])} (experts or layers that only some samples or steps use). Where weights are "
            "shared out, all have to use the same blocks in the same order. Use shard='none', where they need not, or let "
            "every process call every block."
        )

    def _said(self, told: list[float]) -> str:
        number, way = int(told[0]), _WAYS[int(told[1])]
        return way if number < 0 else f"{way} of {self._units[number] or 'the rest of the model'!r}"

    @torch.no_grad()
    def whole(self, weights: list[tuple[Tensor, Tensor]], *, there: bool) -> None:
        """Checks that collected weights are unchanged when they are freed again: a write into them would be lost."""
        trained = [(share, own_part(one)) for share, one in weights if one.requires_grad and one.is_floating_point()]
        if not self._looking or not trained:
            return
        now = [_fingerprint(one) for _, one in trained]
        before = self._came.pop(trained[0][0], None)
        if there:
            self._came[trained[0][0]] = now
        elif before is not None:
            names = [self._names[share] for share, _ in trained]
            self._compared += zip(names, before, now, strict=True)

    def _check_made(self, again: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """Looks whether the first passes have made something of their samples that later ones go by.

        Where the processes have made something else, one more pass tells what each makes anew (its last output) from what
        it keeps.
        """
        told = self._ranks.tell(self._changes.made())
        unlike = {name for each in told for name in {*each, *told[0]} if each.get(name) != told[0].get(name)}
        if not unlike:
            return
        kept = self._ranks.tell(self._changes.still_there(unlike, again))
        for number, each in enumerate(told):
            names = sorted(name for name in set().union(*kept) if each.get(name) != told[0].get(name))
            if names:
                raise InputError(_unlike(names[0], number))

    @torch.no_grad()
    def _check(self, shares: Mapping[str, tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Compares what the passes have left in each process."""
        written = [name for name, before, now in self._compared if not _alike(before.tolist(), now.tolist())]
        told = self._ranks.tell((self._changes.found(), written, self._outside, self._drawing.drew))
        self.drew = any(drew for *_, drew in told)
        for _, written, outside, _ in told:
            if outside:
                raise InputError(
                    f"parameter {outside[0]!r} is used by way of a list, a closure or another object that was made of it "
                    "before its weights were shared out, where its gradient is lost. Reach it by way of the model in its "
                    "forward method, or use shard='none'."
                )
            if written:
                raise InputError(
                    f"the model changes parameter {written[0]!r} in its passes, and what is changed on shared-out weights "
                    "is lost. Use shard='none', or change it between steps."
                )
        for number, (changed, *_) in enumerate(told):
            unlike = sorted(name for name in changed.keys() | told[0][0].keys() if not _fits(name, changed, told[0][0]))
            if unlike:
                raise InputError(_unlike(unlike[0], number))
        self._check_copies(shares)

    def _check_copies(self, shares: Mapping[str, tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Compares weights and gradients that several processes hold whole."""
        found = [_fingerprint(one) for _, share in shares.values() for one in (share, share.grad)]
        numbers = torch.cat(found).tolist() if found else []
        told = self._ranks.agree(numbers)
        for place, (name, (weight, _)) in enumerate(shares.items()):
            shared_out = self._ranks.is_shared_out(weight)
            for number, each in enumerate(told):
                other = self._ranks.first_with_copies_of(number, shared_out=shared_out)
                at = slice(4 * place, 4 * place + 4)
                if not _alike(each[at], told[other][at]):
                    what = "weight" if not _alike(each[at][:2], told[other][at][:2]) else "gradient"
                    raise InputError(
                        f"the {what} of {name!r} is another one in process {number} than in process {other} after the "
                        "passes of this step, and both hold the same parameter. The model writes into its weights by what "
                        "its samples are, or code in one process does something else with them. Let all do the same."
                    )


def _unlike(name: str, number: int) -> str:
    return (
        f"the model changes {name!r} in forward, by what it makes of its samples, and process {number} makes something else "
        "of its share of the batch than the first one. One process would have seen all samples. Add it up in forward "
        "(torch.distributed.all_reduce), or train with one process."
    )


def _fingerprint(tensor: Tensor | None) -> Tensor:
    """Sum and norm of a tensor, on the host. Made without copying the tensor: no prediction has counted memory for that."""
    if tensor is None:
        return torch.zeros(2, dtype=torch.float64)
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    # In its own format: in another one torch would make a copy of it, as large as the weight.
    return torch.tensor([tensor.sum().item(), torch.linalg.vector_norm(tensor).item()], dtype=torch.float64)


def _alike(one: list[float], other: list[float]) -> bool:
    """Whether fingerprints agree, up to the order in which numbers are added."""
    within = 1e-6 * max(map(abs, (*one, *other)), default=0.0)
    return all(
        a == b or abs(a - b) <= within or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True)
    )


def _fits(name: str, one: Mapping[str, Change], other: Mapping[str, Change]) -> bool:
    if name not in one or name not in other:
        return not (one.get(name) or other[name]).there_at_first
    return one[name].digest == other[name].digest or not (
        one[name].there_at_first or one[name].shape == other[name].shape
    )
