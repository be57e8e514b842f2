"""The published ViT-L/16 memory ladder, simulated: every rung as a hand-written step in the order of its source.

Source: `rasbt/pytorch-memory-optim` and its article: ViT-L/16 fine-tuned on CIFAR-10 at 224 x 224 (10 classes), Adam, one
GPU, `torch.cuda.max_memory_reserved() / 1e9`, torch 2.1 nightly. In that script `zero_grad` stands between forward and
backward, so the gradients of the step before are alive during the forward pass.

Nothing here is fitted: the steps are run on fake tensors, and the caching allocator is replayed without a limit.

    python benchmarks/published.py        (writes benchmarks/results/published.json)
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from snugfit.recording.replay import replay
from snugfit.simulator.own_step import simulate_step
from snugfit.workers.pool import Pool

RESULTS = Path(__file__).parent / "results" / "published.json"


def vit() -> torch.nn.Module:
    import torchvision

    return torchvision.models.vit_l_16(num_classes=10)


def half_vit() -> torch.nn.Module:
    return vit().to(torch.bfloat16)


def card() -> str:
    """Returns where a step runs; in a simulation of a card that is the card."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def plain(model: Any, optimizer: Any, batch: Any) -> None:
    features, targets = batch
    features, targets = features.to(card()), targets.to(card())
    logits = model(features)
    loss = F.cross_entropy(logits, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Mixed:
    """The step of Fabric's `16-mixed`: autocast around the forward pass, with a loss scaler that stays."""

    def __init__(self) -> None:
        self.scaler: Any = None

    def __call__(self, model: Any, optimizer: Any, batch: Any) -> None:
        self.scaler = self.scaler or torch.amp.GradScaler(card())
        features, targets = batch
        features, targets = features.to(card()), targets.to(card())
        with torch.autocast(card(), dtype=torch.float16):
            logits = model(features)
        loss = F.cross_entropy(logits.float(), targets)
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()


def true_bf16(model: Any, optimizer: Any, batch: Any) -> None:
    features, targets = batch
    plain(model, optimizer, (features.to(card()).to(torch.bfloat16), targets))


def accumulating(model: Any, optimizer: Any, batch: Any) -> None:
    """Batches of 4, a step every 4 of them; gradients are dropped after the step."""
    features, targets = batch
    for start in range(0, 16, 4):
        inputs = features[start : start + 4].to(card()).to(torch.bfloat16)
        loss = F.cross_entropy(model(inputs), targets[start : start + 4].to(card()))
        (loss / 4).backward()
    optimizer.step()
    optimizer.zero_grad()


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=5e-5)


class EarlierAdam(torch.optim.Optimizer):
    """Adam as torch 2.1 wrote its multi-tensor update: `denom` is a new list beside `exp_avg_sq_sqrt`.

    Source: `torch/optim/adam.py` of that release, _multi_tensor_adam. Later releases add eps in place.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 5e-5})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        weights = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["exp_avg"] = torch.zeros_like(weight)
                self.state[weight]["exp_avg_sq"] = torch.zeros_like(weight)
        gradients = [p.grad for p in weights]
        averages = [self.state[p]["exp_avg"] for p in weights]
        squares = [self.state[p]["exp_avg_sq"] for p in weights]
        torch._foreach_lerp_(averages, gradients, 0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
        exp_avg_sq_sqrt = torch._foreach_sqrt(squares)
        torch._foreach_div_(exp_avg_sq_sqrt, [0.03] * len(weights))
        denom = torch._foreach_add(exp_avg_sq_sqrt, 1e-8)
        torch._foreach_addcdiv_(weights, averages, denom, [-5e-4] * len(weights))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=5e-5)


@dataclasses.dataclass(frozen=True)
class Rung:
    name: str
    published_gb: float
    """Reserved memory as the source printed it."""
    published_minutes: float | None
    """Minutes of the whole run as the source printed them."""
    model: Callable[[], torch.nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    step: Callable[..., None]
    batch_size: int = 64


RUNGS = (
    Rung("fp32", 26.79, 17.94, vit, adam, plain),
    Rung("16-mixed", 18.21, 3.45, vit, adam, Mixed()),
    Rung("bf16-true", 13.82, 2.88, half_vit, adam, true_bf16),
    Rung("bf16-true, batch 16", 5.69, 3.96, half_vit, adam, true_bf16, 16),
    Rung("bf16-true, batch 4 x 4 accumulation", 3.91, 12.91, half_vit, adam, accumulating, 16),
    Rung("the same with Adam of torch 2.1", 3.91, 12.91, half_vit, EarlierAdam, accumulating, 16),
    Rung("the same with SGD", 2.02, 12.89, half_vit, sgd, accumulating, 16),
)


def main() -> dict[str, Any]:
    import torchvision

    rows = []
    pool = Pool()
    for rung in RUNGS:
        size = rung.batch_size
        batch = (
            torch.empty(size, 3, 224, 224, device="meta"),
            torch.empty(size, dtype=torch.long, device="meta"),
        )
        started = time.perf_counter()
        recording = simulate_step(rung.step, rung.model, rung.optimizer, batch, batch_on="host", steps=3, pool=pool)
        seconds = time.perf_counter() - started
        result = replay(recording.trace)
        reserved = result.peak_reserved_bytes / 1e9
        rows.append(
            {
                "name": rung.name,
                "published_reserved_gb": rung.published_gb,
                "simulated_reserved_gb": round(reserved, 3),
                "difference_percent": round(100 * (reserved / rung.published_gb - 1), 2),
                "simulated_allocated_gb": round(result.peak_allocated_bytes / 1e9, 3),
                "seconds": round(seconds, 2),
                "answered": recording.answered,
            }
        )
        print(
            f"{rung.name:38} published {rung.published_gb:6.2f} GB   simulated {reserved:6.2f} GB   "
            f"{100 * (reserved / rung.published_gb - 1):+6.2f} %   {seconds:5.2f} s",
            flush=True,
        )
    pool.close()
    document = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "published_torch": "2.1 nightly",
        "rungs": rows,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return document


if __name__ == "__main__":
    main()
