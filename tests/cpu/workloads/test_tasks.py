"""Loss and metric of the tasks."""

import math
from types import SimpleNamespace

import pytest
import torch

from snugfit.errors import InputError
from snugfit.workloads.tasks import task_named, task_of_loss

SCORES = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]])
BATCH = (torch.zeros(3, 1), torch.tensor([0, 1, 1]))


def test_loss_is_the_mean_over_samples():
    task = task_named("image-classification")
    each = [-torch.log_softmax(SCORES, 1)[row, label] for row, label in enumerate(BATCH[1])]
    assert torch.allclose(task.loss(SCORES, BATCH), torch.stack(each).mean())
    assert task.loss_weight == "samples"


def test_accuracy_counts():
    task = task_named("image-classification")
    correct, count = task.metrics[task.main_metric](SCORES, BATCH)
    assert (int(correct), count) == (2, 3)


@pytest.mark.parametrize("wrap", [lambda s: (s, s * 0), lambda s: {"logits": s}, lambda s: SimpleNamespace(logits=s)])
def test_outputs_of_other_kinds(wrap):
    assert int(task_named("image-classification").metrics["accuracy"](wrap(SCORES), BATCH)[0]) == 2


def test_what_is_no_classifier():
    with pytest.raises(InputError, match=r"shape \[1, 2, 3, 4\]"):
        task_named("image-classification").loss(torch.zeros(1, 2, 3, 4), BATCH)
    with pytest.raises(InputError, match="did you mean 'image-classification'"):
        task_named("image-clasification")


def test_tasks_of_text_take_the_loss_of_the_model():
    task = task_named("causal-lm")
    assert task.metric_names == ("perplexity",) and task.main_metric == "perplexity" and not task.higher_is_better
    batch = {"input_ids": torch.zeros(2, 4), "labels": torch.tensor([[1, 2, -100, 3], [-100, -100, -100, 4]])}
    assert int(task.weight_of(batch)) == 3
    loss = torch.tensor(2.0)
    for output in (SimpleNamespace(loss=loss), {"loss": loss}, loss):
        assert task.loss_of(output, batch) is loss
    with pytest.raises(InputError, match="a model that returns its loss"):
        task.loss_of(SimpleNamespace(loss=None), batch)
    perplexity = task.metrics_of_loss["perplexity"]
    assert perplexity(0.0) == 1 and perplexity(math.log(50)) == pytest.approx(50) and perplexity(1e4) == math.inf


def test_labels_are_found_in_dicts():
    task = task_named("text-classification")
    assert task.weight_of({"input_ids": torch.zeros(3, 7), "labels": BATCH[1]}) == 3 and task.higher_is_better
    assert int(task.metrics["accuracy"]({"logits": SCORES}, {"labels": BATCH[1]})[0]) == 2


def test_a_loss_of_ones_own_is_better_when_it_is_lower():
    assert task_of_loss(None).main_metric == "loss" and not task_of_loss(None).higher_is_better
