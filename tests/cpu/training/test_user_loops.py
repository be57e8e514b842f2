"""Loops as people write them, and the same with the README's lines around them: 20 steps, losses equal to 1e-5.

Written here in the style of the well-known examples: a small CNN with StepLR, a GAN, a VAE with a summed loss, an image and
text encoder with in-batch negatives.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import Recipe

STEPS = 20
WHOLE = [
    {},
    {"checkpoint": "all"},
    {"step_in_backward": True},
    {"offload_optimizer": True},
    {"offload_activations": "all"},
]
RECIPES = [*WHOLE, {"microbatch_size": 4}, {"microbatch_size": 3, "checkpoint": "all", "offload_optimizer": True}]
pytestmark = pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")


def recipe(fields, names):
    """The recipe, with the modules that this model has in place of all blocks."""
    return Recipe(**{**fields, **({"checkpoint": names} if "checkpoint" in fields else {})})


def seeded(build, seed=1):
    torch.manual_seed(seed)
    return build()


class Digits(nn.Module):
    """The CNN of pytorch/examples' mnist, smaller and without dropout."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.fc1, self.fc2 = nn.Linear(16 * 4 * 4, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


def digit_batches():
    random = torch.Generator().manual_seed(3)
    return [
        (torch.randn(12, 1, 12, 12, generator=random), torch.randint(0, 10, (12,), generator=random))
        for _ in range(STEPS)
    ]


def plain_digits(batches):
    model = seeded(Digits)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "fields", [one for one in RECIPES if not {"step_in_backward", "offload_optimizer"} & one.keys()], ids=str
)
def test_digits_with_step_lr(fields):
    batches = digit_batches()
    model = seeded(Digits)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    trainer = snugfit.prepare(
        model,
        recipe(fields, "conv1,conv2"),
        loss=lambda output, batch: F.nll_loss(output, batch[1]),
        optimizer=optimizer,
        device="cpu",
    )
    losses = []
    for batch in batches:
        losses.append(float(trainer.step(batch)))
        scheduler.step()
    assert losses == pytest.approx(plain_digits(batches), rel=1e-5, abs=1e-6)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.7**STEPS)
    assert str(trainer.fidelity) == "exact"


class Player(nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x):
        for block in self.blocks[:-1]:
            x = F.leaky_relu(block(x), 0.2)
        return self.blocks[-1](x)


def players():
    return seeded(lambda: (Player(4, 16, 16, 6), Player(6, 16, 16, 1)))


def gan_batches():
    random = torch.Generator().manual_seed(5)
    return [(torch.randn(8, 6, generator=random), torch.randn(8, 4, generator=random)) for _ in range(STEPS)]


def judge_loss(judge, maker, batch):
    real, noise = judge(batch[0]), judge(maker(batch[1]).detach())
    return F.softplus(-real).mean() + F.softplus(noise).mean()


def maker_loss(maker, judge, batch):
    return F.softplus(-judge(maker(batch[1]))).mean()


def plain_gan(batches):
    maker, judge = players()
    of_judge, of_maker = (torch.optim.Adam(one.parameters(), lr=2e-3, betas=(0.5, 0.999)) for one in (judge, maker))
    losses = []
    for batch in batches:
        of_judge.zero_grad()
        first = judge_loss(judge, maker, batch)
        first.backward()
        of_judge.step()
        of_maker.zero_grad()
        second = maker_loss(maker, judge, batch)
        second.backward()
        of_maker.step()
        losses += [first.item(), second.item()]
    return losses


@pytest.mark.parametrize("fields", RECIPES, ids=str)
@pytest.mark.parametrize("given", ["name", "instance"])
def test_a_gan(fields, given):
    """Each player's loss goes through the other, whose gradients and hooks must not take part."""
    batches = gan_batches()
    maker, judge = players()

    def prepared(model, forward):
        optimizer, settings = "adam", {"lr": 2e-3, "betas": (0.5, 0.999)}
        if given == "instance":
            optimizer, settings = torch.optim.Adam(model.parameters(), **settings), {}
        return snugfit.prepare(
            model, recipe(fields, "blocks.0,blocks.1"), forward=forward, optimizer=optimizer, device="cpu", **settings
        )

    train_judge = prepared(judge, lambda model, batch: judge_loss(model, maker, batch))
    train_maker = prepared(maker, lambda model, batch: maker_loss(model, judge, batch))
    losses = []
    for batch in batches:
        losses += [float(train_judge.step(batch)), float(train_maker.step(batch))]
    assert losses == pytest.approx(plain_gan(batches), rel=1e-5, abs=1e-6)


