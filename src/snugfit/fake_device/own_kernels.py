"""Which operators a device runs whole, by a kernel of their own, and which it takes apart into other operators.

torch gives many operators a body over other operators (a composite kernel), and some devices a kernel in its place: CUDA
computes `silu_backward` in one launch, a device without that kernel in six, with a tensor between each and the next.
The simulated card has no kernels, so without more it would take all of them apart. What is simulated must choose as the
device does:

- composite with autograd inside it (CompositeImplicitAutograd): where CUDA has a kernel, the dispatcher is told that the
  simulated card has one too. Then autograd records one node, with the formula and the saved tensors of CUDA.
- composite under autograd (CompositeExplicitAutograd): these reach a recording whole. Where the device has no kernel, the
  body is run on tensors without memory, and if it makes more than its results (`logsumexp`, the loss of logits), the
  body is recorded in place of the operator.

Which operators have a kernel, torch's dispatcher says. A build of torch without CUDA does not know CUDA's; there an operator
counts as having one if the CPU has one, and so does every operator on lists of tensors (`_foreach_...`), which CUDA alone
runs whole. The few that keep to neither rule stand in `own_kernels.yaml`; a test holds them against a build with CUDA.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from snugfit.device_kinds import CPU, CUDA
from snugfit.private_torch import TorchDispatchMode, dispatcher, tree_leaves, tree_map
from snugfit.private_torch.fake_tensors import FAKES

_ALONE: Mapping[str, list[str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Kind of device -> operators that only it has a kernel for."""
_LISTS, _LISTS_WITHOUT_KERNEL = "aten::_foreach_", ("aten::_foreach_copy", "aten::_foreach_zero")

_known: dict[Any, bool] = {}
"""Kind of device, operator and what its calls have in common -> whether its body makes more than its results."""

WHOLE, APART, APART_WHERE_IT_HOLDS_MORE = "whole", "apart", "apart where it holds more"

KERNELS_TO_US = frozenset({"aten::convolution", "aten::_convolution", "aten::copy_"})
"""Bodies that look at the device to choose a library (cuDNN, oneDNN) or a way across devices: no device, no choice."""


def has_own_kernel(name: str, kind: str) -> bool:
    """Returns whether a device runs an operator by a kernel of its own.

    `name`: the operator as the dispatcher names it, such as `aten::silu_backward` or `aten::add.Tensor`.
    """
    if kind == "cpu" or dispatcher.knows_cuda_kernels():
        return dispatcher.has_kernel(name, kind.upper())
    if name.startswith(_LISTS):
        return not name.endswith("out") and name not in _LISTS_WITHOUT_KERNEL
    return name in _ALONE[CUDA] or (dispatcher.has_kernel(name, "CPU") and name not in _ALONE[CPU])


@functools.cache
def choice(operator: Any, kind: str) -> str:
    """Returns `WHOLE`, `APART`, or `APART_WHERE_IT_HOLDS_MORE`: how a recording treats an operator."""
    name = operator.name()
    if has_own_kernel(name, kind) or name in KERNELS_TO_US:
        return WHOLE
    if dispatcher.has_kernel(name, dispatcher.IMPLICIT):
        return APART
    if operator.namespace != "aten":
        return WHOLE  # a library's: its fake version is all that can be known
    if any(result.alias_info is not None and not result.alias_info.is_write for result in operator._schema.returns):
        return WHOLE  # a view
    return APART_WHERE_IT_HOLDS_MORE if dispatcher.explicit_body(name) is not None else WHOLE


def holds_more(operator: Any, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], alike: Any = None) -> bool:
    """Returns whether the body of a composite operator makes tensors besides its results.

    `alike`: the same for all calls that do the same, which are asked once; None where that is not known.
    """
    if not any(type(tensor) in FAKES for tensor in _tensors((args, kwargs))):
        return False
    key = (kind, operator, alike)
    if alike is None or key not in _known:
        _known[key] = _makes_more(operator, kind, args, kwargs)
    return _known[key]


def _makes_more(operator: Any, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    made = _Made(kind)
    # Tensors without memory: the body is run to see what it makes, and nothing of that belongs to the recording.
    on_meta = tree_map(_on_meta, (args, kwargs))
    try:
        with made:
            result = dispatcher.run_explicit_body(operator, *on_meta)
    except (RuntimeError, NotImplementedError, TypeError):
        return False  # no body over other operators, but code for tensors with memory
    results = {storage_of(tensor) for tensor in _tensors(result)}
    return any(storage not in results for storage in made.storages)


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operators make, nested ones included; keeps them alive, so that no number is used twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: dict[int, torch.Tensor] = {}
        self._kind = kind

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = self._run(func, args, kwargs or {})
        known = {storage_of(tensor) for tensor in _tensors((args, kwargs or {}))}
        for tensor in _tensors(result):
            if tensor.is_meta and storage_of(tensor) not in known and tensor.numel():
                self.storages.setdefault(storage_of(tensor), tensor)
        return result

    def _run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        how = choice(func, self._kind)
        try:
            if how == APART:
                with self:
                    return func.decompose(*args, **kwargs)
            if how == APART_WHERE_IT_HOLDS_MORE:
                with self:
                    return dispatcher.run_explicit_body(func, args, kwargs)
        except (RuntimeError, NotImplementedError, TypeError):
            pass
        return func(*args, **kwargs)


def storage_of(tensor: torch.Tensor) -> int:
    """Returns the number of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def told_to_the_dispatcher() -> list[str]:
    """Returns the operators that CUDA runs whole and that a device without a kernel would split above autograd."""
    return [
        name
        for name in dispatcher.operator_names()
        if dispatcher.has_kernel(name, dispatcher.IMPLICIT) and has_own_kernel(name, CUDA)
    ]


def register() -> None:
    """Gives the simulated card the kernels of CUDA that decide what autograd records; call it once in a process."""
    for name in told_to_the_dispatcher():
        dispatcher.claim_kernel(name, _never_run)


def _never_run(*_: Any, **__: Any) -> Any:
    """The kernel itself: autograd only asks whether there is one, and a recording catches the call before it."""
    raise NotImplementedError("this operator of the simulated card was run outside of a recording")
