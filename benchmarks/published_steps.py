"""The training steps behind published times, written as those who measured them did: what `published_times` records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

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
    return _resnet(row) if row["model"] == "resnet50" else _bert(row)


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


def _bert(row: dict[str, Any]) -> Step:
    """BERT for SQuAD at 384 tokens: float16 with float32 masters and a fused Adam, or TF32 with a looped one."""
    half = row["precision"] == "fp16"

    def build() -> torch.nn.Module:
        from transformers import BertConfig, BertForQuestionAnswering

        torch.set_float32_matmul_precision("highest" if half else "high")
        large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        sizes = large if "large" in row["model"] else {}
        model = BertForQuestionAnswering(BertConfig(attn_implementation="eager", **sizes)).train()
        return model.half() if half else model  # type: ignore[no-any-return]

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        ids, places = batch
        loss = model(input_ids=ids, token_type_ids=ids, start_positions=places, end_positions=places).loss
        loss.backward()
        if half:
            gradients = [parameter.grad.float() for parameter in model.parameters()]
            for master, gradient in zip(optimizer.masters, gradients, strict=True):
                master.grad = gradient
        optimizer.step()
        if half:
            torch._foreach_copy_([p.data for p in model.parameters()], [master.data for master in optimizer.masters])
        for parameter in model.parameters():
            parameter.grad = None

    def adam(parameters: Any) -> torch.optim.Optimizer:
        kept = [parameter.detach().float().requires_grad_() for parameter in parameters] if half else list(parameters)
        optimizer = torch.optim.Adam(kept, lr=1e-5, foreach=half)
        for parameter in kept:
            optimizer.state[parameter] = {
                "step": torch.tensor(1.0), "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }  # fmt: skip
        optimizer.masters = kept  # type: ignore[attr-defined]
        return optimizer

    ids = torch.empty((row["batch"], 384), dtype=torch.long, device="meta")
    return step, build, adam, (ids, torch.empty(row["batch"], dtype=torch.long, device="meta"))
