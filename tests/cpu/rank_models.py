"""Small models of which several processes see different parts, each with what one plain process makes of it, in float64."""

from __future__ import annotations

import dataclasses
import importlib
import types
import warnings

import torch
import torch.nn.functional as F
from shard_tasks import among_others, share, whole
from torch import nn

import snugfit

SAMPLES, WIDTH, CLASSES, STEPS = 12, 6, 3, 2
ALL = frozenset(["none", "gradients", "full", "hybrid:2"])
CUT = ALL - {"none"}


def batches():
    """Batches whose first half has other signs than its second half, so that processes go through a model differently."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(STEPS):
        x = torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
        x[:, 0] = torch.where(torch.arange(SAMPLES) < SAMPLES // 2, 1.0, -1.0)
        found.append((x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)))
    return found


def cross_entropy(output, batch):
    return F.cross_entropy(output, batch[1])


class Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.up, self.down = nn.Linear(width, 8), nn.Linear(8, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Three blocks and a head."""

    block = Block

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(self.block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net_of(block):
    return type("Net", (Net,), {"block": block})


class Experts(Block):
    """Each sample goes to one of two layers by its sign, and a layer without samples is not called."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        x, found, chosen = super().forward(x), torch.zeros_like(x), (x[:, 0] > 0).long()
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                found = found.index_add(0, rows, expert(x[rows]))
        return x + found


class Unused(Block):
    """A layer that nobody calls."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH)


class Dropped(Net):
    """A block that is left out where no sample needs it."""

    def forward(self, x):
        used = x[:, :1] > 0
        for number, block in enumerate(self.blocks):
            if number != 1:
                x = block(x)
            elif used.any():
                x = torch.where(used, block(x), x)
        return self.head(x)


class Detached(Net):
    """A block whose output is of no use in some processes."""

    def forward(self, x):
        used, beside = x[:, :1] > 0, self.blocks[1](x)
        beside = torch.where(used, beside, 0.0) if used.any() else torch.zeros_like(x)
        return self.head(self.blocks[2](self.blocks[0](x)) + beside)


class Shuffled(Block):
    """Draws attributes that are no parameters: a tensor, one in a list, one in an object, a number, an array."""

    def __init__(self):
        super().__init__()
        self.order = torch.randperm(WIDTH)
        self.tables = [torch.randn(WIDTH), {"signs": torch.randn(WIDTH).sign()}]
        self.inside = types.SimpleNamespace(scale=torch.rand(WIDTH) + 0.5)
        self.factor = float(torch.rand(()))
        self.array = torch.rand(WIDTH).numpy()

    def forward(self, x):
        drawn = (
            self.tables[0] * self.tables[1]["signs"] * self.inside.scale * torch.from_numpy(self.array) * self.factor
        )
        return super().forward(x[:, self.order]) + 0.1 * drawn.to(x)


class IntoDict(nn.Module):
    """Writes into the dictionary that it is given, and returns nothing."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, state):
        state["x"] = state["x"] + torch.tanh(self.layer(state["x"]))


class Dictionary(Net):
    block = IntoDict

    def forward(self, x):
        state = {"x": x}
        for block in self.blocks:
            block(state)
        return self.head(state["x"])


class Boxed(Block):
    """Returns an object of its own class."""

    def forward(self, x):
        return types.SimpleNamespace(x=super().forward(x))


class Boxes(Net):
    block = Boxed

    def forward(self, x):
        for block in self.blocks:
            x = block(x).x
        return self.head(x)


class Mean(Block):
    """A running mean of its own, which moves what comes out."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        x = super().forward(x)
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.mean


class MeanInAttribute(Block):
    def __init__(self):
        super().__init__()
        self.mean = 0.0

    def forward(self, x):
        x = super().forward(x)
        self.mean = 0.9 * self.mean + 0.1 * float(x.mean())
        return x - self.mean


class Counts(Block):
    """A counter, and what it has seen last, which no later step reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.seen = None

    def forward(self, x):
        self.calls += 1
        self.seen = super().forward(x)
        return self.seen * (1 + 0.01 * self.calls)


class Encoder(Net):
    """Is never called itself."""

    def encode(self, x):
        return Net.forward(self, x)

    def forward(self, x):
        raise AssertionError


class ByWeight(Net):
    """Uses the weights of a block whose forward method is not called."""

    def forward(self, x):
        x = self.blocks[0](x)
        x = F.linear(x, self.blocks[1].up.weight, self.blocks[1].up.bias)
        return self.head(self.blocks[2](F.linear(torch.tanh(x), self.blocks[1].down.weight)))


class Penalised(Net):
    """Reads the weights of its blocks."""

    def forward(self, x):
        penalty = sum((block.up.weight**2).sum() for block in self.blocks)
        return super().forward(x) + 0.01 * penalty * torch.arange(CLASSES)


class Auxiliary(Block):
    """Leaves a part of the loss in an attribute."""

    def forward(self, x):
        x = super().forward(x)
        self.part = (x**2).mean()
        return x


class AuxiliaryNet(Net):
    block = Auxiliary

    def forward(self, x):
        return super().forward(x), sum(block.part for block in self.blocks)


class Complex(Block):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex128))

    def forward(self, x):
        return (super().forward(x) * self.phase).real


class Scalar(Block):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return super().forward(x) * self.scale


class TiedBlocks(Net):
    def __init__(self):
        super().__init__()
        self.blocks[2].up.weight = self.blocks[0].up.weight


class Reused(Net):
    def forward(self, x):
        return super().forward(self.blocks[0](x))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(channels, 4, 2, padding=1) for channels in (2, 4))
        self.head = nn.Linear(4, CLASSES)
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        x = x.view(len(x), 2, 3, 1)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x.mean((2, 3)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, WIDTH, sparse=True)
        self.rest = Net()

    def forward(self, x):
        return self.rest(self.words((x[:, :2] > 0).long() + (x[:, 1:2] > 1).long()).sum(1))


class TwoFormats(Net):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return super().forward(torch.tanh(self.first(x.to(self.first.weight.dtype))).double())


class Temperature(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.full((1,), 0.3, dtype=torch.float64))

    def forward(self, output, batch):
        return F.cross_entropy(output * self.log.exp(), batch[1])


def penalty(model, batch):
    """The loss and the squared gradient of the output by the input."""
    x = batch[0].requires_grad_()
    output = model(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    return output, slope


def with_hook(method, hook):
    """A model with a hook on a weight of each block."""

    def build():
        model = Net()
        for block in model.blocks:
            getattr(block.up.weight, method)(hook)
        return model

    return build


def clamped_in_place(weight):
    weight.grad = weight.grad.clamp(-0.02, 0.02)


def half_in_32_bits():
    model = TwoFormats()
    model.first.float()
    return model


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, how it is trained, and where it is refused."""

    build: object
    forward: object = None
    loss: object = staticmethod(cross_entropy)
    optimizer: str = "adamw"
    """adamw, sgd; or instance, function: of two groups, an instance with the state of an earlier step."""
    recipe: dict = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)
    refused: frozenset = frozenset()
    words: str = ""
    close: float = 1e-9
    seeded: bool = True
    """Whether each process builds the model from the same seed."""
    make: object = None
    """Makes the optimizer, where it is an instance or a function, of a list of parameters."""


