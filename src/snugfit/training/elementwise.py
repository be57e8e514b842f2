"""Whether an optimizer of the caller's updates each number of a parameter by itself, so that it may have shares of it.

Those of torch that do are known. Any other one is tried: two steps on a small matrix, and on the two halves of it. One that
looks at whole matrices (the norm of a weight, orthogonal updates) does something else with halves.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from snugfit.errors import InputError, in_words

_KNOWN = {
    *(optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.ASGD, optim.NAdam, optim.RAdam),
    *(optim.RMSprop, optim.Rprop, optim.SGD),
}
_CLOSE = 1e-6


def check_elementwise(optimizer: Optimizer, make: Callable[[Any], Any] | None) -> None:
    """Raises `InputError` unless an optimizer of the caller updates shares as it would update whole parameters.

    `make`: the function that has made it; None: it was given as it is.
    """
    if type(optimizer) in _KNOWN:
        return
    name = type(optimizer).__name__
    advice = (
        "Where weights are shared out, each process has a part of each. Use shard='none', or an optimizer that updates "
        "each number by itself."
    )
    if make is None and (own := _tensors_of_its_own(optimizer)):
        raise InputError(
            f"the {name} given keeps tensors of its own beside its state ({own!r}), made for whole parameters. Give a "
            "function from parameters to an optimizer, which makes them for what each process has; or use shard='none'."
        )
    for group in optimizer.param_groups:
        try:
            whole, halves = [_stepped(optimizer, make, group, pieces) for pieces in (1, 2)]
        except Exception as error:  # whatever code of theirs raises
            raise InputError(
                f"it could not be tried whether the {name} given looks at whole matrices ({in_words(error)}). {advice}"
            ) from error
        if not torch.allclose(whole, halves, rtol=_CLOSE, atol=_CLOSE):
            raise InputError(f"the {name} given looks at whole matrices. {advice}")


def _stepped(optimizer: Optimizer, make: Callable[[Any], Any] | None, group: dict[str, Any], pieces: int) -> Tensor:
    """The small matrix after two steps, as one parameter or cut into so many."""
    device = next((weight.device for weight in group["params"]), torch.device("cpu"))
    numbers = torch.linspace(-1, 2, 24, device=device).view(4, 6)
    parts = [nn.Parameter(part.clone()) for part in numbers.chunk(pieces)]
    trial = _like(optimizer, group, parts) if make is None else make(parts)
    for factor in (0.3, -0.7):
        for part, gradient in zip(parts, (numbers.sin() * factor).chunk(pieces), strict=True):
            part.grad = gradient.clone()
        type(optimizer).step(trial)
    return torch.cat([part.detach() for part in parts])


def _like(optimizer: Optimizer, group: dict[str, Any], parts: list[nn.Parameter]) -> Optimizer:
    """An optimizer of the same class and settings, without state, hooks and schedulers."""
    made: Optimizer = type(optimizer).__new__(type(optimizer))
    left_out = ("state", "param_groups", "step", *(name for name in vars(optimizer) if name.endswith("_hooks")))
    settings = {name: value for name, value in group.items() if name != "params"}
    vars(made).update({name: copy.deepcopy(one) for name, one in vars(optimizer).items() if name not in left_out})
    made.__setstate__({"state": defaultdict(dict), "param_groups": [{**settings, "params": parts}]})
    return made


def _tensors_of_its_own(optimizer: Optimizer) -> str | None:
    """The attribute in which an optimizer keeps tensors as large as parameters, if there is one."""
    for name, value in vars(optimizer).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        if name not in ("state", "param_groups") and any(isinstance(one, Tensor) and one.dim() for one in inside):
            return name
    return None
