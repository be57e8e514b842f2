"""The training steps behind published times, written as those who measured them did: what `published_times` records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.squad_step import squad_step

Step = tuple[Callable[..., Any], Callable[[], torch.nn.Module], Callable[[Any], Any], Any]
"""A step, what builds its model, what makes its optimizer, and a batch."""


def timms(row: dict[str, Any]) -> Step:
    """Returns timm's training step of a row: attention made of its operators, gradients kept and zeroed."""
    layout = torch.channels_last if row["channels_last"] else torch.contiguous_format

    def build() -> torch.nn.Module:
        import timm
        from timm.layers import set_fused_attn

        set_fused_attn(False)
        model: torch.nn.Module = timm.create_model(row["model"]).train()
        return model.to(memory_format=layout)

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(batch[0])
            output = output[0] if isinstance(output, list | tuple) else output
            F.cross_entropy(output, batch[1]).backward()
        optimizer.step()

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        kept = list(parameters)
        optimizer = torch.optim.SGD(kept, lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
        for parameter in kept:  # as after a first step
            parameter.grad = torch.zeros_like(parameter)
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer

    size = row["image_size"]
    images = torch.empty((row["batch"], 3, size, size), device="meta").to(memory_format=layout)
    return step, build, sgd, (images, torch.empty(row["batch"], dtype=torch.long, device="meta"))


def lambdas(row: dict[str, Any]) -> Step:
    """Returns the step of NVIDIA's DeepLearningExamples that Lambda ran."""
    return _resnet(row) if row["model"] == "resnet50" else squad_step(row)


def _resnet(row: dict[str, Any]) -> Step:
    """ResNet-50 v1.5 with channels first; `tf32` is what NGC's containers set, for convolutions and products alike."""

    def build() -> torch.nn.Module:
        from torchvision.models import resnet50

        torch.set_float32_matmul_precision("high" if row["precision"] == "tf32" else "highest")
        return resnet50().train()  # type: ignore[no-any-return]

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        with torch.autocast("cuda", dtype=torch.float16, enabled=row["precision"] == "fp16"):
            loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        kept = list(parameters)
        optimizer = torch.optim.SGD(kept, lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=True)
        for parameter in kept:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer

    images = torch.empty((row["batch"], 3, 224, 224), device="meta")
    return step, build, sgd, (images, torch.empty(row["batch"], dtype=torch.long, device="meta"))
