"""liger-kernel's fused linear cross entropy, for `loss_impl=fused`: one import of one function, lazily.

The library cuts tokens into pieces and turns each piece of logits into its gradient in one Triton kernel, in forward, so
nothing is computed twice. The head's gradient is added up in fp32, which is an option of the library. What it does not do is
refused: fp16 (its gradients are taken before the loss is scaled, and underflow), fp64, and a frozen model under a trained
head (it takes no gradient then).

Source: `liger_kernel/ops/fused_linear_cross_entropy.py` of liger-kernel 0.8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from snugfit.device_kinds import SIMULATED, kind_of
from snugfit.errors import CannotSimulateError, InputError
from snugfit.library_imports import needed
from snugfit.techniques.base import Setup
from snugfit.techniques.loss_impl.deferred_logits import LossFunction
from snugfit.techniques.loss_impl.linear_cross_entropy import LogitStep, Settings

_DTYPES = (torch.float32, torch.bfloat16)


def fused_loss(setup: Setup) -> LossFunction:
    """Returns liger-kernel's loss with the arguments of `linear_cross_entropy`; raises where it cannot run here."""
    if setup.device.type == SIMULATED:
        raise CannotSimulateError(
            "loss_impl='fused' runs Triton kernels, which simulated tensors cannot. Estimate and plan with "
            "loss_impl='chunked', which holds pieces of the logits too; training with 'fused' needs no prediction."
        )
    if not kind_of(setup.device).triton:
        raise InputError(
            f"loss_impl='fused' runs on CUDA only, and the device is {setup.device.type}. Set loss_impl='chunked', which "
            "saves the same memory anywhere."
        )
    if setup.recipe.precision in ("16-mixed", "16-true"):
        raise InputError(
            f"loss_impl='fused' takes gradients before the loss is scaled, so they underflow under precision="
            f"{setup.recipe.precision!r}. Set loss_impl='chunked', or use bf16."
        )
    functional = needed(
        "loss_impl='fused' needs",
        "liger_kernel.transformers.functional",
        install="liger-kernel",
        instead=", or set loss_impl='chunked'.",
    )

    def loss(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, reduction: str, settings: Settings
    ) -> Tensor:
        dtype = settings.compute_dtype
        if dtype not in _DTYPES:
            raise InputError(f"loss_impl='fused' computes in fp32 or bf16, not {dtype}. Set loss_impl='chunked'.")
        if torch.is_grad_enabled() and weight.requires_grad and not hidden.requires_grad:
            raise InputError(
                "loss_impl='fused' takes no gradient of a trained head over a frozen model. Set loss_impl='chunked'."
            )
        result: Tensor = functional.liger_fused_linear_cross_entropy(
            hidden.to(dtype),
            weight.to(dtype),
            labels,
            None if bias is None else bias.to(dtype),
            ignore_index=settings.ignore_index,
            label_smoothing=settings.label_smoothing,
            reduction=reduction,
            softcap=softcap_of(settings.steps),
            accum_dtype=torch.float32,
        )
        return result

    return loss


def softcap_of(steps: tuple[LogitStep, ...]) -> float | None:
    """Returns the cap of `cap * tanh(logits / cap)`; None where there are only casts; `InputError` for anything else."""
    real = [step for step in steps if step.kind != "cast"]
    if not real:
        return None
    if [step.kind for step in real] == ["divide", "tanh", "multiply"] and real[0].value == real[2].value:
        return float(real[0].value)
    raise InputError(
        f"loss_impl='fused' knows plain and softly capped logits, and this model does more to them "
        f"({', '.join(step.kind for step in real)}). Set loss_impl='chunked'."
    )
