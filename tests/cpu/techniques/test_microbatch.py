"""Microbatches give the gradient of the whole batch, whatever the loss and the shape of the batch."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.errors import SnugfitWarning
from snugfit.techniques.batches import loss_weights, map_tensors, split_batch
from snugfit.training.order import one_by_one

Pair = namedtuple("Pair", ["inputs", "labels"])


class Tagger(nn.Module):
    """A label for each of the tokens [samples, tokens]."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, input_ids, labels=None, scale=None):
        logits = self.head(self.embedding(input_ids))
        if scale is not None:
            logits = logits * scale
        if labels is None:
            return logits
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def tagger():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Tagger().double()


def ragged_tokens(samples=7, tokens=9):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randint(0, 11, (samples, tokens), generator=generator)
    labels = inputs.clone()
    for row, length in enumerate([9, 2, 5, 1, 7, 3, 4][:samples]):
        labels[row, length:] = -100
    return {"input_ids": inputs, "labels": labels}


def weights_after(model, recipe, batch, **arguments):
    trainer = snugfit.prepare(model, recipe, optimizer="sgd", lr=1.0, device="cpu", **arguments)
    loss = trainer.step(batch)
    trainer.finish()
    return loss, [weight.detach().clone() for weight in model.parameters()]


def assert_same_as_whole(make, batch, size, **arguments):
    loss, got = weights_after(make(), Recipe(microbatch_size=size), batch, **arguments)
    whole_loss, want = weights_after(make(), Recipe(), batch, **arguments)
    assert torch.isclose(loss, whole_loss, rtol=1e-10)
    for one, other in zip(got, want, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)
    before = [weight.detach() for weight in make().parameters()]
    assert any((one - other).abs().max() > 1e-4 for one, other in zip(before, got, strict=True)), "nothing was trained"


@pytest.mark.parametrize("size", [1, 3, 4, 6, 7])
def test_mean_loss_with_ragged_last_piece(size):
    batch = make_batches("mlp", 7, 1)[0]
    assert_same_as_whole(lambda: make_model("mlp"), batch, size, loss=cross_entropy)


@pytest.mark.parametrize("size", [2, 5])
def test_sum_loss(size):
    batch = make_batches("mlp", 7, 1)[0]
    loss = lambda output, batch: F.cross_entropy(output, batch[1], reduction="sum") / 50  # noqa: E731
    assert_same_as_whole(lambda: make_model("mlp"), batch, size, loss=loss, loss_weight="sum")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_token_weighted_loss_of_the_model_itself(size):
    assert_same_as_whole(tagger, ragged_tokens(), size, loss_weight="tokens")


def test_plain_averaging_of_token_losses_would_be_wrong():
    _, right = weights_after(tagger(), Recipe(), ragged_tokens(), loss_weight="tokens")
    with pytest.warns(SnugfitWarning, match="With loss_weight='tokens' they agree"):
        _, averaged = weights_after(tagger(), Recipe(microbatch_size=2), ragged_tokens(), loss_weight="samples")
    assert (right[0] - averaged[0]).abs().max() > 1e-3


def test_a_microbatch_without_any_label_that_counts():
    batch = ragged_tokens()
    batch["labels"][2:4] = -100
    assert_same_as_whole(tagger, batch, 2, loss_weight="tokens")


def test_a_microbatch_without_labels_whose_count_stays_on_the_device():
    """On a device the count is no number the host could look at; the mean over nothing (NaN) must not spread."""
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    losses = {"a": lambda: (weight**2).sum(), "empty": lambda: (weight * torch.tensor(float("nan"))).sum() * 0}
    for name in losses:
        pieces = [("a", torch.tensor(1.0)), (name, torch.tensor(0.0))]
        total = one_by_one(pieces, lambda piece: losses[piece](), lambda loss: None)
        assert float(total) == 13.0
    labels = torch.full((2, 3), -100)
    logits = torch.randn(6, 4, requires_grad=True)
    loss = one_by_one(
        [((logits, labels), torch.tensor(0.0))],
        lambda piece: F.cross_entropy(piece[0], piece[1].flatten()),
        lambda loss: loss.backward(),
    )
    assert float(loss) == 0.0 and torch.equal(logits.grad, torch.zeros(6, 4))


def test_all_labels_ignored_is_refused_before_anything_changes():
    batch = ragged_tokens()
    batch["labels"][:] = -100
    model = tagger()
    before = model.head.weight.clone()
    trainer = snugfit.prepare(model, Recipe(microbatch_size=2), loss_weight="tokens", device="cpu")
    with pytest.raises(InputError, match="all are ignored"):
        trainer.step(batch)
    assert torch.equal(model.head.weight, before)


@pytest.mark.parametrize("wrap", ["dict", "object", "scalar"])
def test_models_that_return_their_loss(wrap):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_model("mlp")

        def forward(self, inputs, labels):
            loss = F.cross_entropy(self.inner(inputs), labels)
            return {"dict": {"loss": loss}, "object": SimpleNamespace(loss=loss), "scalar": loss}[wrap]

    inputs, labels = make_batches("mlp", 7, 1)[0]
    assert_same_as_whole(Own, {"inputs": inputs, "labels": labels}, 3)


