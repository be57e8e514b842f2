"""The model of `snugfit verify` where none is named, and of the check at the end of `snugfit calibrate`."""

import torch
from torch import nn

_WIDTH, _PATCH, _BLOCKS = 128, 4, 4


class ViTBlock(nn.Module):
    """A block of a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.mix = nn.MultiheadAttention(_WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Goes through it."""
        normed = self.before(tokens)
        tokens = tokens + self.mix(normed, normed, normed, need_weights=False)[0]
        return torch.add(tokens, self.mlp(self.between(tokens)))


class Stock(nn.Module):
    """Two convolutions, four blocks and a head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, _WIDTH, _PATCH, _PATCH)
        )
        self.blocks = nn.Sequential(*[ViTBlock() for _ in range(_BLOCKS)])
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Gives scores."""
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        scores: torch.Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return scores


def model(num_classes: int = 10) -> nn.Module:
    """Builds it.

    Args:
        num_classes: Outputs of the head.

    Returns:
        The model; it takes float images `[B, 3, 32, 32]` and gives scores `[B, num_classes]`.
    """
    return Stock(num_classes)
