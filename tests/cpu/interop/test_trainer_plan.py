"""`plan_for`: changed TrainingArguments that fit as measured, keep the effective batch, and say what they cost."""

import re

import pytest

import snugfit
from snugfit.errors import DoesNotFitError, InputError

pytest.importorskip("transformers", reason="transformers is not installed (pip install 'snugfit[text]')")

import small_trainers

from snugfit.interop.transformers import MemoryCallback

BUDGET = 9 * 2**20


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    trainer = small_trainers.trainer(folder, evaluated=True, per_device_eval_batch_size=24)
    return trainer, snugfit.plan_for(trainer, budget=BUDGET, device="cpu")


def test_the_arguments_keep_the_effective_batch_and_the_trainer_as_it_is(plan):
    trainer, found = plan
    args = found.arguments
    assert found.changes and found.fidelity == "exact"
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 8
    assert trainer.args.per_device_train_batch_size == 8 and args is not trainer.args
    for name, (before, now) in found.changes.items():
        assert getattr(trainer.args, name) == before and getattr(args, name) == now
        assert f"{name}: {before} -> {now}" in str(found)
    assert found.as_it_is.need_bytes > BUDGET >= found.need_bytes + found.margin_bytes
    assert "predicted within 9.00 MiB: " in str(found) and "of the budget are left" in str(found)


def test_it_is_the_fastest_of_those_that_fit(plan):
    _, found = plan
    capacity = BUDGET - found.margin_bytes
    fitting = [one for one in found.tried if one.need_bytes is not None and one.need_bytes <= capacity]
    assert found.step_seconds == min(one.step_seconds for one in fitting)


def test_a_trainer_of_those_arguments_takes_what_the_plan_says(plan, tmp_path):
    _, found = plan
    callback = MemoryCallback(predict=False)
    trainer = small_trainers.trainer(tmp_path, [callback], evaluated=True)
    again = type(trainer)(
        model=trainer.model, args=found.arguments, data_collator=trainer.data_collator, callbacks=[callback],
        train_dataset=trainer.train_dataset, eval_dataset=trainer.eval_dataset,
    )  # fmt: skip
    again.train()
    assert callback.report.measured_bytes <= BUDGET
    assert callback.report.measured_bytes == pytest.approx(found.estimate.peak_allocated_bytes, rel=0.03)


def test_where_nothing_fits_the_smallest_budget_is_said(tmp_path):
    trainer = small_trainers.trainer(tmp_path, per_device_train_batch_size=2)
    with pytest.raises(
        DoesNotFitError, match=r"effective batch of 2\. Budgets that do: \d+ MiB, \d+ MiB with allow='rounding'"
    ) as refused:
        snugfit.plan_for(trainer, budget="1MiB", device="cpu")
    budgets = [int(size) for size in re.findall(r"(\d+) MiB", str(refused.value).partition("Budgets")[2])]
    assert budgets == sorted(set(budgets), reverse=True)  # what is allowed beside is named where less memory does


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"budget": "lots"}, "budget 'lots' is not understood"),
        ({"budget": "8GiB", "device": "rtx-9999"}, "rtx-9999"),
        ({"budget": "8GiB", "allow": "rounded"}, "did you mean 'rounding'"),
        ({"device": "cpu"}, "give a budget"),
    ],
)
def test_wrong_settings_are_told_at_once(settings, said, tmp_path):
    with pytest.raises(InputError, match=said):
        snugfit.plan_for(small_trainers.trainer(tmp_path), **settings)


def test_what_is_no_trainer_or_has_no_data_is_told(tmp_path):
    with pytest.raises(InputError, match=r"give a transformers\.Trainer"):
        snugfit.plan_for("trainer", budget="8GiB")
    trainer = small_trainers.trainer(tmp_path)
    trainer.train_dataset = None
    with pytest.raises(InputError, match="has no train_dataset"):
        snugfit.plan_for(trainer, budget="8GiB")
