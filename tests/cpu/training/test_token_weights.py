"""Microbatches of padded text: the update is that of the whole batch, however unequal their token counts."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
from text_models import BERT, LLAMA, build

import snugfit
from snugfit.recipe import Recipe
from snugfit.training.evaluation import add_up, read
from snugfit.workloads.tasks import shifted_labels, task_named
from snugfit.workloads.text.padded import PaddedTexts
from snugfit.workloads.text.ragged import Ragged


def evaluate(trainer, batches, task):
    return read(add_up(trainer, batches, task), task)


LENGTHS = (3, 60, 5, 2, 33)
PROMPTS = (0, 55, 2, 0, 30)
TASK = task_named("causal-lm")


def sequences(lengths=LENGTHS, prompts=PROMPTS):
    random = np.random.default_rng(3)
    ids = [random.integers(3, 259, size=size) for size in lengths]
    held = (np.where(np.arange(len(one)) < prompt, ~one, one) for one, prompt in zip(ids, prompts, strict=True))
    return PaddedTexts(Ragged.of(held), pad_id=0, limit=64)


def loss_in_float64(logits, labels, vocab_size, **_):
    """As transformers computes it, which goes through float32 whatever the model's dtype."""
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, vocab_size), shifted.reshape(-1), ignore_index=-100)


def language_model():
    model = build(LLAMA).double()
    model.loss_function = loss_in_float64
    return model


def test_labels_that_count_are_those_left_after_the_shift():
    batch = sequences().batch(range(5))
    assert int(shifted_labels(batch)) == 2 + 5 + 3 + 1 + 3
    assert int(shifted_labels({"labels": torch.tensor([[7, 8, 9]])})) == 2


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gradients_equal_those_of_the_whole_batch(size):
    batch = sequences().batch(range(5))
    plain = language_model()
    loss = plain(**batch).loss
    loss.backward()
    model = language_model()
    trainer = snugfit.prepare(
        model, Recipe(microbatch_size=size), optimizer="sgd", lr=1.0, loss_weight=TASK.loss_weight, batch_size=5
    )
    assert float(trainer.step(batch)) == pytest.approx(loss.item(), rel=1e-12)
    # A step of SGD at rate 1 is the gradient itself.
    for (name, one), other in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(one - one.grad, other, rtol=0, atol=1e-10), name


def test_plain_averaging_would_not():
    batch = sequences().batch(range(5))
    plain = language_model()
    plain(**batch).loss.backward()
    model = language_model()
    trainer = snugfit.prepare(model, Recipe(microbatch_size=2), optimizer="sgd", lr=1.0, loss_weight="samples")
    with pytest.warns(snugfit.SnugfitWarning, match="With loss_weight=shifted_labels .* they agree"):
        trainer.step(batch)
    assert str(trainer.fidelity) == "different (microbatch_size)"
    errors = [
        (one - one.grad - other).abs().max() for one, other in zip(plain.parameters(), model.parameters(), strict=True)
    ]
    assert max(errors) > 1e-4


@pytest.mark.parametrize("size", [1, 2, 5])
def test_evaluation_is_a_mean_over_tokens_however_it_is_cut(size):
    data = sequences()
    model = language_model()
    trainer = snugfit.prepare(model, Recipe(), loss_weight=TASK.loss_weight, batch_size=5)
    found = evaluate(trainer, [data.batch(range(i, min(i + size, 5))) for i in range(0, 5, size)], TASK)
    with torch.no_grad():
        expected = model.eval()(**data.batch(range(5))).loss.item()
    assert found.samples == 5
    assert found.loss == pytest.approx(expected, rel=1e-10)
    assert found.metrics == {"perplexity": pytest.approx(np.exp(expected), rel=1e-10)}


def test_evaluation_of_classifiers_counts_samples():
    task = task_named("text-classification")
    model = build(BERT, classes=3)
    trainer = snugfit.prepare(model, Recipe(), batch_size=4)
    random = torch.Generator().manual_seed(0)
    batches = [
        {
            "input_ids": torch.randint(3, 259, (rows, 16), generator=random),
            "attention_mask": torch.ones(rows, 16, dtype=torch.long),
            "labels": torch.randint(3, (rows,), generator=random),
        }
        for rows in (4, 1)
    ]
    found = evaluate(trainer, batches, task)
    with torch.no_grad():
        logits = torch.cat([model.eval()(**batch).logits for batch in batches])
    labels = torch.cat([batch["labels"] for batch in batches])
    assert found.metrics == {"accuracy": pytest.approx((logits.argmax(1) == labels).float().mean().item())}
    assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)


def test_a_microbatch_without_a_label_that_counts_is_left_out():
    model = torch.nn.Linear(4, 3).double()
    inputs, labels = torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 2, -100, -100])

    def loss(output, batch):
        return torch.nn.functional.cross_entropy(output, batch[1])

    trainer = snugfit.prepare(
        model, snugfit.Recipe(microbatch_size=2), loss=loss, loss_weight="tokens", optimizer="sgd", lr=0.1, device="cpu"
    )
    expected = loss(model(inputs), (inputs, labels))
    found = trainer.step((inputs, labels))
    assert torch.isfinite(model.weight).all() and found == pytest.approx(float(expected.detach()), abs=1e-12)
