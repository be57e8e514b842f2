"""Advice about the optimizer's temporaries, held against real runs of every optimizer of torch.optim that has foreach."""

from __future__ import annotations

import inspect
import textwrap

import pytest
import torch
from torch import nn

from snugfit.fake_device.personality import Personality
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.profiler.advice import SeenModel, advise, implementation_of
from snugfit.profiler.profile import profile_script

CLASSES = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and "foreach" in inspect.signature(kind).parameters
)


def _training(name, settings):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))
    optimizer = getattr(torch.optim, name)(model.parameters(), **settings)
    inputs = torch.randn(2, 128)

    def step():
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()

    return model, optimizer, inputs, step


def _peak_bytes(name, **settings):
    """Peak of three real steps, the model and its input apart (they were there before)."""
    _, _, _, step = _training(name, settings)
    warm_up()
    events = AllocatorEvents()
    events.start()
    for _ in range(3):
        step()
    events.stop()
    return events.peak_bytes


def _advice(name, **settings):
    model, optimizer, inputs, step = _training(name, settings)
    step()
    seen = SeenModel.of(model, ((inputs.to("meta"),), {}), False, optimizer)
    assert not seen.problem
    return advise(seen, device_index=None)


@pytest.mark.parametrize("name", CLASSES)
def test_what_foreach_holds_is_found_for_every_optimizer(name):
    real = _peak_bytes(name, foreach=True) - _peak_bytes(name, foreach=False)
    advice = _advice(name, foreach=True)
    assert not advice.missing
    found = [one for one in advice.suggestions if one.optimizer_arguments == {"foreach": False}]
    if real >= 0.04 * advice.simulated_peak_bytes:
        [suggestion] = found
        assert suggestion.saved_bytes == pytest.approx(real, rel=0.05, abs=70_000)
        assert "foreach=False" in suggestion.text and name in suggestion.text
    elif real < 0.01 * advice.simulated_peak_bytes:
        assert not found


def test_there_is_something_to_find():
    assert {"RMSprop", "AdamW", "SGD", "NAdam"} <= set(CLASSES)
    assert _peak_bytes("RMSprop", foreach=True) > 1.15 * _peak_bytes("RMSprop", foreach=False)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_fused_is_advised_where_the_class_has_it(name):
    settings = {"momentum": 0.9, "weight_decay": 0.1} if name == "SGD" else {}
    real = _peak_bytes(name, foreach=True, **settings) - _peak_bytes(name, fused=True, **settings)
    suggestions = _advice(name, foreach=True, **settings).suggestions
    [fused] = [one for one in suggestions if one.optimizer_arguments == {"fused": True}]
    assert fused.saved_bytes == pytest.approx(real, rel=0.05, abs=70_000)
    assert fused.recipe == ({} if name == "Adagrad" else {"optimizer_impl": "fused"})


@pytest.mark.parametrize("settings", [{}, {"foreach": False}, {"fused": True}])
def test_no_advice_where_nothing_is_held(settings):
    assert not any(one.optimizer_arguments for one in _advice("AdamW", **settings).suggestions)


def test_what_torch_takes_without_a_word():
    cpu, cuda = Personality(kind="cpu"), Personality()
    assert implementation_of(torch.optim.RMSprop, {"foreach": None}, cpu) == "for-loop"
    assert implementation_of(torch.optim.RMSprop, {"foreach": None}, cuda) == "foreach"
    assert implementation_of(torch.optim.AdamW, {"fused": True}, cuda) == "fused"
    assert implementation_of(torch.optim.LBFGS, {}, cuda) is None


UNUSUAL = {
    "sparse gradients that are added up": """
        lookup = nn.Embedding(1000, 16, sparse=True)
        optimizer = torch.optim.SparseAdam(lookup.parameters())
        for _ in range(3):
            words = torch.randint(0, 1000, (64,))
            optimizer.zero_grad()
            (lookup(words) * lookup(words.flip(0))).sum().backward()
            optimizer.step()
        """,
    "nested tensors": """
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            rows = torch.nested.nested_tensor([torch.randn(5, 8), torch.randn(9, 8)], layout=torch.jagged)
            optimizer.zero_grad()
            model(rows).values().sum().backward()
            optimizer.step()
        """,
}


@pytest.mark.parametrize("text", UNUSUAL.values(), ids=UNUSUAL)
def test_a_script_runs_on_where_nothing_can_be_advised(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(text))
    found = profile_script(str(script), steps=3)
    assert found.steps == 3 and found.advice.missing
