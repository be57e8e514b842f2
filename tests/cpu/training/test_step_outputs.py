"""`trainer.step(batch, outputs=True)`: what the model returned, and named losses, of all microbatches together."""

import gc

import pytest
import torch
import torch.nn.functional as F
from small_models import MLP
from text_models import LLAMA, build
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.measure.allocator_events import AllocatorEvents

RECIPES = [{}, {"microbatch_size": 3}, {"microbatch_size": 3, "checkpoint": "all"}, {"step_in_backward": True}]


def batch(samples=8):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 12, generator=random, dtype=torch.float64)
    return x, torch.randint(0, 5, (samples,), generator=random)


def parts(output, given):
    hits = (output.argmax(1) == given[1]).double().mean()
    size = output.square().mean()
    return F.cross_entropy(output, given[1]) + 0.1 * size, {"accuracy": hits, "size": size, "constant": 2}


def double(seed=0):
    torch.manual_seed(seed)
    return MLP().double()


@pytest.mark.parametrize("fields", RECIPES, ids=str)
def test_outputs_and_named_losses_are_those_of_the_batch(fields):
    model = double()
    expected = model(batch()[0]).detach()
    loss, named = parts(expected, batch())
    trainer = snugfit.prepare(model, Recipe(**fields), loss=parts, device="cpu")
    found = trainer.step(batch(), outputs=True)
    torch.testing.assert_close(found.outputs, expected)
    torch.testing.assert_close(found.loss, loss)
    assert found.losses == {name: pytest.approx(float(value)) for name, value in named.items()}
    assert not any(one.requires_grad for one in (found.outputs, found.loss, *found.losses.values()))
    assert isinstance(trainer.step(batch()), torch.Tensor)


def test_steps_with_outputs_update_as_those_without():
    results = []
    for outputs in (False, True):
        model = double()
        trainer = snugfit.prepare(model, Recipe(microbatch_size=2), loss=parts, device="cpu")
        for _ in range(3):
            trainer.step(batch(), outputs=outputs)
        results.append(model.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(results[0].values(), results[1].values(), strict=True))


class Several(nn.Module):
    """Returns a dict with its losses in it."""

    def __init__(self):
        super().__init__()
        self.inner = MLP()

    def forward(self, x, labels):
        logits = self.inner(x)
        first, second = F.cross_entropy(logits, labels), logits.square().mean()
        return {"loss": first + second, "logits": logits, "first": first.detach(), "hidden": (logits, [logits * 2])}


@pytest.mark.parametrize("size", [None, 3])
def test_numbers_of_a_model_are_losses(size):
    torch.manual_seed(0)
    model = Several().double()
    given = dict(zip(("x", "labels"), batch(), strict=True))
    expected = model(**given)
    found = snugfit.prepare(model, Recipe(microbatch_size=size), device="cpu").step(given, outputs=True)
    assert found.losses == {name: pytest.approx(float(expected[name])) for name in ("loss", "first")}
    assert found.losses["loss"] == found.loss
    torch.testing.assert_close(found.outputs["logits"], expected["logits"])
    torch.testing.assert_close(found.outputs["hidden"][1][0], 2 * expected["logits"])


def test_models_of_transformers_return_what_they_return():
    words = torch.randint(0, 259, (4, 6))
    model = build(LLAMA)
    expected = model(input_ids=words, labels=words)
    trainer = snugfit.prepare(model, Recipe(microbatch_size=2), device="cpu")
    found = trainer.step({"input_ids": words, "labels": words}, outputs=True)
    assert type(found.outputs) is type(expected)
    torch.testing.assert_close(found.outputs.logits, expected.logits)
    torch.testing.assert_close(found.losses["loss"], found.loss)


def test_samples_without_a_label_that_counts_are_there():
    x, labels = batch()
    labels[:3] = -100
    model = double()
    expected = model(x).detach()
    trainer = snugfit.prepare(
        model, Recipe(microbatch_size=3), loss=nn.CrossEntropyLoss(), loss_weight="tokens", device="cpu"
    )
    found = trainer.step((x, labels), outputs=True)
    torch.testing.assert_close(found.outputs, expected)
    torch.testing.assert_close(found.loss, F.cross_entropy(expected, labels))


def some_names(output, given):
    return output.mean(), {"first": output.mean()} if len(output) > 2 else {}


@pytest.mark.parametrize(
    ("loss", "forward", "words"),
    [
        (lambda output, given: (output.mean(), {"all": output}), None, "'all' is shape"),
        (lambda output, given: (output.mean(), {"word": "good"}), None, "'word' is a str"),
        (lambda output, given: (output, {}), None, "must be one number"),
        (some_names, None, "not all of them for every microbatch"),
        (lambda output, given: output[0].mean(), lambda model, given: (model(given[0]), object()), "returns a object"),
        (
            lambda output, given: output.mean(),
            lambda model, given: model(given[0])[:, : len(given[0])],
            "do not join; leave outputs=True out",
        ),
    ],
)
def test_what_cannot_be_given_back_is_said_before_the_update(loss, forward, words):
    model = double()
    before = model.head.weight.clone()
    trainer = snugfit.prepare(
        model, Recipe(microbatch_size=3), loss=loss, forward=forward, device="cpu", coupled_samples=False
    )
    with pytest.raises(InputError, match=words):
        trainer.step(batch(), outputs=True)
    assert torch.equal(model.head.weight, before) and trainer.steps_done == 0


def test_logits_that_are_never_computed_are_said():
    words = torch.randint(0, 512, (2, 6))
    trainer = snugfit.prepare(build(LLAMA, vocab_size=512), Recipe(loss_impl="chunked"), device="cpu")
    with pytest.raises(InputError, match="never computes its logits"):
        trainer.step({"input_ids": words, "labels": words}, outputs=True)
    trainer.step({"input_ids": words, "labels": words})


def test_an_evaluation_takes_a_loss_with_names():
    trainer = snugfit.prepare(MLP(), loss=parts, device="cpu")
    found = snugfit.estimate(MLP(), (batch()[0].float(), batch()[1]), loss=parts, device="cpu")
    assert found.peak_allocated_bytes > 0 and trainer.steps_done == 0


class Wide(nn.Module):
    """Whose output is most of what it holds."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 4096)

    def forward(self, x):
        return self.head(x)


def wide_loss(output, given):
    return output.square().mean()


@pytest.mark.parametrize("size", [None, 16])
def test_predicted_bytes_are_the_measured_ones(pool, size):
    recipe = Recipe(microbatch_size=size)

    def measured():
        events = AllocatorEvents()
        gc.collect()
        events.start()
        trainer = snugfit.prepare(Wide(), recipe, loss=wide_loss, device="cpu", optimizer="sgd", coupled_samples=False)
        for _ in range(3):
            given = torch.randn(64, 16)
            found = trainer.step(given, outputs=True)
        events.stop()
        assert found.outputs.shape == (64, 4096)
        return events.peak_bytes

    measured()
    given = {"loss": wide_loss, "optimizer": "sgd", "recipe": recipe, "device": "cpu", "pool": pool, "evaluate": False}
    plain = snugfit.estimate(Wide, torch.empty(64, 16), **given)
    found = snugfit.estimate(Wide, torch.empty(64, 16), keep_outputs=True, **given)
    assert found.peak_allocated_bytes == pytest.approx(measured(), rel=0.01)
    assert found.peak_allocated_bytes > plain.peak_allocated_bytes + 64 * 4096
