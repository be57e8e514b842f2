"""Equations, graphs, recommendations, several tasks, batches of a class of their own, experts by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo_user_code.case import Case


class HeatEquation(nn.Module):
    """A network whose second derivatives make the loss."""

    def __init__(self, size: int = 128):
        super().__init__()
        self.u = nn.Sequential(nn.Linear(2, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 1))

    def forward(self, points: Tensor) -> Tensor:
        points = points.requires_grad_(True)
        u = self.u(points)
        slope = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        u_x, u_t = slope[:, :1], slope[:, 1:]
        u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, :1]
        return ((u_t - 0.1 * u_xx) ** 2).mean()


def pinn() -> Case:
    return Case(
        name="pinn",
        style="second derivatives by autograd.grad; the model returns its loss",
        build=HeatEquation,
        batch=lambda: torch.rand(512, 2),
    )


class Recompute(torch.autograd.Function):
    """A checkpoint written by hand: forward without a graph, backward runs it again."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            y = ctx.block(x)
        found = torch.autograd.grad(y, (x, *ctx.block.parameters()), grad)
        return (None, *found)


class Recomputed(nn.Module):
    """Blocks of which only the inputs are kept."""

    def __init__(self, size: int = 128, blocks: int = 4):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
            for _ in range(blocks)
        )
        self.out = nn.Linear(size, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + Recompute.apply(block, x, *block.parameters())
        return self.out(x)


def own_function() -> Case:
    return Case(
        name="own checkpoint",
        style="a torch.autograd.Function of the user's",
        build=Recomputed,
        batch=lambda: (torch.randn(256, 128), torch.arange(256) % 5),
        loss=lambda output, batch: F.cross_entropy(output, batch[1]),
    )


class Recommender(nn.Module):
    """Bags of categories and plain numbers, whose pairwise products go on."""

    def __init__(self, rows: int = 2000, size: int = 32, tables: int = 4):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, size, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, size))
        self.top = nn.Sequential(nn.Linear(size + tables * (tables + 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        low = self.bottom(dense)
        parts = torch.stack([low, *(bag(sparse[:, at]) for at, bag in enumerate(self.bags))], dim=1)
        products = parts @ parts.transpose(1, 2)
        row, column = torch.tril_indices(parts.shape[1], parts.shape[1], offset=-1, device=dense.device)
        return self.top(torch.cat([low, products[:, row, column]], dim=1)).squeeze(1)


def recommender() -> Case:
    return Case(
        name="dlrm-like",
        style="embedding bags, indexed pairs",
        build=Recommender,
        batch=lambda: (torch.randn(64, 13), torch.arange(64 * 4 * 3).view(64, 4, 3) * 7 % 2000, torch.arange(64) % 2),
        forward=lambda model, batch: model(batch[0], batch[1]),
        loss=lambda output, batch: F.binary_cross_entropy_with_logits(output, batch[2].float()),
    )


class GraphNet(nn.Module):
    """Every node takes the mean of its neighbours, by index_add."""

    def __init__(self, size: int = 64):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, size), nn.Linear(size, size), nn.Linear(size, 4)])

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        count = nodes.new_zeros(len(nodes)).index_add(0, target, torch.ones_like(target, dtype=nodes.dtype))
        for at, layer in enumerate(self.layers):
            message = layer(nodes)
            total = torch.zeros_like(message).index_add_(0, target, message[source])
            nodes = total / count.clamp(min=1)[:, None] + message
            nodes = nodes if at == len(self.layers) - 1 else F.relu(nodes)
        return nodes


def graph() -> Case:
    def batch() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(300, 16), torch.arange(2 * 900).view(2, 900) * 11 % 300, torch.arange(300) % 4

    return Case(
        name="graph convolution",
        style="index_add over edges; one graph is the batch",
        build=GraphNet,
        batch=batch,
        forward=lambda model, batch: model(batch[0], batch[1]),
        loss=lambda output, batch: F.cross_entropy(output, batch[2]),
        sums_over_samples=False,
    )


