"""Clipping by hand beside a step is told once; clipping elsewhere, or by the step itself, is not."""

import warnings

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from torch.nn.utils import clip_grad_norm_

import snugfit
from snugfit import Recipe, SnugfitWarning

BATCHES = make_batches("mlp", 6, 3, torch.float32)


def trainer(**settings):
    model = make_model("mlp", torch.float32)
    return snugfit.prepare(model, Recipe(), loss=cross_entropy, optimizer="sgd", lr=0.1, device="cpu", **settings)


def clips(trainer):
    for batch in BATCHES:
        trainer.step(batch)
        clip_grad_norm_(trainer.model.parameters(), 1.0)


def does_not(trainer):
    for batch in BATCHES:
        trainer.step(batch)


def test_a_loop_that_clips_in_vain_is_told_once():
    with pytest.warns(SnugfitWarning, match="clip_grad_norm_ beside trainer.step finds no gradients") as told:
        clips(trainer())
    assert len(told) == 1


@pytest.mark.parametrize(
    ("loop", "settings"), [(clips, {"clip_norm": 1.0}), (clips, {"keep_gradients": True}), (does_not, {})]
)
def test_others_are_not(loop, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnugfitWarning)
        loop(trainer(**settings))
