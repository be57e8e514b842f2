"""The step of transformers' Trainer in early 2022, written by hand, for bert-large's published table.

Two things were done otherwise than by any step of today, and both are in the sources of that time:

- Gradients were zeroed in place, not dropped (`zero_grad` of torch 1: `set_to_none=False`), so that all of them are alive
  during the forward pass.
- `softmax` kept its input beside its output for the backward pass (pytorch issues 49600 and 64000, mended by pull
  request 65242): one more copy of the attention scores in every layer.

The guide does not say which torch it ran. That its batch-4 rungs agree with this step, and not with today's, is why it is
taken to be of torch 1.10 or before.

The rest is `benchmarks.guides`: the same model, batch, clipping and optimizer. Nothing is fitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import snugfit
from benchmarks.guides import CONTEXT_OF_THEN
from snugfit.devices import device_named
from snugfit.ladder import Rung
from snugfit.ladder_presets import Preset
from snugfit.simulator.prediction import Estimate
from snugfit.techniques.own_optimizer import own_optimizer
from snugfit.training.optimizers import make_optimizer, optimizer_groups
from snugfit.workers.pool import Pool
from snugfit.workloads.hf import maker

KEPT_THEN = (
    "total_bytes",
    "peak_reserved_bytes",
    "peak_allocated_bytes",
    "anatomy_bytes",
    "peak_phase",
    "torch_version",
)


class EarlierSoftmax(torch.autograd.Function):
    """Softmax as torch 1.10 differentiated it: `_softmax_backward_data(grad, result, dim, self)` keeps `self` alive."""

    @staticmethod
    def forward(context: Any, scores: torch.Tensor, dim: int) -> Any:
        """Computes and keeps input and output, both [samples, heads, tokens, tokens]."""
        shares = torch.ops.aten._softmax.default(scores, dim, False)
        context.save_for_backward(scores, shares)
        context.dim = dim
        return shares

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Returns the gradient of the input."""
        scores, shares = context.saved_tensors
        return torch.ops.aten._softmax_backward_data.default(gradients[0], shares, context.dim, scores.dtype), None


@contextmanager
def earlier_softmax(kept: bool) -> Iterator[None]:
    """Puts `EarlierSoftmax` in the place of `nn.functional.softmax`, or leaves today's."""

    def softmax(scores: torch.Tensor, dim: int, **_: Any) -> torch.Tensor:
        # Autocast computes softmax in float32, from a copy that is then the input that is kept.
        shares: torch.Tensor = EarlierSoftmax.apply(scores.float(), dim)
        return shares

    if not kept:
        yield
        return
    with mock.patch.object(torch.nn.functional, "softmax", softmax):
        yield


@dataclasses.dataclass
class EarlierStep:
    """One update, as the Trainer of that time took it."""

    microbatch_size: int
    fp16: bool
    keep_scores: bool
    scaler: Any = None

    def __call__(self, model: Any, optimizer: Any, batch: Any) -> None:
        """Trains on one batch.

        Args:
            model: BERT with a classifier.
            optimizer: Its optimizer.
            batch: `input_ids` and `labels`.
        """
        model.train()
        samples = len(batch["labels"])
        if self.fp16:
            self.scaler = self.scaler or torch.amp.GradScaler("cuda")
        with earlier_softmax(self.keep_scores):
            for start in range(0, samples, self.microbatch_size):
                piece = {name: value[start : start + self.microbatch_size] for name, value in batch.items()}
                with torch.autocast("cuda", dtype=torch.float16, enabled=self.fp16):
                    loss = model(**piece).loss / (samples // self.microbatch_size)
                (self.scaler.scale(loss) if self.scaler else loss).backward()
        if self.scaler:
            self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)


class EarlierAdafactor(torch.optim.Optimizer):
    """Adafactor as transformers wrote it, with the settings of its Trainer (no relative step, no scaling).

    Source: `transformers/optimization.py` of that time. Its update is a new tensor for each parameter.
    """

    def __init__(self, parameters: Any) -> None:
        """Takes the weights, each [rows, columns] or [values]."""
        super().__init__(parameters, {"lr": 5e-5})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Updates one parameter after the other."""
        for weight in (weight for group in self.param_groups for weight in group["params"]):
            state, gradient = self.state[weight], weight.grad
            squares = (gradient**2) + 1e-30
            if weight.dim() < 2:
                average = state.setdefault("exp_avg_sq", torch.zeros_like(weight))
                update = average.lerp_(squares, 0.2).rsqrt().mul_(gradient)
            else:
                row = state.setdefault("exp_avg_sq_row", weight.new_zeros(weight.shape[:-1]))
                column = state.setdefault("exp_avg_sq_col", weight.new_zeros(weight.shape[-1:]))
                row.lerp_(squares.mean(dim=-1), 0.2)
                column.lerp_(squares.mean(dim=-2), 0.2)
                by_row = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
                update = torch.mul(by_row, column.unsqueeze(-2).rsqrt()).mul_(gradient)
            update.div_((update.norm(2) / update.numel() ** 0.5).clamp_(min=1.0)).mul_(5e-5)
            weight.add_(-update)


def earlier_figures(preset: Preset, rung: Rung, config: Path) -> dict[str, Any]:
    """Returns what a rung needed with the step of that time.

    Args:
        preset: The study.
        rung: One of its rungs.
        config: File with the model's config.

    Returns:
        Bytes and anatomy, and `zeroed_only_total_bytes`: with gradients zeroed in place, and the softmax of today.
    """
    pool = Pool()
    try:
        own = own_optimizer(rung.recipe.optimizer)
        if own is not None:
            pool.call(own.load)  # before anything is recorded: it makes tables of real values
        full = earlier_estimate(preset, rung, config, pool=pool).to_mapping()
        zeroed_only = earlier_estimate(preset, rung, config, pool=pool, keep_scores=False).to_mapping()
    finally:
        pool.close()
    return {
        **{name: full[name] for name in KEPT_THEN},
        "zeroed_only_total_bytes": zeroed_only["total_bytes"],
    }


def earlier_estimate(preset: Preset, rung: Rung, config: Path, *, pool: Pool, keep_scores: bool = True) -> Estimate:
    """Predicts a rung with the step of that time.

    Args:
        preset: The study.
        rung: One of its rungs.
        config: File with the model's config.
        pool: A worker that has loaded what the optimizer needs.
        keep_scores: Whether softmax keeps its input.

    Returns:
        The estimate.
    """
    recipe, workload = rung.recipe, rung.workload
    build = maker(str(config), {}, None, preset.task)
    built: list[Any] = []

    def model() -> Any:
        made: Any = build()
        made.set_attn_implementation("eager")
        if recipe.checkpoint == "all":
            made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        built.append(made)
        return made

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        if recipe.optimizer == "adafactor":
            return EarlierAdafactor(parameters)
        weights = list(parameters)
        return make_optimizer(
            recipe, workload, optimizer_groups(built[0], weights, recipe, workload), weights[0].device
        )

    size = workload.batch_size or 1
    step = EarlierStep(recipe.microbatch_size or size, recipe.precision == "16-mixed", keep_scores)
    batch = {"input_ids": ((size, preset.seq_len), torch.long), "labels": ((size,), torch.long)}
    card = dataclasses.replace(device_named(preset.card), context=CONTEXT_OF_THEN)
    return snugfit.estimate(model, batch, step=step, optimizer=optimizer, device=card, pool=pool)
