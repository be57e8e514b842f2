"""Loops that keep their own forward, backward and optimizers, as people write them: GANs, PPO, MAML, LBFGS.

Each is a model, a batch, and a function that makes `step(model, optimizer, batch)`, which returns its losses.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical
from torch.func import functional_call

STEPS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLoop:
    """One script."""

    model: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    """From a number, the seed."""
    new_step: Callable[[], Callable[..., list[float]]]
    optimizer: Callable[..., Any] | None
    blocks: tuple[str, ...]
    """Modules that are checkpointed."""

    def run(self, around: Callable[[nn.Module], Any] | None = None, *, dtype=torch.float64, steps: int = STEPS):
        """Returns the losses of a few steps, and the model; `around` is called on the model first."""
        torch.manual_seed(0)
        model = self.model().to(dtype)
        if around is not None:
            around(model)
        optimizer = self.optimizer(model.parameters()) if self.optimizer is not None else None
        step = self.new_step()
        torch.manual_seed(1)
        losses = [step(model, optimizer, _as(self.batch(number), dtype)) for number in range(steps)]
        return losses, model


def _as(batch, dtype):
    if isinstance(batch, torch.Tensor):
        return batch.to(dtype) if batch.is_floating_point() else batch
    return tuple(_as(one, dtype) for one in batch)


def _random(seed):
    return torch.Generator().manual_seed(seed)


class Layer(nn.Module):
    """A layer and what follows it: several of them are repeated blocks."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return self.parts(x)


# -- DCGAN: two networks, two optimizers, the discriminator twice


def _up(a, b, last=False):
    end = [nn.Tanh()] if last else [nn.BatchNorm2d(b), nn.ReLU()]
    return Layer(nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), *end)


def _down(a, b):
    return Layer(nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))


def gan() -> nn.Module:
    maker = nn.Sequential(nn.ConvTranspose2d(8, 32, 4, 1, 0), nn.ReLU(), _up(32, 32), _up(32, 3, last=True))
    judge = nn.Sequential(_down(3, 32), _down(32, 32), nn.Conv2d(32, 1, 4), nn.Flatten(), nn.Sigmoid())
    return nn.ModuleDict({"maker": maker, "judge": judge})


def new_gan_step():
    made = []

    def step(models, _, real):
        maker, judge = models["maker"], models["judge"]
        if not made:
            made.extend(torch.optim.Adam(one.parameters(), lr=2e-4, betas=(0.5, 0.999)) for one in (judge, maker))
        of_judge, of_maker = made
        ones, zeros = torch.ones_like(real[:, 0, 0, :1]), torch.zeros_like(real[:, 0, 0, :1])
        judge.zero_grad()
        first = F.binary_cross_entropy(judge(real), ones)
        first.backward()
        noise = torch.randn(len(real), 8, 1, 1, dtype=real.dtype, device=real.device)
        fake = maker(noise)
        second = F.binary_cross_entropy(judge(fake.detach()), zeros)
        second.backward()
        of_judge.step()
        maker.zero_grad()
        third = F.binary_cross_entropy(judge(fake), ones)
        third.backward()
        of_maker.step()
        return [first.item(), second.item(), third.item()]

    return step


# -- WGAN-GP: a gradient of a gradient, the critic several times a step


def critic_and_maker() -> nn.Module:
    def layers(*widths):
        inner = [Layer(nn.Linear(a, b), nn.LeakyReLU(0.2)) for a, b in itertools.pairwise(widths[:-1])]
        return nn.Sequential(*inner, nn.Linear(*widths[-2:]))

    return nn.ModuleDict({"maker": layers(8, 64, 64, 32), "critic": layers(32, 64, 64, 64, 1)})


def new_wgan_step():
    made = []

    def step(models, _, real):
        maker, critic = models["maker"], models["critic"]
        if not made:
            made.extend(torch.optim.Adam(one.parameters(), lr=1e-3) for one in (critic, maker))
        losses = []
        for _ in range(2):
            noise = torch.randn(len(real), 8, dtype=real.dtype, device=real.device)
            fake = maker(noise).detach()
            share = torch.rand(len(real), 1, dtype=real.dtype, device=real.device)
            between = (share * real + (1 - share) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(2, dim=1) - 1).square().mean()
            made[0].zero_grad()
            loss.backward()
            made[0].step()
            losses.append(loss.item())
        made[1].zero_grad()
        loss = -critic(maker(torch.randn(len(real), 8, dtype=real.dtype, device=real.device))).mean()
        loss.backward()
        made[1].step()
        return [*losses, loss.item()]

    return step


