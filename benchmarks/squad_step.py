"""The training step of BERT for SQuAD that Lambda ran: NVIDIA's DeepLearningExamples, PyTorch/LanguageModeling/BERT.

Written after `modeling.py`, `run_squad.py` and `optimization.py` of that repository, as they stood in September 2020 (what
NGC's containers of that autumn hold, torch 1.7) and since March 2022:

- Tokens come first since then, (sequence, batch, width), so that attention's products read what the linear layers wrote;
  before, heads were brought forward by copies, and a bias was added in a pass of its own before GELU.
- A mask is added to the scores, made of the lengths. Three of five inputs are as wide as the sequence.
- float16 is apex's O2: a float16 model, float32 masters. Gradients are copied to the masters and unscaled, their norm is
  read by the host, they are scaled, FusedAdam steps, and the masters are copied back.
- float32 is `BertAdam`: each parameter's gradient is clipped by itself and then twelve elementwise operators update it. Up
  to torch 1.9 `clip_grad_norm_` asked the host whether to clip, which makes it wait for each parameter.
- With torchrun one process is wrapped in apex's DistributedDataParallel: gradients are flattened, divided and copied back.
- The loss is read at the end of each step, and the next batch is collated after that: nothing is issued ahead.

Where the host reads a value this step copies it (`.reshape(1).cpu()`), which waits for the card as `.item()` does and is
seen by the clock.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

LENGTH, VOCABULARY = 384, 30528
COLLATE_SECONDS = 10e-6
"""Host time of a sample in `TensorDataset` and `default_collate`, five tensors each: 8.7 to 13 microseconds on one core of
an AMD EPYC (torch 2.14)."""
SIZES = {"bert-base": (768, 12, 12), "bert-large": (1024, 24, 16)}
"""Model -> width, layers, heads."""


class Layer(nn.Module):
    """One layer of the encoder."""

    def __init__(self, width: int, heads: int, batch_first: bool) -> None:
        super().__init__()
        self.heads, self.batch_first = heads, batch_first
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        tokens = self.first(self.dropout(self.out(self.attention(tokens, mask))) + tokens)
        if self.batch_first:
            inner = F.gelu(F.linear(tokens, self.up.weight) + self.up.bias)
        else:
            inner = F.gelu(self.up(tokens), approximate="tanh")
        return self.second(self.dropout(self.down(inner)) + tokens)  # type: ignore[no-any-return]

    def attention(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(tokens), self.key(tokens), self.value(tokens)
        size = tokens.shape[-1] // self.heads
        if self.batch_first:
            batch, length, _ = tokens.shape
            query, key, value = (one.view(batch, length, self.heads, size) for one in (query, key, value))
            scores = query.permute(0, 2, 1, 3) @ key.permute(0, 2, 3, 1)
            shares = self.dropout(F.softmax(scores / math.sqrt(size) + mask, -1))
            return (shares @ value.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).reshape(tokens.shape)
        length, batch, _ = tokens.shape
        query, key, value = (one.view(length, batch * self.heads, size) for one in (query, key, value))
        scores = torch.bmm(query.transpose(0, 1), key.permute(1, 2, 0)).view(batch, self.heads, length, length)
        shares = self.dropout(F.softmax(scores / math.sqrt(size) + mask, -1)).view(-1, length, length)
        return torch.bmm(shares, value.transpose(0, 1)).transpose(0, 1).contiguous().view(tokens.shape)


class Squad(nn.Module):
    """BERT with two scores for each token: where an answer begins and where it ends."""

    def __init__(self, model: str, batch_first: bool) -> None:
        super().__init__()
        width, layers, heads = SIZES[model]
        self.batch_first = batch_first
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (VOCABULARY, 512, 2))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer(width, heads, batch_first) for _ in range(layers))
        self.pooler, self.scores = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        added = (1.0 - mask[:, None, None].to(self.words.weight.dtype)) * -10000.0
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0).expand_as(ids)
        tokens = self.dropout(self.norm(self.words(ids) + self.places(places) + self.kinds(kinds)))
        tokens = tokens if self.batch_first else tokens.transpose(0, 1)
        for layer in self.layers:
            tokens = layer(tokens, added)
        tokens = tokens if self.batch_first else tokens.transpose(0, 1).contiguous()
        torch.tanh(self.pooler(tokens[:, 0]))
        return [one.squeeze(-1) for one in self.scores(tokens).split(1, -1)]


def squad_step(row: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Returns the step of a row, as `published_steps` wants it."""
    half, then = row["precision"] == "fp16", tuple(map(int, row["torch"].split(".")))
    apex_ddp = then >= (2, 0)

    def build() -> nn.Module:
        torch.backends.cuda.matmul.allow_tf32 = not half
        model = Squad(row["model"], batch_first=then < (1, 12)).train()
        return model.half() if half else model

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        ids, kinds, mask, begins, ends = (one.to("cuda") for one in batch)
        scores = model(ids, kinds, mask)
        losses = [F.cross_entropy(one, place.clamp_(0, LENGTH), ignore_index=LENGTH)
                  for one, place in zip(scores, (begins, ends), strict=True)]  # fmt: skip
        loss = (losses[0] + losses[1]) / 2
        (loss.float() * 2.0 if half else loss).backward()
        parameters = [one for one in model.parameters() if one.grad is not None]  # the pooler's are not used
        gradients = [one.grad for one in parameters]
        if apex_ddp:
            flat = [torch.empty_like(one) for one in gradients]
            torch._foreach_copy_(flat, gradients)
            torch._foreach_div_(flat, 1.0)
            torch._foreach_copy_(gradients, flat)
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        loss.reshape(1).cpu()

    ids, place = torch.empty((row["batch"], LENGTH), dtype=torch.long), torch.empty(row["batch"], dtype=torch.long)
    return (
        step,
        build,
        _Apex if half else functools.partial(_BertAdam, then=then),
        (ids, ids.clone(), ids.clone(), place, place.clone()),
    )


