"""Two networks against each other: a discriminator's step, a critic with gradient penalty, normed weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from benchmarks.zoo_user_code.case import Case, images

LATENT = 32


class Generator(nn.Module):
    """A latent vector becomes a picture."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(LATENT, 2 * width, 4),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z[:, :, None, None])


def critic_of(norm=lambda layer: layer, width: int = 32) -> nn.Module:
    return nn.Sequential(
        norm(nn.Conv2d(3, width, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        norm(nn.Conv2d(width, 2 * width, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        norm(nn.Linear(2 * width * 16, 1)),
    )


def discriminator() -> Case:
    generator = Generator().requires_grad_(False)

    def real_and_fake(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            fake = generator(batch[1])
        return model(batch[0]), model(fake)

    def entropy(output: tuple[Tensor, Tensor], batch: object) -> Tensor:
        real, fake = output
        return F.binary_cross_entropy_with_logits(real, torch.ones_like(real)) + F.binary_cross_entropy_with_logits(
            fake, torch.zeros_like(fake)
        )

    return Case(
        name="gan discriminator",
        style="the generator captured by forward=, without gradients",
        build=critic_of,
        batch=lambda: (images(16, 16), torch.randn(16, LATENT)),
        forward=real_and_fake,
        loss=entropy,
        sums_over_samples=False,  # the generator's batch norm sees other batches
    )


class PenalisedCritic(nn.Module):
    """Wasserstein critic whose forward pass asks for the gradient of its own score."""

    def __init__(self) -> None:
        super().__init__()
        self.score = critic_of()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        real, fake = batch["real"], batch["fake"]
        between = (real * batch["share"] + fake * (1 - batch["share"])).requires_grad_(True)
        (slope,) = torch.autograd.grad(self.score(between).sum(), between, create_graph=True)
        penalty = ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
        return self.score(fake).mean() - self.score(real).mean() + 10 * penalty


def gradient_penalty() -> Case:
    return Case(
        name="wgan-gp",
        style="autograd.grad with create_graph in forward; the model returns its loss",
        build=PenalisedCritic,
        batch=lambda: {"real": images(16, 16), "fake": images(16, 16), "share": torch.rand(16, 1, 1, 1)},
        forward=lambda model, batch: model(batch),
    )


def hinge(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.relu(1 - output.squeeze(1) * batch[1]).mean()


def signed() -> tuple[Tensor, Tensor]:
    return images(24, 16), 1.0 - 2.0 * (torch.arange(24) % 2)


def spectral() -> Case:
    return Case(
        name="spectral norm",
        style="parametrizations with buffers that forward changes",
        build=lambda: critic_of(spectral_norm),
        batch=signed,
        loss=hinge,
    )


def old_spectral() -> Case:
    return Case(
        name="spectral norm by hooks",
        style="torch.nn.utils.spectral_norm",
        build=lambda: critic_of(nn.utils.spectral_norm),
        batch=signed,
        loss=hinge,
    )


class Chomp(nn.Module):
    """Cuts the future off a padded sequence."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : -self.size]


def temporal(norm=weight_norm) -> nn.Module:
    layers: list[nn.Module] = []
    for level in range(3):
        reach = 2 * 2**level
        inside = 8 if level == 0 else 48
        layers += [norm(nn.Conv1d(inside, 48, 3, dilation=2**level, padding=reach)), Chomp(reach), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv1d(48, 1, 1))


def series() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 8, 100), torch.randn(16, 1, 100)


def weighted() -> Case:
    return Case(
        name="weight norm",
        style="a temporal convolution net with parametrized weights",
        build=temporal,
        batch=series,
        loss=lambda output, batch: F.huber_loss(output, batch[1]),
    )


def old_weighted() -> Case:
    return Case(
        name="weight norm by hooks",
        style="torch.nn.utils.weight_norm",
        build=lambda: temporal(nn.utils.weight_norm),
        batch=series,
        loss=lambda output, batch: F.huber_loss(output, batch[1]),
    )
