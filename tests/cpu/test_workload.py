"""The workload: defaults, help, mistakes all at once."""

import dataclasses

import pytest

from snugfit import RecipeError, Workload
from snugfit.fields import field_infos, from_text

FIELDS = (
    "optimizer", "lr", "weight_decay", "betas", "momentum", "no_decay", "lr_schedule", "warmup_steps", "clip_norm",
    "ema_decay",
    "batch_size", "gpus", "nodes", "epochs", "max_steps", "seed", "weights", "freeze", "eval_every", "evaluate",
    "save_every", "patience", "keep_best", "coupled_samples", "keep_gradients", "keep_outputs", "batch_norm", "dropout",
    "half_weights",
)  # fmt: skip


def test_the_set_of_fields_is_pinned_and_each_says_what_it_does():
    infos = field_infos(Workload)
    assert tuple(infos) == FIELDS
    assert all(len(info.doc) > 15 and info.doc.endswith(".") for info in infos.values())


def test_defaults_are_those_of_torch():
    workload = Workload()
    assert (workload.lr, workload.weight_decay, workload.betas, workload.momentum) == (None, None, None, 0.0)
    assert workload.to_mapping(defaults=False) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"lr": -1.0}, {"lr": float("nan")}, {"lr": float("inf")}, {"lr": True}, {"lr": "fast"}, {"momentum": -0.1},
        {"clip_norm": 0}, {"betas": (0.9,)}, {"betas": (0.9, 1.0)}, {"betas": ("a", "b")}, {"batch_size": 0}, {"epochs": 0},
        {"max_steps": 1.5}, {"seed": -1}, {"warmup_steps": -1}, {"optimizer": "lion"}, {"lr_schedule": "step"},
        {"freeze": (1,)}, {"save_every": 0}, {"eval_every": 0}, {"patience": 0},
        {"patience": 2, "evaluate": False}, {"keep_best": "loss", "evaluate": False}, {"keep_best": 3},
        {"weight_decay": -0.1}, {"no_decay": None},
    ],
    ids=str,
)  # fmt: skip
def test_values_that_make_no_sense(fields):
    with pytest.raises(RecipeError, match=next(iter(fields))):
        Workload(**fields)


def test_all_mistakes_at_once_and_frozen():
    with pytest.raises(RecipeError, match="training settings: 4 problems"):
        Workload.from_mapping({"lr": -1, "epoch": 2, "betas": [1], "optimizer": "lamb"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        Workload().lr = 1.0


def test_round_trip_and_texts():
    workload = Workload(freeze="a.*, b", betas=(0.8, 0.9), lr=1, clip_norm=1.0)
    assert workload.freeze == ("a.*", "b")
    assert Workload.from_mapping(workload.to_mapping()) == workload
    assert workload.replace(lr=2.0).lr == 2.0
    assert from_text(field_infos(Workload)["betas"], "0.9, 0.95") == (0.9, 0.95)
    assert from_text(field_infos(Workload)["lr"], "1e-3") == 1e-3
    assert from_text(field_infos(Workload)["clip_norm"], "none") is None
