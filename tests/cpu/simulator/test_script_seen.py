"""Where scripts of several styles make their optimizers, and what they call the models there."""

import textwrap

import pytest

from snugfit.fake_device.personality import Personality
from snugfit.simulator.fresh_workers import fresh_workers
from snugfit.simulator.own_script import ASSUMED, record_script
from snugfit.simulator.script import Program
from snugfit.values.assumptions import assumptions_from

START = """
import torch
from torch import nn
from torch.nn import functional as F
device = "cuda"
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Linear(width, width)
    def forward(self, x):
        return x + self.body(x)
def net(width=8):
    return nn.Sequential(nn.Linear(4, width), Block(width), Block(width))
def train(model, optimizer):
    for step in range(9):
        optimizer.zero_grad()
        model(torch.randn(3, 4, device=device)).sum().backward()
        optimizer.step()
"""
ON_TOP = """
model = net().to(device)
opt = torch.optim.SGD(model.parameters(), 0.1)
train(model, opt)
"""
BY_ANOTHER = """
def make(what):
    return torch.optim.Adam(what.parameters(), fused=True)
def main():
    own = net().to(device)
    train(own, make(own))
main()
"""
ATTRIBUTE = """
class Job:
    def __init__(self):
        self.net = net().to(device)
        self.opt = torch.optim.AdamW(self.net.parameters(), foreach=True)
job = Job()
train(job.net, job.opt)
"""
ITS_OWN = """
class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()
    def forward(self, x):
        return self.net(x)
    def optimizers(self):
        return torch.optim.AdamW(self.parameters())
train(lit := Lit().to(device), lit.optimizers())
"""
OWN_CLASS = """
class Lion(torch.optim.SGD):
    def __init__(me, weights): super().__init__(weights, 0.1)
model = net().to(device)
opt = Lion(model.parameters())
train(model, opt)
"""
HEAD = """
model = net().to(device).requires_grad_(False)
head = nn.Linear(8, 2).to(device)
model.append(head)
opt = torch.optim.SGD(head.parameters(), 0.1)
train(model, opt)
"""
NO_NAME = """
def build():
    made = net().to(device)
    return made, list(made.parameters())
pair = build()
opt = torch.optim.SGD(pair[1], 0.1)
train(pair[0], opt)
"""
STYLES = {
    "names on top": (ON_TOP, ("opt =", "model", ["1", "2"]), ("SGD", "opt =", ())),
    "in a function, by another": (BY_ANOTHER, ("return t", "what", ["1", "2"]), ("Adam", "return t", ("fused",))),
    "an attribute": (ATTRIBUTE, ("self.opt", "self.net", ["1", "2"]), ("AdamW", "self.opt", ("foreach",))),
    "a module's own": (ITS_OWN, ("return t", "self", ["net.1", "net.2"]), ("AdamW", "return t", ())),
    "an optimizer's class of its own": (OWN_CLASS, ("opt =", "model", ["1", "2"]), ("Lion", None, ())),
    "only the head is trained": (HEAD, ("opt =", "model", ["1", "2"]), ("SGD", "opt =", ())),
    "no name": (NO_NAME, (None, "model", ["1", "2"]), ("SGD", "opt =", ())),
}


def seen(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    assume = assumptions_from(None).completed(ASSUMED)
    recorded = fresh_workers().call(record_script, Program(path), [], assume, Personality(), for_plan=True)
    return recorded, path.read_text().splitlines()


@pytest.mark.parametrize("style", STYLES)
def test_models_have_the_names_of_the_code(tmp_path, style):
    body, (start, name, blocks), (kind, made, settings) = STYLES[style]
    recorded, lines = seen(tmp_path, START + body)
    (model,), (optimizer,) = recorded.seen.models, recorded.seen.optimizers
    assert (model.name, list(model.blocks.values())) == (name, blocks)
    assert (optimizer.kind, optimizer.settings) == (kind, settings)
    assert model.place is start or lines[model.place.line - 1].strip().startswith(start)
    assert optimizer.place is made or lines[optimizer.place.line - 1].strip().startswith(made)
    assert recorded.block_names == tuple(model.blocks)


def test_two_models_have_a_line_each(tmp_path):
    body = textwrap.dedent("""
        a, b = net().to(device), net().to(device)
        first = torch.optim.SGD(a.parameters(), 0.1)
        second = torch.optim.SGD(b.parameters(), 0.1)
        for step in range(9):
            with torch.autocast(device, torch.bfloat16):
                loss = (b(a(torch.randn(3, 4, device=device)).sum(1, keepdim=True).expand(3, 4))).sum()
            loss.backward()
            first.step()
            second.step()
    """)
    recorded, lines = seen(tmp_path, START + body)
    told = recorded.seen
    assert [(lines[one.place.line - 1].split()[0], one.name) for one in told.models] == [
        ("first", "a"),
        ("second", "b"),
    ]
    assert recorded.block_names == ("1", "2", "Sequential.1", "Sequential.2")
    assert "autocast" in told.own_precision


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_a_model_of_two_optimizers_has_its_line_before_the_one_that_is_made_first(tmp_path, order):
    body = textwrap.dedent("""
        model = net().to(device)
        first = torch.optim.SGD(model[0].parameters(), 0.1)
        second = torch.optim.SGD(model[1:].parameters(), 0.1)
        for step in range(9):
            model(torch.randn(3, 4, device=device)).sum().backward()
            {}.step()
            {}.step()
    """)
    recorded, lines = seen(tmp_path, START + body.format(*order))
    (model,) = recorded.seen.models
    assert lines[model.place.line - 1].startswith("first =") and model.name == "model"
    assert sorted(one.kind for one in recorded.seen.optimizers) == ["SGD", "SGD"]