def _clip_together(gradients: list[torch.Tensor]) -> None:
    """Reads the norm of all gradients and scales them, as `GradientClipper` does with apex's kernels."""
    torch.stack(torch._foreach_norm(gradients)).norm().reshape(1).cpu()
    torch._foreach_mul_(gradients, 0.5)


class _Apex(torch.optim.Optimizer):
    """float32 masters, and their update by FusedAdam."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(list(parameters), {})
        for one in self.param_groups[0]["params"]:
            master = one.detach().float()
            self.state[one] = {"master": master, "mean": torch.zeros_like(master), "square": torch.zeros_like(master)}

    def step(self, closure: Any = None) -> None:
        """Unscales, clips and updates."""
        parameters = [one for one in self.param_groups[0]["params"] if one.grad is not None]
        masters, means, squares = (list(one) for one in zip(*(self.state[p].values() for p in parameters), strict=True))
        gradients = [torch.empty_like(one) for one in masters]
        torch._foreach_copy_(gradients, [one.grad for one in parameters])
        gradients[-1].sum().reshape(1).cpu()  # the flag of an overflow
        _clip_together(gradients)
        counts = [torch.zeros((), device=masters[0].device)] * len(masters)
        torch._fused_adam_(
            masters, gradients, means, squares, [], counts,
            lr=0.0, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
        torch._foreach_copy_([one.data for one in parameters], masters)


class _BertAdam(torch.optim.Optimizer):
    """One parameter after the other, and each gradient clipped by itself."""

    def __init__(self, parameters: Any, then: tuple[int, ...]) -> None:
        super().__init__(list(parameters), {})
        self.then = then
        for one in self.param_groups[0]["params"]:
            self.state[one] = {"mean": torch.zeros_like(one), "square": torch.zeros_like(one)}

    def step(self, closure: Any = None) -> None:
        """Clips and updates."""
        parameters = [one for one in self.param_groups[0]["params"] if one.grad is not None]
        _clip_together([one.grad for one in parameters])
        for parameter in parameters:
            gradient, (mean, square) = parameter.grad, self.state[parameter].values()
            coefficient = 1.0 / (torch.stack([gradient.norm()]).norm() + 1e-6)
            if self.then < (1, 10):
                coefficient.reshape(1).cpu()
            gradient.mul_(coefficient.clamp(max=1.0))
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            update = mean / (square.sqrt() + 1e-6)
            if parameter.dim() > 1:
                update += 0.01 * parameter.data
            parameter.data.add_(-(0.1 * update))
