"""In-place activations: only where nobody else reads the input."""

import copy
import warnings

import pytest
import torch
from small_models import make_model
from torch import nn

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.techniques.inplace.proof import proofs


class Net(nn.Module):
    """conv, norm and relu, wired by the function given."""

    def __init__(self, wiring):
        super().__init__()
        self.conv, self.norm, self.relu, self.other = (
            nn.Conv2d(3, 3, 1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Conv2d(3, 3, 1),
        )
        self.wiring = wiring

    def forward(self, x):
        return self.wiring(self, x)


def safe_modules(model):
    return list(proofs(model))


def overwrites(model, module, x):
    """Whether a module overwrites its input in a pass of a model."""
    seen = []
    forward = module.forward
    module.forward = lambda y: (out := forward(y), seen.append(out.data_ptr() == y.data_ptr()))[0]
    try:
        model(x)
    finally:
        module.forward = forward
    return seen


def _skip(net, x):
    y = net.norm(net.conv(x))
    return net.relu(y) + y


def _twice(net, x):
    return net.relu(net.other(net.relu(x + 1)))


def _untraceable(net, x):
    y = net.norm(net.conv(x))
    return net.relu(y) if y.sum() > 0 else y


WIRINGS = {
    "behind a norm": (lambda net, x: net.relu(net.norm(net.conv(x))), True),
    "behind a convolution": (lambda net, x: net.relu(net.conv(x)), True),
    "skip connection": (_skip, False),
    "on the input": (lambda net, x: net.conv(net.relu(x)), False),
    "behind a function": (lambda net, x: net.relu(net.conv(x) * 2), False),
    "twice, once unsafe": (_twice, False),
    "twice, both safe": (lambda net, x: net.relu(net.other(net.relu(net.conv(x)))), True),
    "untraceable": (_untraceable, False),
    "never called": (lambda net, x: net.conv(x), False),
    "functional": (lambda net, x: torch.relu(net.conv(x)), False),
}


@pytest.mark.parametrize("name", WIRINGS)
def test_what_is_switched(name):
    wiring, safe = WIRINGS[name]
    net = Net(wiring)
    assert safe_modules(net) == ([net.relu] if safe else [])
    if safe:
        plain, x = copy.deepcopy(net), torch.randn(4, 3, 5, 5)
        snugfit.prepare(net, Recipe(inplace=True), loss=lambda output, batch: output.square().mean(), device="cpu")
        assert all(overwrites(net, net.relu, x)) and not any(overwrites(plain, plain.relu, x))
        assert not any(overwrites(net.eval(), net.relu, x)) and net.train()
        plain.load_state_dict(net.state_dict())
        for model in (plain, net):
            model(x).square().mean().backward()
        assert torch.equal(plain.conv.weight.grad, net.conv.weight.grad)


def test_parts_of_an_untraceable_model():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            return self.layers(x)

    class Model(nn.Module):
        """Walks through one Sequential by hand and keeps what lies between: in place would spoil it."""

        def __init__(self):
            super().__init__()
            self.part, self.walked = Part(), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            x = self.part(x)
            if x.sum() > 1e9:
                return x
            kept = []
            for layer in self.walked:
                x = layer(x)
                kept.append(x)
            return sum(kept)

    model = Model()
    assert safe_modules(model) == [model.part.layers[1]]


def _kept_by_attribute(net, x):
    net.hidden = net.conv(x)
    return net.relu(net.hidden)


def _kept_in_a_list(net, x):
    y = net.conv(x)
    net.bank.append(y)
    return net.relu(y)


def _kept_afterwards(net, x):
    y = net.conv(x)
    z = net.relu(y)
    KEPT["y"] = y
    return z


def _kept_when_told(net, x):
    y = net.conv(x)
    if net.keeps:
        net.hidden = y
    return net.relu(y)


KEPT = {}
KEEPING = {
    "attribute": (_kept_by_attribute, lambda net: net.hidden),
    "list": (_kept_in_a_list, lambda net: net.bank[-1]),
    "global": (_kept_afterwards, lambda net: KEPT["y"]),
    "when told": (_kept_when_told, lambda net: net.hidden),
    "hook of the producer": (lambda net, x: net.relu(net.conv(x)), lambda net: net.bank[-1]),
    "hook before the activation": (lambda net, x: net.relu(net.conv(x)), lambda net: net.bank[-1]),
    "the caller": (lambda net, x: net.relu(net.conv(x)), lambda net: net.hidden),
}


def _walked(net, batch):
    """A caller who goes through the model by hand and keeps what lies between."""
    net.hidden = net.conv(batch)
    return net.relu(net.hidden).square().mean() + net.hidden.square().mean()


@pytest.mark.parametrize("hooked", ["before prepare", "later"])
@pytest.mark.parametrize("kind", KEEPING)
def test_what_somebody_keeps_is_not_overwritten(kind, hooked):
    wiring, kept = KEEPING[kind]
    results = []
    for recipe in (Recipe(), Recipe(inplace=True)):
        torch.manual_seed(0)
        net = Net(wiring).double()
        net.bank, net.keeps = [], hooked == "before prepare"

        def hook(net=net):
            if kind == "hook of the producer":
                net.conv.register_forward_hook(lambda module, args, output: net.bank.append(output))
            if kind == "hook before the activation":
                net.relu.register_forward_pre_hook(lambda module, args: net.bank.append(args[0]))
            net.keeps = True

        def forward(net, batch):
            return net(batch).square().mean() + kept(net).square().mean()

        if hooked == "before prepare":
            hook()
        forward = _walked if kind == "the caller" else forward
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnugfitWarning)
            trainer = snugfit.prepare(net, recipe, forward=forward, optimizer="sgd", lr=0.1, device="cpu")
        hook()
        draw = torch.Generator().manual_seed(1)
        x = [torch.randn(4, 3, 5, 5, dtype=torch.float64, generator=draw) for _ in range(3)]
        results.append([trainer.step(one).item() for one in x])
    assert results[0] == results[1]


