"""The learning rate over a run: literal tables."""

import pytest
import torch

from snugfit import InputError, Workload
from snugfit.training.schedule import check_schedule, lr_factor


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({}, [1, 1, 1]),
        ({"warmup_steps": 3}, [0.25, 0.5, 0.75, 1, 1]),
        ({"lr_schedule": "linear", "max_steps": 4}, [1, 0.75, 0.5, 0.25, 0, 0]),
        ({"lr_schedule": "cosine", "max_steps": 4}, [1, 0.853553, 0.5, 0.146447, 0, 0]),
        ({"lr_schedule": "cosine", "max_steps": 4, "warmup_steps": 2}, [1 / 3, 2 / 3, 1, 0.5, 0]),
        ({"lr_schedule": "linear", "max_steps": 2, "warmup_steps": 2}, [1 / 3, 2 / 3, 1, 0]),
        ({"lr_schedule": "linear", "max_steps": 1}, [1, 0]),
    ],
    ids=str,
)
def test_factors(settings, factors):
    workload = Workload(**settings)
    check_schedule(workload)
    assert [lr_factor(step, workload) for step in range(len(factors))] == pytest.approx(factors, abs=1e-6)


def test_cosine_is_that_of_torch():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
    workload = Workload(lr_schedule="cosine", max_steps=7)
    for step in range(8):
        assert lr_factor(step, workload) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"lr_schedule": "cosine"}, "give max_steps"), ({"warmup_steps": 5, "max_steps": 4}, "more than the 4 steps")],
)
def test_schedules_that_cannot_be_computed(settings, message):
    with pytest.raises(InputError, match=message):
        check_schedule(Workload(**settings))
