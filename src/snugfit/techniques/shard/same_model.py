"""Whether several processes were given the same model, optimizer and settings, before anything of them is sent.

Processes with other parameters, or another order of them, get numbers of something else from each other, or end in the
middle of a collective. A hook or a frozen weight in one of them is not seen by any of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.errors import InputError
from snugfit.private_torch import hooks_of
from snugfit.techniques.shard.ranks import Ranks

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def described_module(model: nn.Module, whole: str) -> dict[str, str]:
    """Describes what must be the same of a model or loss before it is shared out; `InputError` for impossible layers."""
    found = {}
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise InputError(
                f"{name!r} has max_norm, by which it rescales the rows that it looks up: each process looks up those of its "
                "own samples. Leave max_norm out (max_norm=None) and clamp the weights between steps, or train with one "
                "process."
            )
        hooks = [_named(hook) for table in _HOOKS for hook in getattr(module, table).values()]
        found[name or whole] = _said(
            type(module).__qualname__, "in training mode" if module.training else "in evaluation mode", hooks
        )
        for own, weight in module.named_parameters(recurse=False):
            path = f"{name}.{own}" if name else own
            hooks = [_named(hook) for table in hooks_of(weight) for hook in table.values()]
            found[path] = _said(_tensor(weight), "trained" if weight.requires_grad else "frozen", hooks)
    return found


def described_optimizer(optimizer: Optimizer) -> dict[str, str]:
    """Describes what must be the same of an optimizer, by name."""
    found = {"the optimizer": type(optimizer).__qualname__}
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            said = f"{len(value)} parameters" if name == "params" else repr(value)
            found[f"optimizer.param_groups[{number}][{name!r}]"] = said
    return found


def check_same(described: Mapping[str, str], ranks: Ranks) -> None:
    """Compares the descriptions of all processes; `InputError` where they differ."""
    digest = hashlib.blake2b(repr(list(described.items())).encode()).hexdigest()
    if len(set(ranks.tell(digest))) == 1:
        return
    told = ranks.tell(dict(described))
    for number, each in enumerate(told):
        names = [name for name in {**told[0], **each} if each.get(name) != told[0].get(name)]
        if names or list(each) != list(told[0]):
            name = names[0] if names else next(one for one, other in zip(each, told[0], strict=True) if one != other)
            raise InputError(
                f"process {number} was given something else than the first one: {name!r} is "
                f"{each.get(name, 'not there')} in process {number}, and {told[0].get(name, 'not there')} in the first. "
                "Build model, optimizer and settings in the same way, and in the same order, in every process."
            )


def _said(*parts: Any) -> str:
    *words, hooks = parts
    return ", ".join([*words, f"with hooks {hooks}"] if hooks else words)


def _named(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _tensor(weight: Tensor) -> str:
    return f"{weight.dtype} of {list(weight.shape)}"