CASES = {
    "blocks": Case(Net),
    "clipped": Case(Net, settings={"clip_norm": 0.05}),
    "instance": Case(Net, optimizer="instance"),
    "function": Case(Net, optimizer="function"),
    "experts": Case(net_of(Experts)),
    "experts, microbatches": Case(net_of(Experts), recipe={"microbatch_size": 1}),
    "experts, reduced once": Case(net_of(Experts), recipe={"microbatch_size": 1, "reduce_gradients": "batch"}),
    "experts, in backward": Case(net_of(Experts), recipe={"step_in_backward": True}),
    "experts, checkpointed": Case(net_of(Experts), recipe={"checkpoint": "all"}),
    "experts, instance": Case(net_of(Experts), optimizer="instance"),
    "unused": Case(net_of(Unused)),
    "unused, in backward": Case(net_of(Unused), recipe={"step_in_backward": True}),
    "dropped": Case(Dropped, refused=CUT, words="different ways"),
    "detached": Case(Detached, refused=CUT, words="different ways"),
    "attributes": Case(net_of(Shuffled), seeded=False),
    "hook": Case(with_hook("register_hook", lambda g: g.clamp(-0.02, 0.02)), refused=CUT, words="has a hook"),
    "hook after": Case(
        with_hook("register_post_accumulate_grad_hook", clamped_in_place), refused=CUT, words="has a hook"
    ),
    "dictionary": Case(Dictionary, refused=CUT, words="shard='none'"),
    "boxes": Case(Boxes, refused=CUT, words="shard='none'"),
    "mean": Case(net_of(Mean), refused=ALL, words="changes 'blocks.0.mean'"),
    "mean in attribute": Case(net_of(MeanInAttribute), refused=ALL, words="changes 'blocks.0.mean'"),
    "counts": Case(net_of(Counts)),
    "temperature": Case(Net, loss=Temperature, optimizer="instance", settings={"clip_norm": 0.05}),
    "temperature, function": Case(Net, loss=Temperature, optimizer="function"),
    "encoder": Case(Encoder, forward=lambda m, b: m.encode(b[0]), refused=CUT, words="shard='none'"),
    "by weight": Case(ByWeight, refused=CUT, words="shard='none'"),
    "penalised": Case(Penalised, refused=CUT, words="shard='none'"),
    "auxiliary": Case(AuxiliaryNet, loss=lambda o, b: cross_entropy(o[0], b) + 0.1 * o[1]),
    "gradient penalty": Case(
        Net, forward=penalty, loss=lambda o, b: cross_entropy(o[0], b) + (o[1] ** 2).sum(1).mean(), refused=CUT,
        words="shard='none'",
    ),
    "complex": Case(net_of(Complex), optimizer="function", refused=CUT, words="complex"),
    "scalar": Case(net_of(Scalar), refused=CUT, words="no dimension"),
    "tied blocks": Case(TiedBlocks, refused=CUT, words="shard='none'"),
    "reused": Case(Reused),
    "channels_last": Case(Convolutions, refused=CUT, words="channels_last"),
    "sparse": Case(Words, optimizer="sgd", refused=CUT, words="sparse"),
    "two formats": Case(half_in_32_bits, refused=CUT, words="shard='none'", close=1e-5),
    "frozen": Case(Net, settings={"freeze": "blocks.1*"}),
}  # fmt: skip


