"""In-place activations: only where nobody else reads the input."""

import copy

import pytest
import torch
from small_models import make_model
from torch import nn

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.techniques.inplace.apply import safe_modules


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
        assert net.relu.inplace
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


def test_a_hook_may_keep_the_input():
    net = Net(WIRINGS["behind a convolution"][0])
    net.conv.register_forward_hook(lambda module, args, output: None)
    assert safe_modules(net) == []


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
    assert torch.equal(before, torch.get_rng_state()) and float(model.calls) == 0 and model.relu.inplace


def test_no_effect_warns():
    with pytest.warns(SnugfitWarning, match="inplace has no effect on Linear"):
        snugfit.prepare(nn.Linear(2, 2), Recipe(inplace=True), device="cpu")


def test_saves_a_copy_of_the_input():
    model = make_model("cnn", torch.float32)
    assert [module.inplace for module in model.modules() if isinstance(module, nn.ReLU)] == [False] * 3
    snugfit.prepare(model, Recipe(inplace=True), device="cpu")
    assert [module.inplace for module in model.modules() if isinstance(module, nn.ReLU)] == [True] * 3
    seen = []
    block = model.stages[0].layers
    block[2].register_forward_hook(lambda module, args, output: seen.append(args[0].data_ptr() == output.data_ptr()))
    model(torch.randn(2, 3, 8, 8))
    assert seen == [True]
