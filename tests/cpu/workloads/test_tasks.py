"""Loss and metric of the tasks."""

from types import SimpleNamespace

import pytest
import torch

from snugfit.errors import InputError
from snugfit.workloads.tasks import task_named

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
