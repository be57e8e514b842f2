"""Published times of more than timm's training: its inference, torchvision's models at batch 12, and language models.

- **timm's inference** (results/benchmark-infer-amp-*.csv): `model.eval()`, float16 autocast, no gradients, on RTX 3090, 4090
  and 5090. There are thousands of rows; of those of today's models with the newest torch, every `EVERY`-th by name counts.
- **torchvision at batch 12** (github.com/ryujaehun/pytorch-gpu-benchmark): gradients zeroed, an unpinned batch copied,
  forward and backward, no update, on an A100 with NGC 20.10. float64 rows are left out.
- **Language models** (github.com/sitar-lab/NeuSight): forward, or forward and backward, of Hugging Face's BERT, GPT-2 (and
  GPT-3 of its code) and OPT in float32 without TF32. Fused ones and those on several GPUs are left out. The forward pass
  includes what `cudaMalloc` takes, for the cache was emptied before.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

EVERY = 50
INFERENCE = {
    "NVIDIA GeForce RTX 3090 24GB": "rtx-3090",
    "NVIDIA GeForce RTX 4090 24GB": "rtx-4090",
    "NVIDIA GeForce RTX 5090 32GB": "rtx-5090",
}
LANGUAGE = {
    "NVIDIA H100 80GB HBM3": "h100-80gb",
    "NVIDIA L4": "l4-24gb",
    "Tesla T4": "t4-16gb",
    "Tesla V100-PCIE-32GB": "v100-32gb",
    "NVIDIA A100-PCIE-40GB": "a100-40gb",
}
"""Card as the source names it -> as we do. The PCIe cards differ from ours in their clock's limit, not in their chip."""
_CLASSES = {"BertLMHeadModel": "BertConfig", "GPT2LMHeadModel": "GPT2Config", "OPTForCausalLM": "OPTConfig"}


def inference_rows(rows: Iterator[dict[str, Any]], known: dict[str, int]) -> list[dict[str, Any]]:
    """Returns rows of timm's inference; `known` has the models of today's timm and the size of their images."""
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["card"] in INFERENCE and row["precision"] == "amp" and not row["compile"]:
            name = row["model"].partition(".")[0]
            key = (name, INFERENCE[row["card"]], row["channels_last"], row["batch"])
            fits = known.get(name) == row["image_size"]
            if fits and (key not in newest or _version(row) > _version(newest[key])):
                newest[key] = row
    return [
        {**newest[key], "model": name, "card": card, "kind": "inference",
         "key": f"inference_{name}_{batch}_{int(last)}_{card}"}
        for key in sorted(newest)[::EVERY]
        for name, card, last, batch in [key]
    ]  # fmt: skip


def torchvision_rows(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows of torchvision's models at batch 12."""
    found = []
    for row in rows:
        wanted = row["source"] == "ryujaehun/pytorch-gpu-benchmark" and row["n_gpus"] == 1 and row["batch"] == 12
        if wanted and row["card"] == "NVIDIA A100-SXM4-40GB" and row["precision"] != "fp64":
            precision, name = row["precision"][:4], row["model"].split()[1]
            found.append(
                {**row, "model": name, "card": "a100-40gb", "kind": "torchvision", "torch": "1.7", "precision": precision,
                 "key": f"torchvision_{name}_{precision}"}
            )  # fmt: skip
    return found


def language_rows(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows of language models."""
    found = []
    for row in rows:
        if row["source"] != "sitar-lab/NeuSight" or row["compile"] or row["card"] not in LANGUAGE:
            continue
        _, name, text = row["model"].split(" ", 2)
        given = json.loads(text)
        if row["n_gpus"] == 1 and given["architectures"][0] in _CLASSES:
            card, trains = LANGUAGE[row["card"]], row["scope"] == "forward_backward_only"
            found.append(
                {**row, "model": name, "given": given, "card": card, "kind": "language", "torch": "2.1", "trains": trains,
                 "key": f"language_{name}_{row['batch']}_{row['seq_len']}_{int(trains)}_{card}"}
            )  # fmt: skip
    return found


def _version(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, row["torch"].split(".")))


def _nothing_kept(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters))


def inference(row: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the step of a row of timm's inference."""
    layout = torch.channels_last if row["channels_last"] else torch.contiguous_format

    def build() -> nn.Module:
        import timm
        from timm.layers import set_fused_attn

        set_fused_attn(True)
        model: nn.Module = timm.create_model(row["model"]).eval()
        return model.to(memory_format=layout)

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            model(batch[0])

    size = row["image_size"]
    images = torch.empty((row["batch"], 3, size, size), device="meta").to(memory_format=layout)
    return step, build, _nothing_kept, (images,)


def vision(row: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the step of a row of torchvision's models."""
    half = row["precision"] == "fp16"

    def build() -> nn.Module:
        import torchvision

        torch.backends.cuda.matmul.allow_tf32 = True
        extra = {"init_weights": False} if "inception" in row["model"] or "googlenet" in row["model"] else {}
        model: nn.Module = getattr(torchvision.models, row["model"])(**extra).train()
        return model.half() if half else model

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        output = model(batch[0].to("cuda"))
        output = output[0] if isinstance(output, tuple) else output
        F.cross_entropy(output, batch[1].to("cuda")).backward()

    images = torch.empty((12, 3, row["image_size"], row["image_size"]), dtype=torch.float16 if half else torch.float32)
    return step, build, _nothing_kept, (images, torch.empty(12, dtype=torch.long))


def language(row: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the step of a row of language models."""
    given = dict(row["given"])
    name = given.pop("architectures")[0]

    def build() -> nn.Module:
        import transformers

        torch.backends.cuda.matmul.allow_tf32 = False
        longest = {"GPT2LMHeadModel": "n_positions"}.get(name, "max_position_embeddings")
        settings = {**given, longest: max(row["seq_len"], 512), "use_cache": False}
        extra = {"is_decoder": True} if name == "BertLMHeadModel" else {}
        config = getattr(transformers, _CLASSES[name])(**settings, **extra, attn_implementation="eager")
        model: nn.Module = getattr(transformers, name)(config).train()
        return model

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        with contextlib.nullcontext() if row["trains"] else torch.no_grad():
            logits = model(input_ids=batch[0]).logits
        if row["trains"]:
            logits.backward(torch.empty_like(logits))

    return step, build, _nothing_kept, (torch.empty((row["batch"], row["seq_len"]), dtype=torch.long, device="meta"),)
