"""U-Net: each pixel of a picture gets a class, from what is around it at five resolutions.

    snugfit plan examples/segmentation_unet.py:build --image-size 512 --batch-size 16 --device rtx-3060

As people write it today: padded convolutions with batch norm, so that what comes out is as large as what went in.

Source: Ronneberger et al., U-Net, 2015 (arXiv:1505.04597).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions, each with its norm."""
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width: int, levels: int, num_classes: int):
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(twice(*pair) for pair in zip([3, *widths], widths, strict=False))
        backwards = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.larger = nn.ModuleList(nn.ConvTranspose2d(*pair, 2, stride=2) for pair in backwards)
        self.up = nn.ModuleList(twice(*pair) for pair in backwards)
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Returns scores `[B, classes, S, S]`; with labels `[B, S, S]`, the loss.

        `images`: `[B, 3, S, S]`.
        """
        x, kept = self.down[0](images), []
        for level in list(self.down)[1:]:
            kept.append(x)
            x = level(F.max_pool2d(x, 2))
        for larger, level in zip(self.larger, self.up, strict=True):
            x = level(torch.cat([kept.pop(), larger(x)], dim=1))
        scores = self.head(x)
        return scores if labels is None else F.cross_entropy(scores, labels)

    def training_batch(self, batch_size: int, image_size: int = 512) -> dict[str, Tensor]:
        """What a step takes."""
        return {
            "images": torch.rand(batch_size, 3, image_size, image_size),
            "labels": torch.randint(self.head.out_channels, (batch_size, image_size, image_size)),
        }


def build(width: int = 64, levels: int = 5, num_classes: int = 21) -> nn.Module:
    """Returns the U-Net of the paper, for the classes of Pascal VOC."""
    return UNet(width, levels, num_classes)