@pytest.mark.parametrize("kind", [tuple, list, lambda parts: Pair(*parts)])
def test_tuples_lists_and_named_tuples(kind):
    batch = kind(make_batches("mlp", 7, 1)[0])
    seen = []

    def loss(output, piece):
        seen.append(type(piece))
        return cross_entropy(output, piece)

    assert_same_as_whole(lambda: make_model("mlp"), batch, 3, loss=loss)
    assert set(seen) == {type(batch)}


def test_a_bare_tensor():
    batch = make_batches("mlp", 7, 1)[0][0]
    assert_same_as_whole(lambda: make_model("mlp"), batch, 3, loss=lambda output, batch: output.square().mean())


def test_tensors_of_other_lengths_go_with_every_piece():
    batch = {**ragged_tokens(), "scale": torch.full((1,), 1.5, dtype=torch.float64)}
    assert_same_as_whole(tagger, batch, 2, loss_weight="tokens")
    pieces = split_batch({"x": torch.zeros(5, 2), "scale": torch.ones(3), "number": torch.tensor(1.0), "name": "n"}, 2)
    assert [piece["x"].shape[0] for piece in pieces] == [2, 2, 1]
    assert all(piece["scale"].shape == (3,) and piece["number"].dim() == 0 for piece in pieces)
    assert all(piece["name"] == "n" for piece in pieces)


def test_custom_split_forward_and_weight():
    inputs, labels = make_batches("mlp", 7, 1)[0]
    rows = SimpleNamespace(rows=list(zip(inputs, labels, strict=True)))

    def stacked(batch):
        return torch.stack([row for row, _ in batch.rows]), torch.stack([label for _, label in batch.rows])

    _, got = weights_after(
        make_model("mlp"), Recipe(microbatch_size=3), rows,
        forward=lambda model, batch: model(stacked(batch)[0]),
        split=lambda batch, size: [
            SimpleNamespace(rows=batch.rows[at : at + size]) for at in range(0, len(batch.rows), size)
        ],
        loss=lambda output, batch: F.cross_entropy(output, stacked(batch)[1]),
        loss_weight=lambda batch: len(batch.rows),
    )  # fmt: skip
    _, want = weights_after(make_model("mlp"), Recipe(), (inputs, labels), loss=cross_entropy)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-10) for one, other in zip(got, want, strict=True))


def test_pieces_are_views_of_the_batch():
    batch = make_batches("mlp", 8, 1)[0]
    assert split_batch(batch, 4)[1][0].data_ptr() == batch[0][4:].data_ptr()
    assert split_batch(batch, 8)[0] is batch


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"name": "x"}, "without a tensor"),
        ((torch.zeros(0, 12), torch.zeros(0)), "no sample"),
        (torch.tensor(1.0), "without a tensor"),
    ],
)
def test_batches_that_cannot_be_cut(batch, message):
    trainer = snugfit.prepare(make_model("mlp"), Recipe(microbatch_size=2), loss=cross_entropy, device="cpu")
    with pytest.raises(InputError, match=message):
        trainer.step(batch)


def test_errors_of_splits_weights_and_labels():
    batch = make_batches("mlp", 4, 1)[0]
    trainer = snugfit.prepare(
        make_model("mlp"), Recipe(microbatch_size=2), loss=cross_entropy, device="cpu", split=lambda batch, size: []
    )
    with pytest.raises(InputError, match="split= returned no microbatch"):
        trainer.step(batch)
    with pytest.raises(InputError, match=r"batch\['labels'\]"):
        loss_weights([torch.zeros(2), torch.zeros(2)], "tokens")
    with pytest.raises(InputError, match="loss_weight is 'token'"):
        loss_weights([batch], "token")


def test_map_tensors_keeps_what_is_no_tensor():
    mapped = map_tensors({"a": [torch.ones(2), "x", None], "b": (3, Pair(torch.ones(1), 2))}, lambda tensor: tensor + 1)
    assert mapped["a"][1:] == ["x", None] and mapped["b"][0] == 3
    assert float(mapped["a"][0][0]) == 2.0 and isinstance(mapped["b"][1], Pair) and mapped["b"][1].labels == 2


class Waiting(torch.Tensor):
    """A number on a device that works beside the host: looking at it would stop the host."""

    def __bool__(self):
        raise AssertionError("the host waits for the device")


def test_weights_on_a_device_are_not_waited_for():
    factor = torch.tensor(0.25).as_subclass(Waiting)
    losses = [torch.tensor(2.0, requires_grad=True), torch.tensor(4.0, requires_grad=True)]
    total = one_by_one([(loss, factor) for loss in losses], lambda loss: loss * 1, lambda loss: loss.sum().backward())
    assert float(total) == 1.5 and [float(loss.grad) for loss in losses] == [0.25, 0.25]
