"""What a batch is: one rule for `estimate`, `plan` and `Trainer.step`, for whatever comes out of a loader."""

import collections
import dataclasses
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

import snugfit
from snugfit import CannotSimulateError, InputError, Recipe

SAMPLES = 64
X, Y = torch.rand(SAMPLES, 1, 16, 16), torch.rand(SAMPLES, 1, 16, 16)
Pair = collections.namedtuple("Pair", ["x", "y"])


class Stored(collections.UserDict):
    """As torch_geometric stores a graph."""


class Graph:
    """An object with its own `to`, its tensors in a store that attributes are read from."""

    def __init__(self, **tensors):
        self.__dict__["_store"] = Stored(tensors)

    def __getattr__(self, name):
        if name == "_store" or name not in self._store:
            raise AttributeError(name)
        return self._store[name]

    def to(self, device):
        return Graph(**{name: tensor.to(device) for name, tensor in self._store.items()})


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))


def by_place(read):
    """Forward and loss that find x and y in a batch."""
    return lambda model, batch: F.l1_loss(model(read(batch)[0]), read(batch)[1])


KINDS = {
    "list": ([X, Y], lambda batch: batch),
    "tuple": ((X, Y), lambda batch: batch),
    "list of three": ([X, Y, X.flatten(1)], lambda batch: batch[:2]),
    "list of lists": ([[X], [Y]], lambda batch: (batch[0][0], batch[1][0])),
    "list of tuples": ([(X, Y), (Y, X)], lambda batch: batch[0]),
    "list of dicts": ([{"x": X, "y": Y}, {"x": Y, "y": X}], lambda batch: (batch[0]["x"], batch[0]["y"])),
    "tuple of lists": (([X, X], [Y, Y]), lambda batch: (batch[0][1], batch[1][1])),
    "dict": ({"x": X, "y": Y}, lambda batch: (batch["x"], batch["y"])),
    "ordered dict": (collections.OrderedDict(x=X, y=Y), lambda batch: (batch["x"], batch["y"])),
    "default dict": (collections.defaultdict(list, x=X, y=Y), lambda batch: (batch["x"], batch["y"])),
    "UserDict": (collections.UserDict(x=X, y=Y), lambda batch: (batch.data["x"], batch["y"])),
    "BatchEncoding": (BatchEncoding({"x": X, "y": Y}), lambda batch: (batch.x, batch["y"])),
    "ModelOutput": (BaseModelOutput(X, (Y,)), lambda batch: (batch.last_hidden_state, batch.hidden_states[0])),
    "namedtuple": (Pair(X, Y), lambda batch: (batch.x, batch.y)),
    "dataclass": (Sample(X, Y), lambda batch: (batch.x, batch.y)),
    "namespace": (SimpleNamespace(x=X, y=Y), lambda batch: (batch.x, batch.y)),
    "own object": (Graph(x=X, y=Y), lambda batch: (batch.x, batch.y)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_estimated_and_trained_as_one_batch(kind, pool):
    batch, read = KINDS[kind]
    forward = by_place(read)
    found = snugfit.estimate(net(), batch, forward=forward, optimizer="sgd", device="cpu", pool=pool)
    plain = snugfit.estimate(net(), (X, Y), forward=by_place(tuple), optimizer="sgd", device="cpu", pool=pool)
    beside = sum(tensor.nbytes for tensor in tensors_in(batch)) - X.nbytes - Y.nbytes
    assert found.peak_allocated_bytes == plain.peak_allocated_bytes + beside
    assert found.batch_shape == plain.batch_shape
    trainer = snugfit.prepare(net(), forward=forward, optimizer="sgd", lr=0.1, device="cpu")
    wanted = snugfit.prepare(net(), forward=by_place(tuple), optimizer="sgd", lr=0.1, device="cpu")
    for _ in range(2):
        assert float(trainer.step(batch)) == float(wanted.step((X, Y)))


def tensors_in(value):
    from snugfit.techniques.microbatch.apply import tensors_of

    return list(tensors_of(value))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_cut_or_refused_in_words(kind):
    batch, read = KINDS[kind]
    trainer = snugfit.prepare(net(), Recipe(microbatch_size=16), forward=by_place(read), optimizer="sgd", device="cpu")
    if kind in ("namespace", "own object"):  # whose parts nobody knows
        with pytest.raises(InputError, match=r"cannot be cut into microbatches of 16\. Give split="):
            trainer.step(batch)
    else:
        wanted = snugfit.prepare(net(), forward=by_place(read), optimizer="sgd", device="cpu")
        assert float(trainer.step(batch)) == pytest.approx(float(wanted.step(batch)), rel=1e-5)
        assert str(trainer.fidelity) == "exact"


def test_a_loaders_list_is_one_batch_for_all(pool):
    """x and y of one dtype and as many dimensions: denoising, super-resolution, two views."""
    (batch,) = DataLoader(TensorDataset(X, Y), SAMPLES)
    assert isinstance(batch, list)
    asked = {"forward": by_place(tuple), "optimizer": "adam", "device": "cpu", "pool": pool}
    wanted = snugfit.estimate(net(), (X, Y), **asked).peak_allocated_bytes
    assert snugfit.estimate(net(), batch, **asked).peak_allocated_bytes == wanted
    assert snugfit.estimate(net(), batches=[batch, batch], **asked).peak_allocated_bytes == wanted
    for given in ({"batch": batch}, {"batches": [batch, (X[:8], Y[:8])]}):
        plan = snugfit.plan(net(), **given, **asked, budget="1GiB", forbid=["inplace", "checkpoint", "microbatch_size"])
        assert (plan.recipe, plan.estimate.peak_allocated_bytes) == (Recipe(), wanted)


@pytest.mark.parametrize("ask", [snugfit.estimate, snugfit.plan])
def test_one_or_several_is_said_once(ask):
    for given, words in [
        ({}, r"no batch is given.*batches=\[\.\.\.\]"),
        ({"batch": X, "batches": [X]}, "both given"),
        ({"batches": []}, "list of batches is empty"),
        ({"batches": X}, "batches is a Tensor; give a list"),
    ]:
        with pytest.raises(InputError, match=words):
            ask(net(), loss=F.l1_loss, **given)


@pytest.mark.parametrize("several", [[(X, Y), (X, Y)], [{"input": X}, {"input": X}]])
def test_a_list_of_what_looks_like_batches_says_how_to_give_several(several, pool):
    with pytest.raises((InputError, CannotSimulateError), match=r"A list is one batch; where its 2 items are batches"):
        snugfit.estimate(net(), several, loss=F.l1_loss, device="cpu", pool=pool)
    with pytest.raises((InputError, CannotSimulateError)) as caught:  # a mistake that has nothing to do with it
        snugfit.estimate(net(), (X.flatten(1), Y), loss=F.l1_loss, device="cpu", pool=pool)
    assert "batches=" not in str(caught.value)