class VAE(nn.Module):
    """The one of pytorch/examples, with its noise drawn beforehand so that pieces see the same."""

    def __init__(self):
        super().__init__()
        self.fc1, self.mean, self.spread = nn.Linear(20, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.fc3, self.fc4 = nn.Linear(4, 32), nn.Linear(32, 20)

    def forward(self, x, noise):
        hidden = F.relu(self.fc1(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + noise * torch.exp(0.5 * spread)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(code)))), mean, spread


def vae_loss(output, batch):
    image, mean, spread = output
    return F.binary_cross_entropy(image, batch["x"], reduction="sum") - 0.5 * torch.sum(
        1 + spread - mean.pow(2) - spread.exp()
    )


@pytest.mark.parametrize("fields", RECIPES, ids=str)
def test_a_vae_with_a_summed_loss(fields):
    random = torch.Generator().manual_seed(7)
    batches = [
        {"x": torch.rand(12, 20, generator=random), "noise": torch.randn(12, 4, generator=random)} for _ in range(STEPS)
    ]
    plain, model = seeded(VAE), seeded(VAE)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3)
    trainer = snugfit.prepare(
        model, recipe(fields, "fc1,fc3"), loss=vae_loss, optimizer="adam", lr=1e-3, loss_weight="sum", device="cpu"
    )
    for batch in batches:
        optimizer.zero_grad()
        loss = vae_loss(plain(**batch), batch)
        loss.backward()
        optimizer.step()
        assert float(trainer.step(batch)) == pytest.approx(loss.item(), rel=1e-5)
    assert str(trainer.fidelity) == "exact"


class Pairs(nn.Module):
    """Image and text encoders with a learned temperature, as CLIP has them."""

    def __init__(self):
        super().__init__()
        self.image, self.text = Player(10, 24, 8), nn.EmbeddingBag(30, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        one, other = F.normalize(self.image(image), dim=1), F.normalize(self.text(text), dim=1)
        return self.scale.exp() * one @ other.T


def clip_loss(scores, batch):
    match = torch.arange(len(scores))
    return (F.cross_entropy(scores, match) + F.cross_entropy(scores.T, match)) / 2


def pair_batches(samples=12):
    random = torch.Generator().manual_seed(9)
    return [
        {
            "image": torch.randn(samples, 10, generator=random),
            "text": torch.randint(0, 30, (samples, 5), generator=random),
        }
        for _ in range(STEPS)
    ]


@pytest.mark.parametrize("fields", WHOLE, ids=str)
def test_pairs_of_image_and_text(fields):
    plain, model = seeded(Pairs), seeded(Pairs)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    trainer = snugfit.prepare(model, recipe(fields, "image"), loss=clip_loss, optimizer="adamw", lr=1e-2, device="cpu")
    ours = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, STEPS)
    for batch in pair_batches():
        optimizer.zero_grad()
        loss = clip_loss(plain(**batch), batch)
        loss.backward()
        optimizer.step()
        scheduler.step()
        assert float(trainer.step(batch)) == pytest.approx(loss.item(), rel=1e-5)
        ours.step()


def test_pairs_are_not_planned_in_pieces():
    batch = pair_batches(256)[0]
    plan = snugfit.plan(seeded(Pairs), batch, loss=clip_loss, device="cpu", budget="64MiB")
    assert plan.recipe.microbatch_size is None and plan.traits == {"coupled_samples": True}
    assert all(point.recipe.microbatch_size is None for point in plan.frontier)
    assert all(recipe.microbatch_size is None for recipe in plan.fallbacks)
    assert "not the weighted sum" in plan.reasons["microbatch_size"]
