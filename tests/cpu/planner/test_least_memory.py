"""Where the search for the least memory begins, and how it makes room for a choice."""

from types import SimpleNamespace

import planned
import pytest
from torch import nn

from snugfit.planner.closeness import with_room
from snugfit.planner.constraints import Constraints
from snugfit.planner.fallbacks import _SAVING
from snugfit.planner.smallest import Smallest
from snugfit.planner.space import Space
from snugfit.recipe import Recipe
from snugfit.workload import Workload

ALL = frozenset({"exact", "rounding", "different"})


def space(allow=ALL, place=planned.CARD, workload=None, **given):
    nothing = SimpleNamespace(subject=SimpleNamespace(built=False), place=place, probes={}, refusals={}, operators=0)
    constraints = Constraints(allow=allow, **given)
    return Space(
        simulations=nothing,
        constraints=constraints,
        workload=workload or Workload(batch_size=8),
        base=constraints.base(),
    )


def starts(of):
    """The recipes that the search asks for first."""
    asked = []
    of.simulations.simulate = lambda recipes, ahead=(): asked.extend(recipes)
    Smallest(of).start(of.constraints.widest)
    return [recipe.to_mapping(defaults=False) for recipe in asked]


def test_the_search_begins_with_all_that_saves_memory_and_goes_together():
    common = {
        "checkpoint": "all", "offload_activations": "checkpoints", "init": "device", "inplace": True, "attention": "sdpa",
        "loss_impl": "chunked",
    }  # fmt: skip
    rounded = {"precision": "bf16-true", "stochastic_rounding": True, "optimizer": "adamw4bit"}
    cut = {"microbatch_size": 1, "accumulate_dtype": "fp32"}
    assert starts(space()) == [
        {**common, "microbatch_size": 1, "offload_optimizer": True},
        {**common, "step_in_backward": True, "offload_optimizer": True},
        {**common, **rounded, "step_in_backward": True},
        {**common, **rounded, **cut, "adapter": "lora", "quantize": "nf4"},
    ]
    assert len(starts(space(allow=frozenset({"exact"})))) == 2


def test_it_begins_with_what_pins_and_the_device_leave():
    for found in starts(space(place=planned.CPU)):
        assert not {"offload_activations", "offload_optimizer"} & found.keys()
    for found in starts(space(pins={"optimizer": "adafactor"})):
        assert found["optimizer"] == "adafactor" and "offload_optimizer" not in found
    alone = starts(space(allow=frozenset({"exact"}), workload=Workload(batch_size=1)))
    assert alone[0] == alone[1] and alone[0]["step_in_backward"] and "microbatch_size" not in alone[0]


@pytest.mark.parametrize(
    ("on", "change", "back"),
    [
        ({"offload_optimizer": True}, {"optimizer": "adamw8bit"}, {"offload_optimizer": False}),
        ({"microbatch_size": 2, "checkpoint": "all"}, {"step_in_backward": True}, {"microbatch_size": None}),
        ({"step_in_backward": True}, {"microbatch_size": 1}, {"step_in_backward": False}),
        ({"checkpoint": "all", "optimizer": "adamw8bit"}, {"precision": "bf16-mixed"}, {}),
    ],
)
def test_what_stands_in_the_way_of_a_choice_is_turned_back(on, change, back):
    assert with_room(space(), Recipe(**on), change) == {**change, **back}


def test_pins_and_fidelity_stay_in_the_way():
    pinned = space(pins={"offload_optimizer": True})
    assert with_room(pinned, pinned.base, {"optimizer": "adamw8bit"}) is None
    assert with_room(space(allow=frozenset({"exact"})), Recipe(), {"optimizer": "adamw8bit"}) is None


def test_fallbacks_take_more_of_what_may_change_in_a_run():
    fields = [field for change in _SAVING for field in change]
    assert "microbatch_size" not in fields and "precision" not in fields and "init" not in fields
    checkpoints = [change["checkpoint"] for change in _SAVING if change.keys() == {"checkpoint"}]
    assert checkpoints == ["selective", "all"]  # the milder one first
    assert {"offload_optimizer": True} in _SAVING and {"step_in_backward": True} in _SAVING


class Deep(nn.Module):
    """What is done before the blocks needs most of the memory, as in a ResNet on large images."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(16, 64)
        self.blocks = nn.ModuleList(planned.Block(64) for _ in range(2))
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        x = self.stem(x)
        for _ in range(12):
            x = x.sin()
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def test_a_refusal_has_looked_at_activations_on_the_host(planning_pool):
    given = {"place": planned.CARD, "model": Deep, "batch": planned.batch_of(256), "pins": {"microbatch_size": None}}
    with planned.planner(planning_pool, **given) as planner:
        needs = [seen.need_bytes for seen in Smallest(planner.space()).ever_leaner() if seen is not None]
    assert min(needs[:-1]) > 0.7 * needs[0] and needs[-1] < 0.5 * needs[0]
