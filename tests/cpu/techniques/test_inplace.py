"""In-place activations: only where nobody else reads the input."""

import copy
import sys
import types
import warnings

import pytest
import torch
from small_models import make_model
from torch import nn

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.techniques.base import WrappedForward
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
    seen, forward = [], module.forward
    wrapped = isinstance(forward, WrappedForward)  # a forward method that is replaced later would end every proof
    owner, name = (forward, "around") if wrapped else (module, "forward")
    call = getattr(owner, name)
    setattr(owner, name, lambda *args: (out := call(*args), seen.append(out.data_ptr() == args[-1].data_ptr()))[0])
    try:
        model(x)
    finally:
        setattr(owner, name, call)
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


def _kept_where_told(net, x):
    y = net.conv(x)
    if net.told["keeps"] or net.object.keeps or type(net).keeps_all or TOLD or told.keeps:
        net.hidden = y
    return net.relu(y)


def _straight(net, x):
    return net.relu(net.conv(x))


KEPT = {}
TOLD = []
told = sys.modules["settings_of_test_inplace"] = types.ModuleType("settings_of_test_inplace")
"""As an imported file of settings."""


def _replaced(net):
    """A forward method of one of torch's layers, replaced by one that keeps what it gives."""
    forward = type(net.conv).forward

    def kept(conv, x):
        net.hidden = forward(conv, x)
        return net.hidden

    net.conv.forward = types.MethodType(kept, net.conv)


TELLING = {
    "a table": lambda net: net.told.update(keeps=True),
    "an object": lambda net: setattr(net.object, "keeps", True),
    "a class": lambda net: setattr(Net, "keeps_all", True),
    "a global": lambda net: TOLD.append(1),
    "a file": lambda net: setattr(told, "keeps", True),
    "a replaced method": _replaced,
    "another wiring": lambda net: setattr(net, "wiring", _kept_by_attribute),
    "a hook of all modules": lambda net: HOOKS.append(
        nn.modules.module.register_module_forward_hook(
            lambda module, args, output: setattr(net, "hidden", output) if module is net.conv else None
        )
    ),
}
"""How a part is told, behind a trace's back, to keep what an activation would overwrite."""
HOOKS = []


@pytest.fixture
def nobody_told():
    def reset():
        while HOOKS:
            HOOKS.pop().remove()
        TOLD.clear()
        told.keeps = Net.keeps_all = False

    reset()
    yield reset
    reset()


@pytest.mark.parametrize("checkpoint", ["none", ("conv", "relu")], ids=str)
@pytest.mark.parametrize("way", TELLING)
def test_what_code_is_told_to_keep_later_is_not_overwritten(way, checkpoint, nobody_told):
    results = []
    for recipe in (Recipe(), Recipe(inplace=True, checkpoint=checkpoint)):
        nobody_told()
        torch.manual_seed(0)
        net = Net(
            _straight if way in ("a replaced method", "another wiring", "a hook of all modules") else _kept_where_told
        )
        net.double().hidden, net.told, net.object = None, {"keeps": False}, types.SimpleNamespace(keeps=False)

        def forward(net, batch):
            output = net(batch)
            return output.square().mean() + (0 if net.hidden is None else net.hidden.square().mean())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnugfitWarning)
            trainer = snugfit.prepare(net, recipe, forward=forward, optimizer="sgd", lr=0.1, device="cpu")
        draw = torch.Generator().manual_seed(1)
        x = [torch.randn(4, 3, 5, 5, dtype=torch.float64, generator=draw) for _ in range(4)]
        losses = [trainer.step(x[0]).item()]
        TELLING[way](net)
        results.append([*losses, *(trainer.step(one).item() for one in x[1:])])
    assert results[0] == pytest.approx(results[1], rel=1e-12)


@pytest.mark.parametrize("when", ["before prepare", "later"])
@pytest.mark.parametrize("hooked", ["conv", "relu"])
def test_hooks_of_backward_are_kept(hooked, when):
    """They look at what passes as a view, which torch lets nobody overwrite."""
    results = []
    for recipe in (Recipe(), Recipe(inplace=True)):
        torch.manual_seed(0)
        net, seen = Net(_straight).double(), []
        layer = net.get_submodule(hooked)

        def hook(layer=layer, seen=seen):
            layer.register_full_backward_hook(lambda module, given, got: seen.append(float(got[0].sum())))

        if when == "before prepare":
            hook()
        trainer = snugfit.prepare(
            net, recipe, loss=lambda output, batch: output.square().mean(), optimizer="sgd", lr=0.1, device="cpu"
        )
        x = torch.ones(2, 3, 4, 4, dtype=torch.float64)
        losses = [trainer.step(x).item()]
        if when == "later":
            hook()
        results.append([*losses, trainer.step(x).item(), *seen])
    assert results[0] == pytest.approx(results[1], rel=1e-12) and seen


@pytest.mark.parametrize("activation", [nn.LeakyReLU(-0.3), nn.ELU(-0.5)], ids=str)
def test_slopes_that_backward_needs_the_input_for(activation):
    net = Net(_straight)
    net.relu = activation
    assert safe_modules(net) == []
    net.relu = nn.LeakyReLU(0.3)
    snugfit.prepare(net, Recipe(inplace=True), loss=lambda output, batch: output.square().mean(), device="cpu")
    x = torch.randn(2, 3, 4, 4)
    assert all(overwrites(net, net.relu, x))
    net.relu.negative_slope = -0.3
    assert not any(overwrites(net, net.relu, x))


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