# -- PPO: a model without forward, epochs over minibatches, distributions that look at their arguments


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(Layer(nn.Linear(16, 64), nn.Tanh()), Layer(nn.Linear(64, 64), nn.Tanh()))
        self.actor, self.critic = nn.Linear(64, 6), nn.Linear(64, 1)

    def get_action_and_value(self, x, action):
        hidden = self.network(x)
        chosen = Categorical(logits=self.actor(hidden), validate_args=True)
        return chosen.log_prob(action), chosen.entropy(), self.critic(hidden)


def new_ppo_step():
    def step(agent, optimizer, batch):
        seen, actions, old, advantages, returns = batch
        losses = []
        for _ in range(2):
            for part in torch.randperm(len(seen)).chunk(2):
                log_prob, entropy, value = agent.get_action_and_value(seen[part], actions[part])
                ratio = (log_prob - old[part]).exp()
                policy = torch.max(-advantages[part] * ratio, -advantages[part] * torch.clamp(ratio, 0.8, 1.2)).mean()
                loss = policy - 0.01 * entropy.mean() + 0.5 * (value.squeeze(-1) - returns[part]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                losses.append(loss.item())
        return losses

    return step


def experience(seed):
    random = _random(seed)
    rows = [torch.randn(512, generator=random) for _ in range(3)]
    return torch.randn(512, 16, generator=random), torch.randint(0, 6, (512,), generator=random), *rows


# -- MAML: the model called with other weights than its own, gradients through the inner steps


def learner() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 64), Layer(nn.Linear(64, 64), nn.Tanh()), Layer(nn.Linear(64, 64), nn.Tanh()),
        nn.Linear(64, 1),
    )  # fmt: skip


def new_maml_step():
    def step(model, optimizer, batch):
        outer = 0.0
        for x, y in zip(*batch, strict=True):
            weights = dict(model.named_parameters())
            for _ in range(2):
                loss = F.mse_loss(functional_call(model, weights, (x[:64],)), y[:64])
                slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                weights = {name: one - 0.1 * slope for (name, one), slope in zip(weights.items(), slopes, strict=True)}
            outer = outer + F.mse_loss(functional_call(model, weights, (x[64:],)), y[64:])
        optimizer.zero_grad()
        outer.backward()
        optimizer.step()
        return [outer.item()]

    return step


def tasks(seed):
    x = torch.randn(2, 128, 8, generator=_random(seed))
    return x, x.sum(2, keepdim=True).sin()


# -- LBFGS: a closure that runs forward and backward many times a step


def field() -> nn.Module:
    return nn.Sequential(*(Layer(nn.Linear(a, 48), nn.Tanh()) for a in (2, 48, 48)), nn.Linear(48, 1))


def new_lbfgs_step():
    def step(model, optimizer, batch):
        x, y = batch
        losses = []

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
            return loss

        optimizer.step(closure)
        return losses

    return step


def points(seed):
    x = torch.rand(512, 2, generator=_random(seed))
    return x, (3 * x[:, :1]).sin() * x[:, 1:]


LOOPS = {
    "dcgan": OwnLoop(
        model=gan,
        batch=lambda seed: torch.rand(32, 3, 16, 16, generator=_random(seed)) * 2 - 1,
        new_step=new_gan_step,
        optimizer=None,
        blocks=("maker.2", "judge.0", "judge.1"),
    ),
    "wgan-gp": OwnLoop(
        model=critic_and_maker,
        batch=lambda seed: torch.randn(256, 32, generator=_random(seed)),
        new_step=new_wgan_step,
        optimizer=None,
        blocks=("critic.0", "critic.1", "critic.2", "maker.1"),
    ),
    "ppo": OwnLoop(
        model=Agent,
        batch=experience,
        new_step=new_ppo_step,
        optimizer=lambda weights: torch.optim.Adam(weights, lr=2.5e-4, eps=1e-5),
        blocks=("network.0", "network.1"),
    ),
    "maml": OwnLoop(
        model=learner,
        batch=tasks,
        new_step=new_maml_step,
        optimizer=lambda weights: torch.optim.Adam(weights, lr=1e-3),
        blocks=("1", "2"),
    ),
    "lbfgs": OwnLoop(
        model=field,
        batch=points,
        new_step=new_lbfgs_step,
        optimizer=lambda weights: torch.optim.LBFGS(weights, lr=0.5, max_iter=5, history_size=4),
        blocks=("0", "1", "2"),
    ),
}
