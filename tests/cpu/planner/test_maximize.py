"""The largest size that fits: by memory, and by what the model takes; other mistakes are not taken for a size."""

import planned
import pytest
from text_models import BERT, config_file

from snugfit.errors import InputError, SequenceTooLongError
from snugfit.planner.constraints import constraints_from
from snugfit.planner.maximize import _largest, plan_for_largest
from snugfit.simulator.request import NamedModel
from snugfit.workload import Workload

SIZED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(192, 32), nn.Linear(32, 10)
        self.shift = nn.Parameter(torch.zeros(5, 32))

    def forward(self, x):
        return self.head(self.layer(x.flatten(1)) + self.shift[: len(x)])


def build():
    return Net()


def wrong():
    return nn.Linear(7, 3)
"""
"""A model that takes at most five samples, and one that takes no image at all."""


@pytest.mark.parametrize("limit", [1, 2, 5, 64, 100])
def test_the_largest_size_is_found(limit):
    asked = []

    def fits(size, smaller):
        asked.append((size, smaller))
        return size <= limit

    assert _largest(fits) == limit
    assert all(smaller < size and smaller <= limit for size, smaller in asked)
    assert _largest(lambda size, smaller: False) is None


def maximized(pool, named, what, budget_bytes=2**30):
    constraints = constraints_from(forbid=["loss_impl"], host_budget="1GiB")
    plan = plan_for_largest(what, named, Workload(batch_size=2), planned.CPU, constraints, budget_bytes, pool=pool)
    return plan.maximized


def test_a_sequence_ends_where_the_positions_of_the_model_do(planning_pool, tmp_path):
    config = config_file(tmp_path, BERT, max_position_embeddings=24, num_hidden_layers=1)
    named = NamedModel(spec=f"hf:{config}", task="text-classification")
    assert maximized(planning_pool, named, "seq-len") == {"seq_len": 24}


def test_a_batch_ends_where_the_model_takes_no_more(planning_pool, tmp_path, monkeypatch):
    (tmp_path / "sized.py").write_text(SIZED)
    named = NamedModel(spec=f"{tmp_path}/sized.py:build", image_size=8)
    assert maximized(planning_pool, named, "batch-size") == {"batch_size": 5}
    with pytest.raises(InputError) as error:
        maximized(planning_pool, NamedModel(spec=f"{tmp_path}/sized.py:wrong", image_size=8), "batch-size")
    assert not isinstance(error.value, SequenceTooLongError)
