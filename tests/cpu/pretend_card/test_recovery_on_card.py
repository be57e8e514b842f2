"""Memory of a pretend card ends at any operator: the run ends with the parameters of a run that had enough."""

import functools
import random
import warnings
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.phases import listen
from snugfit.pretend_card.memory import CardMemory
from snugfit.pretend_card.present import card_present
from snugfit.training.course import Course
from snugfit.training.evaluation import task_of

RECIPES = {
    "fused": {},
    "foreach": {"optimizer_impl": "foreach"},
    "checkpoint": {"checkpoint": "all"},
    "offload_optimizer": {"offload_optimizer": True},
    "offload_activations": {"offload_activations": "all"},
}
FAULTS = {"fused": 8}
"""Operators of a phase at which memory ends; 4 for recipes that are not here."""
LOOKED_INTO = "fused"
"""The recipe of which nobody says that its batch may be cut: that is tried before it is, which takes most of the time."""
SAMPLES = 8


PHASES = ("forward", "backward", "optimizer", "evaluation")


@contextmanager
def _full_at(phase, number):
    """The card has no room for one request in a phase, and all it has for the others; yields how many each phase had."""
    inside, counts = [], Counter()
    malloc = CardMemory._malloc

    def heard(name, entered):
        inside.append(name) if entered else inside.pop()

    def full_once(memory, nbytes, stream):
        within = [name for name in PHASES if name in inside]
        counts.update(within)
        if phase not in within or counts[phase] - 1 != number:
            return malloc(memory, nbytes, stream)
        allocator = memory.allocator
        before, allocator.capacity_bytes = allocator.capacity_bytes, 0
        try:
            return malloc(memory, max(nbytes, 2**40), stream)
        finally:
            allocator.capacity_bytes = before

    CardMemory._malloc = full_once
    try:
        with listen(heard):
            yield counts
    finally:
        CardMemory._malloc = malloc


def _run(name, phase=None, number=None):
    """Trains three steps with an evaluation in between; the second step, or the evaluation, may find no memory."""
    with card_present(None, seed=number or 0) as card:
        model = make_model("mlp")
        del model.blocks[2:]  # two know all that blocks have to do with each other, and a third has no other operators
        trainer = snugfit.prepare(
            model, Recipe(**RECIPES[name]), loss=cross_entropy, device=card.personality.device, lr=0.01,
            coupled_samples=None if name == LOOKED_INTO else False,
        )  # fmt: skip
        course = Course(trainer, task_of(cross_entropy))
        first, second, third = make_batches("mlp", SAMPLES, 3)
        course.train([first])
        with _full_at(phase, number) as counts:
            course.train([second])
            found = course.evaluate([first])
        course.train([third])
        trainer.finish()
        return [weight.detach().cpu() for weight in model.parameters()], found[0].cpu(), counts


@pytest.fixture(scope="module")
def enough():
    """A recipe's run that had enough memory, once for all phases."""
    return functools.cache(_run)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("phase", PHASES)
def test_memory_ends_at_any_operator(phase, name, enough):
    plain, found, counts = enough(name)
    count = counts[phase]
    assert count > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        for number in random.Random(0).sample(range(count), min(count, FAULTS.get(name, 4))):
            weights, other, _ = _run(name, phase, number)
            assert max((one - two).abs().max() for one, two in zip(weights, plain, strict=True)) < 1e-9, number
            torch.testing.assert_close(other, found, rtol=1e-9, atol=1e-9)