def built(case, seed=5):
    """The model of a case, the same every time, and its loss."""
    torch.manual_seed(seed)
    model = case.build()
    for module in model.modules():
        if not any(weight.is_complex() for weight in module.parameters(recurse=False)):
            for weight in module.parameters(recurse=False):
                if case.build is not half_in_32_bits or module is not model.first:
                    weight.data = weight.data.double()
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                module.register_buffer(name, buffer.double())
    loss = case.loss
    return model, loss() if isinstance(loss, type) else loss


def optimizer_of(case, model, loss, parameters=None):
    """An optimizer of two groups, with the state of an earlier step where it is an instance."""
    own = list(loss.parameters()) if isinstance(loss, nn.Module) else []
    own += [one for holder in (loss, *model.modules()) for one in getattr(holder, "beside", [])]
    weights = list(model.parameters()) if parameters is None else list(parameters)
    if case.make is not None:
        return case.make(weights + own)
    made = torch.optim.AdamW([{"params": weights[:3], "lr": 0.02}, {"params": weights[3:] + own}], lr=0.01)
    if case.optimizer == "instance":
        generator = torch.Generator().manual_seed(9)
        for weight in weights + own:
            noise = [torch.rand(weight.shape, generator=generator, dtype=weight.dtype) for _ in range(2)]
            made.state[weight] = {"step": torch.tensor(3.0), "exp_avg": noise[0] * 0.01, "exp_avg_sq": noise[1] * 1e-3}
    return made


