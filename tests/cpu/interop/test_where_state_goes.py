"""Where weights and state should be: the tree's answer at each size of card and host, and the bytes behind it."""

from types import SimpleNamespace

import pytest

from snugfit.errors import InputError
from snugfit.interop import where_state_goes
from snugfit.interop.where_state_goes import places_for
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.simulator.request import NamedModel
from snugfit.units import GIB
from snugfit.workload import Workload

MODEL = NamedModel(spec="model.py:build")
WEIGHTS, STATE = 40 * GIB, 160 * GIB
"""A model of 10 billion parameters in fp32 with AdamW: weights, and with them gradients and moments."""


def predicted(named, device, recipe, workload):
    """What a simulation might say: a GPU computes in 2 GiB beside what it holds."""
    Run(recipe, workload)
    held = STATE // workload.ranks if recipe.shard != "none" else STATE
    host = recipe.offload_parameters == "all"
    need = 2 * GIB + (0 if host else held)
    moments = {"gradients": (0, WEIGHTS, 0), "optimizer_state": (0, 0, STATE - 2 * WEIGHTS)}
    return SimpleNamespace(
        title="big", total_bytes=need, anatomy_bytes={"weights": WEIGHTS}, step_seconds=2.0 if host else 1.0,
        devices=(SimpleNamespace(fits=need <= 24 * GIB),),
        timeline=lambda points: SimpleNamespace(bytes_by_category=moments),
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(where_state_goes, "_predicted", predicted)

    def ask(gpus, host, *, recipe=None, nodes=1, **more):
        run = Run(recipe or Recipe(), Workload(batch_size=64, gpus=gpus, nodes=nodes))
        return places_for(MODEL, run, "rtx-3090", host_bytes=host * GIB, **more)

    return ask


@pytest.mark.parametrize(
    ("gpus", "host", "chosen", "verdict"),
    [
        (8, 512, "shared out", "NVMe is not worth it"),
        (4, 512, "on the host", "NVMe is not worth it"),
        (1, 512, "on the host", "NVMe is not worth it"),
        (4, 64, "on NVMe", "The host is too small by 96.0 GiB, so NVMe is worth it"),
        (1, 64, "on NVMe", "so NVMe is worth it"),
    ],
)
def test_the_first_place_that_holds_it_is_chosen(asked, gpus, host, chosen, verdict):
    found = asked(gpus, host)
    assert found.chosen == chosen and verdict in found.verdict
    assert next(place.name for place in found.places if place.fits) == chosen
    assert found.state_bytes == STATE
    assert ("shared out" in [place.name for place in found.places]) == (gpus > 1)
    assert str(found).count("<- here") == 1


def test_a_model_that_fits_one_gpu_needs_nothing(asked, monkeypatch):
    monkeypatch.setattr(where_state_goes, "_predicted", lambda *given: predicted_small(*given))
    found = asked(4, 64)
    assert found.chosen == "on each GPU" and "ZeRO would only cost time" in found.verdict


def predicted_small(named, device, recipe, workload):
    found = predicted(named, device, recipe, workload)
    found.devices = (SimpleNamespace(fits=True),)
    return found


def test_what_drives_carry(asked):
    # Weights for two passes over each of 4 pieces and once back; gradients and moments (the rest) there and back.
    found = asked(4, 64, recipe=Recipe(microbatch_size=4), nvme_speed=10**9)
    assert found.nvme_step_bytes == WEIGHTS * 9 + 2 * (STATE - WEIGHTS)
    assert found.places[-1].step_seconds == found.nvme_step_bytes / 1e9
    assert "The drives set the pace" in found.verdict
    fast = asked(4, 64, recipe=Recipe(microbatch_size=4), nvme_speed=10**13)
    assert fast.places[-1].step_seconds == 2.0 and "The GPUs set the pace" in fast.verdict
    # Two machines have half of it each.
    assert asked(4, 64, nodes=2).nvme_step_bytes == asked(4, 64).nvme_step_bytes // 2


def test_the_recipes_own_places_do_not_count(asked):
    for recipe in (
        Recipe(shard="full", offload_parameters="all"),
        Recipe(offload_optimizer=True),
        Recipe(optimizer="adamw8bit"),
    ):
        assert asked(4, 64, recipe=recipe) == asked(4, 64)


@pytest.mark.parametrize("device", ["cpu", "all", "m3-min"])
def test_the_question_is_about_one_card(asked, device):
    with pytest.raises(InputError, match=device):
        places_for(MODEL, Run(Recipe(), Workload(batch_size=8)), device)
