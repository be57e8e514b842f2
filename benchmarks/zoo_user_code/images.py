"""Pictures: weighted classes, a perceptual loss, a U-Net, a variational autoencoder, towers, triplets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo_user_code.case import Case, images

CLASSES = 7


class ConvNet(nn.Module):
    """Convolutions with batch norm, then a linear head."""

    def __init__(self, classes: int = CLASSES, width: int = 32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding="same"),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Linear(32 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def labelled(samples: int = 24) -> tuple[Tensor, Tensor]:
    return images(samples), torch.arange(samples) % CLASSES


def class_weights() -> Case:
    weights = torch.linspace(0.5, 2.0, CLASSES)
    return Case(
        name="class weights",
        style="a float tensor captured by the loss",
        build=ConvNet,
        batch=labelled,
        loss=lambda output, batch: F.cross_entropy(output, batch[1], weight=weights),
        sums_over_samples=False,
    )


def loss_module() -> Case:
    criterion = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2.0, CLASSES), label_smoothing=0.1)
    return Case(
        name="loss module",
        style="a module with a buffer captured by the loss",
        build=ConvNet,
        batch=labelled,
        loss=lambda output, batch: criterion(output, batch[1]),
        sums_over_samples=False,
    )


def distillation() -> Case:
    teacher = ConvNet(width=64).eval().requires_grad_(False)

    def loss(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            wanted = teacher(batch[0])
        soft = F.kl_div((output / 2).log_softmax(1), (wanted / 2).softmax(1), reduction="batchmean")
        return 4 * soft + F.cross_entropy(output, batch[1])

    return Case(
        name="distillation", style="a frozen teacher captured by the loss", build=ConvNet, batch=labelled, loss=loss
    )


class AutoEncoder(nn.Module):
    """Down by strides, up by transposed convolutions."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.GELU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GELU()
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


class PerceptualLoss:
    """Distance of features of a frozen network, kept in an attribute of a callable object."""

    def __init__(self) -> None:
        self.features = ConvNet().features.eval().requires_grad_(False)
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)

    def __call__(self, output: Tensor, batch: Tensor) -> Tensor:
        near, far = self.features(output - self.mean), self.features(batch - self.mean)
        return F.l1_loss(output, batch) + 0.1 * F.mse_loss(near, far)


def perceptual() -> Case:
    return Case(
        name="perceptual loss",
        style="a frozen network in an attribute of the loss, with gradients through it",
        build=AutoEncoder,
        batch=lambda: images(16),
        loss=PerceptualLoss(),
    )


class Twice(nn.Sequential):
    """Two convolutions."""

    def __init__(self, inside: int, outside: int):
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.GroupNorm(4, outside),
            nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.GroupNorm(4, outside),
            nn.SiLU(),
        )


class UNet(nn.Module):
    """Three levels with skip connections."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.down = nn.ModuleList([Twice(3, width), Twice(width, 2 * width), Twice(2 * width, 4 * width)])
        self.rise = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([Twice(4 * width, 2 * width), Twice(2 * width, width)])
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for rise, block, skip in zip(self.rise, self.up, reversed(skips[:-1]), strict=True):
            x = block(torch.cat([rise(x), skip], dim=1))
        return self.out(x)


def dice_and_entropy(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    share, mask = output.sigmoid(), batch[1]
    overlap = (share * mask).sum((1, 2, 3))
    dice = 1 - 2 * overlap / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1e-6)
    return F.binary_cross_entropy_with_logits(output, mask) + dice.mean()


def unet() -> Case:
    return Case(
        name="u-net",
        style="skip connections, dice and cross entropy",
        build=UNet,
        batch=lambda: (images(8), (images(8, channels=1) > 0.5).float()),
        loss=dice_and_entropy,
    )


class VAE(nn.Module):
    """Draws from the encoder's distribution; returns the picture, mean and log variance."""

    def __init__(self, hidden: int = 256, latent: int = 16):
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 784))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decode(drawn).sigmoid(), mean, log_variance


def summed_elbo(output: tuple[Tensor, Tensor, Tensor], batch: Tensor) -> Tensor:
    picture, mean, log_variance = output
    entropy = F.binary_cross_entropy(picture, batch.flatten(1), reduction="sum")
    return entropy - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())


def vae() -> Case:
    return Case(
        name="vae",
        style="a loss that is a sum over samples, random numbers in forward",
        build=VAE,
        batch=lambda: images(64, 28, 1),
        loss=summed_elbo,
        loss_weight="sum",
    )


class TwoTowers(nn.Module):
    """Pictures and captions in one space, with a temperature that is learned."""

    def __init__(self, size: int = 64, words: int = 500):
        super().__init__()
        self.pictures = nn.Sequential(
            nn.Conv2d(3, 32, 8, 8, padding="valid"), nn.GELU(), nn.Flatten(), nn.Linear(32 * 16, size)
        )
        self.words = nn.Embedding(words, size)
        self.text = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size))
        self.scale = nn.Parameter(torch.tensor(2.6592))

    def forward(self, pixels: Tensor, tokens: Tensor) -> Tensor:
        one = F.normalize(self.pictures(pixels), dim=-1)
        other = F.normalize(self.text(self.words(tokens).mean(1)), dim=-1)
        return self.scale.exp() * one @ other.T


def both_ways(output: Tensor, batch: object) -> Tensor:
    target = torch.arange(len(output), device=output.device)
    return (F.cross_entropy(output, target) + F.cross_entropy(output.T, target)) / 2


def contrastive() -> Case:
    return Case(
        name="clip-like",
        style="in-batch negatives, a dict batch",
        build=TwoTowers,
        batch=lambda: {"pixels": images(32), "tokens": torch.arange(32 * 12).view(32, 12) % 500},
        loss=both_ways,
        sums_over_samples=False,
    )


def triplet() -> Case:
    def three(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        return [F.normalize(model(part), dim=1) for part in batch]

    return Case(
        name="siamese triplet",
        style="one model called three times",
        build=lambda: ConvNet(classes=64),
        batch=lambda: (images(12), images(12), images(12)),
        forward=three,
        loss=lambda output, batch: F.triplet_margin_loss(*output, margin=0.2),
        sums_over_samples=False,  # batch norm sees other batches
    )
