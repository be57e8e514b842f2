"""Forward passes leave behind what they do in plain training, and losses and weights are equal, by every exact technique."""

import functools
import re
import warnings

import pytest
import torch
from exact_recipes import EXACT
from stateful_models import KINDS, LEFT_ALONE, REFUSED, batches, forward, left_behind, make

import snugfit
from snugfit import InputError, Recipe

STEPS = 3
RECIPES = {
    **{name: fields for name, fields in EXACT.items() if name != "compile"},  # compilers change no technique of these
    "checkpoint+inplace": {"checkpoint": "all", "inplace": True},
    "checkpoint+in_backward": {"checkpoint": "all", "step_in_backward": True},
    "checkpoint+offload": {"checkpoint": "blocks:2", "offload_activations": "all"},
}


@functools.cache
def plain(kind):
    model = make(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches(STEPS):
        optimizer.zero_grad()
        loss = forward(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict(), left_behind(model)


def trained(kind, **fields):
    model = make(kind)
    trainer = snugfit.prepare(
        model, Recipe(**fields), forward=forward, optimizer="sgd", lr=0.1, momentum=0.9, device="cpu"
    )
    losses = [trainer.step(batch).item() for batch in batches(STEPS)]
    return losses, model.state_dict(), left_behind(model), trainer


def agree(kind, losses, weights, left):
    wanted_losses, wanted, wanted_left = plain(kind)
    assert losses == pytest.approx(wanted_losses, rel=1e-9)
    for name, value in wanted.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-9, atol=1e-9, msg=name)
    assert left == wanted_left


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "microbatch"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != REFUSED])
def test_equals_plain_training(kind, recipe):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        *found, trainer = trained(kind, **RECIPES[recipe])
    agree(kind, *found)
    assert trainer.fidelity.level == "exact"
    alone = [str(one.message) for one in told if "as it is" in str(one.message)]
    assert bool(alone) == (kind in LEFT_ALONE and "checkpoint" in RECIPES[recipe])
    assert not alone or re.match(
        "checkpoint leaves 'blocks.0' as it is: it (writes into its|holds an iterator) ", alone[0]
    )


@pytest.mark.filterwarnings("ignore:.*(has no effect|finds no attention):snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize("recipe", RECIPES)
def test_what_nobody_can_put_back_is_refused(recipe):
    if "checkpoint" in RECIPES[recipe]:
        with pytest.raises(InputError, match=r"block 'blocks.\d', run twice .* gives two results.*Nothing was updated"):
            trained(REFUSED, **RECIPES[recipe])
    elif recipe not in ("microbatch", "step_in_backward"):  # they are tried before, which it counts
        agree(REFUSED, *trained(REFUSED, **RECIPES[recipe])[:3])


STATELESS = (
    "kept activation",
    "told by its parent",
    "hook that keeps",
    "penalties in a list",
)
"""Kinds whose passes leave nothing behind that the next one of the same weights would see."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in STATELESS])
def test_microbatches_of_what_moves_are_not_called_exact(kind):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        *_, trainer = trained(kind, microbatch_size=4)
    assert trainer.fidelity.level == "different"
    assert any("changes the update" in str(one.message) for one in told)