class TwoHeads(nn.Module):
    """One trunk, a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(256, 6), "size": nn.Linear(256, 1)})
        self.uncertainty = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = self.trunk(x)
        return {name: head(found) for name, head in self.heads.items()} | {"uncertainty": self.uncertainty}


def weighed(output: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
    losses = torch.stack(
        [F.cross_entropy(output["kind"], batch["kind"]), F.mse_loss(output["size"].squeeze(1), batch["size"])]
    )
    return (losses * (-output["uncertainty"]).exp() + output["uncertainty"]).sum()


def multi_task() -> Case:
    return Case(
        name="multi-task",
        style="a dict batch and a dict output, losses weighed by parameters",
        build=TwoHeads,
        batch=lambda: {"x": torch.randn(96, 40), "kind": torch.arange(96) % 6, "size": torch.rand(96)},
        forward=lambda model, batch: model(batch["x"]),
        loss=weighed,
    )


@dataclasses.dataclass
class Sample:
    """A batch of a class of the user's own."""

    values: Tensor
    mask: Tensor
    label: Tensor


class MaskedMean(nn.Module):
    """Means over what a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(24, 96), nn.GELU())
        self.out = nn.Linear(96, 5)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        kept = self.inside(values) * mask[..., None]
        return self.out(kept.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def dataclass_batch() -> Case:
    return Case(
        name="dataclass batch",
        style="a batch that is a dataclass",
        build=MaskedMean,
        batch=lambda: Sample(torch.randn(32, 20, 24), (torch.rand(32, 20) > 0.3).float(), torch.arange(32) % 5),
        forward=lambda model, batch: model(batch.values, batch.mask),
        loss=lambda output, batch: F.cross_entropy(output, batch.label),
    )


class Experts(nn.Module):
    """Every token goes to two of four experts, each with room for so many tokens."""

    def __init__(self, size: int = 48, experts: int = 4, top: int = 2, room: float = 1.25):
        super().__init__()
        self.top, self.room = top, room
        self.router = nn.Linear(size, experts)
        self.up = nn.Parameter(torch.randn(experts, size, 4 * size) * 0.05)
        self.down = nn.Parameter(torch.randn(experts, 4 * size, size) * 0.05)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        share = self.router(tokens).softmax(-1)
        gate, chosen = share.topk(self.top, dim=-1)
        places = int(self.room * self.top * len(tokens) / share.shape[1])
        picked = F.one_hot(chosen, share.shape[1]).flatten(0, 1)
        place = (picked.cumsum(0) * picked).sum(-1) - 1
        fits = place < places
        slot = chosen.flatten() * places + place.clamp(max=places - 1)
        sent = tokens.repeat_interleave(self.top, 0) * fits[:, None]
        room = tokens.new_zeros(share.shape[1] * places, x.shape[-1]).index_add(0, slot, sent)
        out = torch.bmm(F.gelu(torch.bmm(room.view(share.shape[1], places, -1), self.up)), self.down).flatten(0, 1)
        back = out[slot] * (gate.flatten() * fits)[:, None]
        return x + back.view(len(tokens), self.top, -1).sum(1).view_as(x)


def experts() -> Case:
    return Case(
        name="experts by hand",
        style="top-k routing with a fixed capacity",
        build=lambda: nn.Sequential(nn.Linear(12, 48), Experts(), Experts(), nn.Linear(48, 3)),
        batch=lambda: (torch.randn(16, 10, 12), torch.arange(160).view(16, 10) % 3),
        loss=lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch[1].flatten()),
        sums_over_samples=False,  # who finds room depends on the batch
    )


class HashExperts(nn.Module):
    """Each token's expert follows from its word (hash layers); its tokens are picked out of the batch."""

    def __init__(self, words: int = 400, size: int = 48, experts: int = 4):
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)) for _ in range(experts)
        )
        self.out = nn.Linear(size, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).flatten(0, 1)
        chosen = ids.flatten() % len(self.experts)
        out = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == at)
            out = out.index_add(0, rows, expert(x[rows]))
        return self.out(x + out)


def hash_experts() -> Case:
    return Case(
        name="experts by selection",
        style="torch.where picks each expert's tokens, so sizes depend on values",
        build=HashExperts,
        batch=lambda: (torch.arange(16 * 20).view(16, 20) % 400, torch.arange(320).view(16, 20) % 3),
        loss=lambda output, batch: F.cross_entropy(output, batch[1].flatten()),
        assume={"nonzero": 0.25},
    )