def alone(case):
    """The weights of one plain process, written out by hand."""
    model, loss = built(case)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.startswith(case.settings.get("freeze", "?").rstrip("*")))
    if case.optimizer in ("adamw", "sgd"):
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        cls = torch.optim.AdamW if case.optimizer == "adamw" else torch.optim.SGD
        optimizer = cls(trained, lr=0.01)
    else:
        optimizer = optimizer_of(case, model, loss)
    for batch in batches():
        optimizer.zero_grad()
        output = case.forward(model, batch) if case.forward else model(batch[0])
        loss(output, batch).backward()
        if "clip_norm" in case.settings:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            nn.utils.clip_grad_norm_(weights, case.settings["clip_norm"])
        optimizer.step()
    return values(model, loss)


def values(model, loss):
    """Parameters by name, whole."""
    named = dict(model.named_parameters())
    if isinstance(loss, nn.Module):
        named |= {f"loss.{name}": weight for name, weight in loss.named_parameters()}
    return {name: whole(weight).detach().clone() for name, weight in named.items()}


def trained(case, shard, rank, world):
    """The weights of a training on this rank's shares; or the message before the first update."""
    model, loss = built(case, 5 if case.seeded else 5 + rank)
    optimizer = case.optimizer
    if optimizer == "instance":
        optimizer = optimizer_of(case, model, loss)
    elif optimizer == "function":
        optimizer = lambda parameters: optimizer_of(case, model, loss, parameters)  # noqa: E731
    settings = {**case.settings, **({"lr": 0.01} if isinstance(optimizer, str) else {})}
    trainer = None
    try:
        trainer = snugfit.prepare(
            model, snugfit.Recipe(shard=shard, **case.recipe), loss=loss, optimizer=optimizer, forward=case.forward,
            device="cpu", batch_size=SAMPLES, **settings,
        )  # fmt: skip
        for batch in batches():
            trainer.step(share(batch, rank, world))
        trainer.finish()
    except snugfit.InputError as error:
        return (
            str(error) if trainer is None or trainer.steps_done == 0 else f"after {trainer.steps_done} steps: {error}"
        )
    return values(trainer.model, loss)


def matrix(rank, world, meeting, cases, name, shards):
    """Returns for each way to share what came of a case of a module: weights, or a message."""
    warnings.simplefilter("ignore")
    case = importlib.import_module(cases).CASES[name]
    with among_others(rank, world, meeting):
        return {shard: trained(case, shard, rank, world) for shard in shards}


class Noisy(Block):
    def forward(self, x):
        return super().forward(x + 0.1 * torch.randn_like(x))


def fidelity_of_noise(rank, world, meeting):
    """Returns what is said of a model that draws numbers for each sample, before its first step and after it."""
    warnings.simplefilter("ignore")
    with among_others(rank, world, meeting):
        model, _ = built(Case(net_of(Noisy)))
        trainer = snugfit.prepare(model, snugfit.Recipe(), loss=cross_entropy, device="cpu", batch_size=SAMPLES)
        before = str(trainer.fidelity)
        trainer.step(share(batches()[0], rank, world))
        trainer.finish()
        return before, str(trainer.fidelity)


def written_after_evaluation(rank, world, meeting, shards):
    """Returns by way to share the loss of a step after weights were written to, without and with an evaluation before."""
    batch, found = share(batches()[0], rank, world), {}
    with among_others(rank, world, meeting):
        for shard in shards:
            for evaluates in (False, True):
                model, _ = built(CASES["blocks"])
                trainer = snugfit.prepare(
                    model, snugfit.Recipe(shard=shard), loss=cross_entropy, device="cpu", batch_size=SAMPLES, lr=0.01
                )
                trainer.step(batch)
                if evaluates:
                    trainer.evaluate_batch(batch)
                with torch.no_grad():
                    for weight in model.parameters():
                        weight.mul_(2)
                trainer.step(batch)
                found[shard, evaluates] = float(trainer.step(batch))
    return found
