"""Autocast on the fake accelerator, as torch does it on CUDA: which operators are cast to what, and the weight cache.

A weight that is cast under autocast is kept until the outermost autocast ends, so that its use by several operators makes
one copy; the copy itself is a real allocation and is recorded like any other.

The operators stand in `autocast.yaml`, the rules here. Source: `autocast_mode.h` and `autocast_mode.cpp` of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from snugfit import private_torch
from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.private_torch import dispatcher
from snugfit.techniques.batches import tensors_in

Policy = Callable[[Any], Callable[..., Any]]
"""Makes the kernel of an operator under autocast."""

_KEY = "AutocastPrivateUse1"
_cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
_library: list[torch.library.Library] = []


def cached_cast(dtype: torch.dtype, value: Any) -> Any:
    """Casts an argument as autocast would (lists element by element), weights through its cache.

    Returns the argument, cast where it is a floating-point tensor on the device (other than float64).
    """
    if isinstance(value, torch.Tensor):
        if not _eligible(value) or value.dtype == dtype:
            return value
        is_weight = (
            dtype == torch.get_autocast_dtype(value.device.type)
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not is_weight:
            return value.to(dtype)
        known = _cast_weights.get(id(value))
        if known is None:
            known = _cast_weights[id(value)] = (value, value.to(dtype))
        return known[1]
    if isinstance(value, list | tuple):
        return type(value)(cached_cast(dtype, part) for part in value)
    return value


def _eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type != "cpu"


def _cast(dtype_of: Callable[[Sequence[Any]], torch.dtype]) -> Policy:
    """A policy that casts all inputs to one dtype, which may depend on them."""

    def policy(operator: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with private_torch.without_autocast(_KEY):
                dtype = dtype_of((*args, *kwargs.values()))
                named = {name: cached_cast(dtype, value) for name, value in kwargs.items()}
                return operator(*[cached_cast(dtype, value) for value in args], **named)

        return run

    return policy


def _widest(values: Sequence[Any]) -> torch.dtype:
    wide = any(tensor.dtype == torch.float32 for tensor in tensors_in(values))
    return torch.float32 if wide else _lower_dtype()


def _float32_dtype(operator: Any) -> Callable[..., Any]:
    def run(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with private_torch.without_autocast(_KEY):
            if _eligible(first) and kwargs.get("dtype") is None and not any(isinstance(a, torch.dtype) for a in args):
                kwargs["dtype"] = torch.float32
                args = tuple(args[: _dtype_position(operator) - 1])
            return operator(first, *args, **kwargs)

    return run


def _norm(operator: Any) -> Callable[..., Any]:
    """`norm` without a dtype goes to the overload that takes one (policy `fp32_append_dtype`)."""
    overloads = {"Scalar": "ScalarOpt_dtype", "ScalarOpt_dim": "ScalarOpt_dim_dtype"}
    with_dtype = getattr(torch.ops.aten.norm, overloads[operator._overloadname])

    def run(first: torch.Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
        with private_torch.without_autocast(_KEY):
            dtype = torch.float32 if _eligible(first) else first.dtype
            if dim is None:
                return with_dtype(first, p, dtype=dtype)
            return with_dtype(first, p, dim, keepdim, dtype=dtype)

    return run


def _lower_dtype(*_: Any) -> torch.dtype:
    return torch.get_autocast_dtype(DEVICE_TYPE)


def _dtype_position(operator: Any) -> int:
    return next((i for i, a in enumerate(operator._schema.arguments) if a.name == "dtype"), 99)


_POLICIES: dict[str, Policy] = {
    "lower_precision": _cast(_lower_dtype),
    "float32": _cast(lambda _: torch.float32),
    "float32_dtype": _float32_dtype,
    "promote": _cast(_widest),
    "norm": _norm,
}


def operators() -> dict[str, list[str]]:
    """Returns the contents of `autocast.yaml`: policy -> operators."""
    text = (Path(__file__).parent / "autocast.yaml").read_text(encoding="utf-8")
    return {policy: list(names) for policy, names in yaml.safe_load(text).items()}


def register() -> None:
    """Registers the casts for the fake accelerator; call it once in a process."""
    fallthrough = torch.library.Library("_", "IMPL", _KEY)  # type: ignore[no-untyped-call]
    fallthrough.fallback(torch.library.fallthrough_kernel)  # type: ignore[no-untyped-call]
    _library.append(fallthrough)
    for policy, names in operators().items():
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if operator is not None:
                dispatcher.claim_kernel(f"aten::{name}", _POLICIES[policy](operator), _KEY)
    private_torch.on_clearing_autocast_cache(_cast_weights.clear)
