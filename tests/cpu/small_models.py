"""Small models on which every technique is held against plain training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import VisionTransformer


class _MLPBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 3 * width), nn.ReLU(), nn.Linear(3 * width, width))

    def forward(self, x):
        return x + self.layers(self.norm(x))


class MLP(nn.Module):
    """Residual blocks on [samples, 12] inputs."""

    input_shape = (12,)

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.blocks = nn.ModuleList(_MLPBlock(width) for _ in range(3))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _ConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.layers(x))


class CNN(nn.Module):
    """Residual convolutions with batch norm on [samples, 3, 8, 8] inputs."""

    input_shape = (3, 8, 8)

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.stages = nn.Sequential(*(_ConvBlock(width) for _ in range(3)))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class ViT(VisionTransformer):
    """torchvision's transformer with dropout on [samples, 3, 8, 8] inputs."""

    input_shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__(
            image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5,
            dropout=0.1, attention_dropout=0.1,
        )  # fmt: skip
        nn.init.normal_(self.heads.head.weight, std=0.05)  # torchvision's zeros give the trunk no gradient at first


class Tied(nn.Module):
    """A bag of tokens whose embedding is also the output layer, and whose blocks share their middle, on [samples, 6]."""

    input_shape = (6,)

    def __init__(self, width: int = 16, tokens: int = 11) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(_MLPBlock(width) for _ in range(3))
        self.blocks[2] = self.blocks[0]
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x).mean(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


MODELS = {"mlp": MLP, "cnn": CNN, "vit": ViT, "tied": Tied}


def make_model(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Builds a model with the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return MODELS[name]().to(dtype)


def make_batches(name: str, samples: int, count: int, dtype: torch.dtype = torch.float64):
    """Makes batches (inputs, labels), the same every time."""
    generator = torch.Generator().manual_seed(11)
    batches = []
    for _ in range(count):
        shape = (samples, *MODELS[name].input_shape)
        inputs = (
            torch.randint(0, 11, shape, generator=generator)
            if name == "tied"
            else torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        )
        batches.append((inputs, torch.randint(0, 5, (samples,), generator=generator)))
    return batches


def cross_entropy(output, batch):
    """Mean over samples."""
    return F.cross_entropy(output, batch[1])
