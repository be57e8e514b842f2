"""Autocast on the fake accelerator, as torch does it on CUDA: which operators are cast to what, and the weight cache.

A weight that is cast under autocast is kept until the outermost autocast ends, so that its use by several operators makes
one copy; the copy itself is a real allocation and is recorded like any other.

Source of the lists and of the rules: `ATen/autocast_mode.h` and `autocast_mode.cpp` of torch (AT_FORALL_LOWER_PRECISION_FP,
AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_PROMOTE), which are those of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from snugfit import private_torch
from snugfit.fake_device.accelerator import DEVICE_TYPE

LOWER_PRECISION = [
    "_convolution.deprecated",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
]
"""Operators whose inputs are cast to autocast's 16-bit dtype."""

FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
"""Operators whose inputs are cast to float32."""

FLOAT32_DTYPE = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]
"""Operators that are asked for a float32 result where no dtype is given."""

PROMOTE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
"""Operators whose inputs are cast to the widest dtype among them."""

_KEY = "AutocastPrivateUse1"
_cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
_library: list[torch.library.Library] = []


def cached_cast(dtype: torch.dtype, value: Any) -> Any:
    """Casts what autocast would cast, weights through the cache.

    Args:
        dtype: The dtype to cast to.
        value: An argument of an operator, of any kind; lists are cast element by element.

    Returns:
        The argument, cast where it is a floating-point tensor on the device (other than float64).
    """
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" or not value.is_floating_point() or value.dtype in (torch.float64, dtype):
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


def _lower_precision(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with private_torch.without_autocast(_KEY):
            dtype = _lower_dtype()
            return operator(
                *[cached_cast(dtype, a) for a in args], **{name: cached_cast(dtype, a) for name, a in kwargs.items()}
            )

    return run


def _float32(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with private_torch.without_autocast(_KEY):
            return operator(
                *[cached_cast(torch.float32, a) for a in args],
                **{name: cached_cast(torch.float32, a) for name, a in kwargs.items()},
            )

    return run


def _float32_dtype(operator: Any) -> Callable[..., Any]:
    def run(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with private_torch.without_autocast(_KEY):
            eligible = first.is_floating_point() and first.dtype != torch.float64 and first.device.type != "cpu"
            if eligible and kwargs.get("dtype") is None and not any(isinstance(a, torch.dtype) for a in args):
                kwargs["dtype"] = torch.float32
                args = tuple(args[: _dtype_position(operator) - 1])
            return operator(first, *args, **kwargs)

    return run


def _norm(operator: Any) -> Callable[..., Any]:
    """`norm` without a dtype goes to the overload that takes one (fp32_append_dtype)."""
    overloads = {"Scalar": "ScalarOpt_dtype", "ScalarOpt_dim": "ScalarOpt_dim_dtype"}
    with_dtype = getattr(torch.ops.aten.norm, overloads[operator._overloadname])

    def run(first: torch.Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
        with private_torch.without_autocast(_KEY):
            eligible = first.is_floating_point() and first.dtype != torch.float64 and first.device.type != "cpu"
            dtype = torch.float32 if eligible else first.dtype
            if dim is None:
                return with_dtype(first, p, dtype=dtype)
            return with_dtype(first, p, dim, keepdim, dtype=dtype)

    return run


def _promote(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with private_torch.without_autocast(_KEY):
            tensors = [
                t
                for a in (*args, *kwargs.values())
                for t in (a if isinstance(a, list | tuple) else (a,))
                if isinstance(t, torch.Tensor) and t.is_floating_point()
            ]
            wide = any(t.dtype == torch.float32 for t in tensors)
            dtype = torch.float32 if wide else _lower_dtype()
            return operator(
                *[cached_cast(dtype, a) for a in args], **{name: cached_cast(dtype, a) for name, a in kwargs.items()}
            )

    return run


def _lower_dtype() -> torch.dtype:
    return torch.get_autocast_dtype(DEVICE_TYPE)


def _dtype_position(operator: Any) -> int:
    return next((i for i, a in enumerate(operator._schema.arguments) if a.name == "dtype"), 99)


def register() -> None:
    """Registers the casts for the fake accelerator; once in a process."""
    fallthrough = torch.library.Library("_", "IMPL", _KEY)  # type: ignore[no-untyped-call]
    fallthrough.fallback(torch.library.fallthrough_kernel)  # type: ignore[no-untyped-call]
    library = torch.library.Library("aten", "IMPL", _KEY)  # type: ignore[no-untyped-call]
    for names, policy in (
        (LOWER_PRECISION, _lower_precision),
        (FLOAT32, _float32),
        (FLOAT32_DTYPE, _float32_dtype),
        (PROMOTE, _promote),
        (["norm.Scalar", "norm.ScalarOpt_dim"], _norm),
    ):
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if operator is not None:
                library.impl(name, policy(operator))  # type: ignore[no-untyped-call]
    _library.extend((fallthrough, library))
    private_torch.on_clearing_autocast_cache(_cast_weights.clear)
