"""What the two scripts and `snugfit train` share: the model and the data."""

import torch
from torch import nn

BATCH, STEPS, LR = 32, 8, 1e-3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(self.norm(x))


class Net(nn.Module):
    def __init__(self, width=256, blocks=6, num_classes=10):
        super().__init__()
        self.stem = nn.Linear(48, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.stem(x.unflatten(1, (16, 48)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def build():
    torch.manual_seed(3)
    return Net().double()


def data():
    """As many samples as a batch has, so that the order in which they are read changes no update."""
    draw = torch.Generator().manual_seed(5)
    return torch.randn(BATCH, 768, generator=draw, dtype=torch.float64), torch.randint(0, 10, (BATCH,), generator=draw)