def test_a_trace_gives_nothing_to_lists_of_the_caller():
    net = Net(_kept_in_a_list)
    net.bank = ["mine"]
    assert safe_modules(net) == [] and net.bank == ["mine"]


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.LeakyReLU(0.3), nn.Dropout(0.5)], ids=lambda one: type(one).__name__
)
def test_a_checkpointed_block_keeps_its_input(activation):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = copy.deepcopy(activation), copy.deepcopy(activation)
            self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.down(self.second(self.up(self.first(x))))

    class Ahead(nn.Module):
        """The layer is in one block and its activation is the first thing of the next."""

        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Part() for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    results = []
    for fields in ({}, {"checkpoint": "all", "inplace": True}, {"checkpoint": "blocks:1", "inplace": True}):
        torch.manual_seed(0)
        model = Ahead().double()
        trainer = snugfit.prepare(
            model,
            Recipe(**fields),
            loss=lambda output, batch: output.square().mean(),
            optimizer="sgd",
            lr=0.1,
            device="cpu",
        )
        results.append([trainer.step(torch.ones(4, 6, dtype=torch.float64)).item() for _ in range(3)])
    assert results[1] == pytest.approx(results[0], rel=1e-12)
    assert results[2] == pytest.approx(results[0], rel=1e-12)


def test_tracing_draws_nothing_and_changes_nothing():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.relu, self.drop = nn.Linear(3, 3), nn.ReLU(), nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return self.relu(self.linear(x)) + torch.randn(3)

    model = Counting()
    before = torch.get_rng_state()
    snugfit.prepare(model, Recipe(inplace=True), device="cpu")
    assert torch.equal(before, torch.get_rng_state()) and float(model.calls) == 0
    assert overwrites(model, model.relu, torch.randn(2, 3)) == [True]


def test_no_effect_warns():
    with pytest.warns(SnugfitWarning, match="inplace has no effect on Linear"):
        snugfit.prepare(nn.Linear(2, 2), Recipe(inplace=True), device="cpu")


def test_saves_a_copy_of_the_input():
    model = make_model("cnn", torch.float32)
    x, relu = torch.randn(2, 3, 8, 8), model.stages[0].layers[2]
    assert overwrites(model, relu, x) == [False]
    snugfit.prepare(model, Recipe(inplace=True), device="cpu")
    assert overwrites(model, relu, x) == [True]
    twin = copy.deepcopy(model)
    assert overwrites(twin, twin.stages[0].layers[2], x) == [False]  # nothing is proved of a copy
