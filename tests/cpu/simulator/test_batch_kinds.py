"""What a batch is: one rule for `estimate`, `plan` and `Trainer.step`, for whatever comes out of a loader."""

import collections
import dataclasses
import gc
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

import snugfit
from snugfit import CannotSimulateError, InputError, Recipe
from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.private_torch.sparse_layouts import parts_of
from snugfit.simulator.batches import shape_in_words
from snugfit.techniques.batches import tensors_of

SAMPLES = 64
X, Y = torch.rand(SAMPLES, 1, 16, 16), torch.rand(SAMPLES, 1, 16, 16)
SAVES = ["inplace", "checkpoint", "microbatch_size", "step_in_backward"]
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
    beside = sum(tensor.nbytes for tensor in tensors_of(batch)) - X.nbytes - Y.nbytes
    assert found.peak_allocated_bytes == plain.peak_allocated_bytes + beside
    assert found.batch_shape == plain.batch_shape
    trainer = snugfit.prepare(net(), forward=forward, optimizer="sgd", lr=0.1, device="cpu")
    wanted = snugfit.prepare(net(), forward=by_place(tuple), optimizer="sgd", lr=0.1, device="cpu")
    for _ in range(2):
        assert float(trainer.step(batch)) == float(wanted.step((X, Y)))


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
        plan = snugfit.plan(net(), **given, **asked, budget="1GiB", forbid=SAVES)
        assert (plan.recipe, plan.estimate.peak_allocated_bytes) == (Recipe(), wanted)


@pytest.mark.parametrize("ask", [snugfit.estimate, snugfit.plan])
def test_one_or_several_is_said_once(ask):
    for given, words in [
        ({}, r"no batch is given.*batches=\[\.\.\.\]"),
        ({"batch": X, "batches": [X]}, "both given"),
        ({"batches": []}, "list of batches is empty"),
        ({"batches": X}, "batches is a Tensor; give a list"),
        ({"batch": None}, "a batch is None, on which nothing can be trained"),
        ({"batches": [X, None]}, "a batch is None"),
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


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 16), nn.Linear(16, 3)

    def forward(self, sequences):
        return self.head(self.rnn(sequences)[1][-1])


def packed(*, in_order):
    torch.manual_seed(1)
    lengths = torch.tensor([6, 6, 3, 3] if in_order else [3, 6, 3, 6])
    return pack_padded_sequence(torch.randn(6, 4, 8), lengths, enforce_sorted=in_order)


def made(build):
    torch.manual_seed(0)
    return build()


@pytest.mark.parametrize("in_order", [True, False])
def test_packed_sequences(pool, in_order):
    batch = packed(in_order=in_order), torch.tensor([0, 1, 2, 0])
    arguments = {"loss": nn.CrossEntropyLoss(), "optimizer": "sgd", "device": "cpu"}
    plain, trained = made(Reader), made(Reader)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    trainer = snugfit.prepare(trained, lr=0.1, **arguments)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(plain(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        assert float(trainer.step(batch)) == loss.item()
    del trainer, loss
    gc.collect()  # nothing of before is freed while it is measured
    events = AllocatorEvents()
    events.start()
    again = packed(in_order=in_order), torch.tensor([0, 1, 2, 0])
    trainer = snugfit.prepare(made(Reader), lr=0.1, **arguments)
    for _ in range(3):
        trainer.step(again)
    events.stop()
    found = snugfit.estimate(made(Reader), batch, **arguments, pool=pool)
    assert found.peak_allocated_bytes == pytest.approx(events.peak_bytes, rel=0.02)
    trainer = snugfit.prepare(made(Reader), Recipe(microbatch_size=2), **arguments)
    with pytest.raises(InputError, match=r"holds a PackedSequence.*cannot be cut into microbatches of 2"):
        trainer.step(batch)


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, features, matrix):
        return torch.sparse.mm(matrix, self.layer(features))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_matrices_train_as_they_are_and_count_what_they_hold(pool, layout):
    torch.manual_seed(0)
    matrix = (torch.rand(2000, 2000) * (torch.rand(2000, 2000) < 0.002)).to_sparse(layout=layout)
    batch = torch.randn(2000, 16), torch.randint(0, 4, (2000,)), matrix
    forward = lambda model, batch: model(batch[0], batch[2])  # noqa: E731
    arguments = {"loss": lambda output, batch: F.cross_entropy(output, batch[1]), "optimizer": "sgd", "device": "cpu"}
    plain = made(GraphNet)
    events = AllocatorEvents()
    events.start()
    trainer = snugfit.prepare(made(GraphNet), forward=forward, **arguments)
    loss = float(trainer.step(batch))
    events.stop()
    assert loss == F.cross_entropy(plain(batch[0], matrix), batch[1]).item()
    arguments |= {"evaluate": False, "pool": pool}
    found = snugfit.estimate(made(GraphNet), batch, forward=forward, **arguments)
    held = sum(part.nbytes for tensor in batch for part in parts_of(tensor))
    assert found.peak_allocated_bytes == pytest.approx(events.peak_bytes + held, rel=0.02)
    inside = lambda model, batch: model(batch[0], matrix)  # noqa: E731
    captured = snugfit.estimate(made(GraphNet), batch[:2], forward=inside, **arguments)  # in a closure
    assert captured.peak_allocated_bytes == pytest.approx(found.peak_allocated_bytes, rel=0.01)
    cut = snugfit.prepare(
        made(GraphNet), Recipe(microbatch_size=50), forward=forward, device="cpu", loss=arguments["loss"]
    )
    with pytest.raises(InputError, match=r"holds a sparse matrix.*cannot be cut into microbatches of 50"):
        cut.step(batch)


def test_a_graph_that_all_samples_share_goes_with_every_piece():
    """Traffic of 30 roads: the matrix is about roads, not samples."""
    torch.manual_seed(0)
    roads = (torch.rand(30, 30) * (torch.rand(30, 30) < 0.2)).to_sparse()
    batch = torch.randn(8, 30), torch.randn(8, 30), roads
    forward = lambda model, batch: torch.sparse.mm(batch[2], model(batch[0]).T).T  # noqa: E731
    arguments = {"loss": lambda output, batch: F.mse_loss(output, batch[1]), "forward": forward, "device": "cpu"}
    whole = snugfit.prepare(made(lambda: nn.Linear(30, 30)), **arguments)
    cut = snugfit.prepare(made(lambda: nn.Linear(30, 30)), Recipe(microbatch_size=2), **arguments)
    assert float(cut.step(batch)) == pytest.approx(float(whole.step(batch)), rel=1e-5)
    assert str(cut.fidelity) == "exact"


@pytest.mark.parametrize(
    "batch, words",
    [
        (torch.ones(8, 3, 4, 4), "8 x 3 x 4 x 4"),
        (([torch.ones(3, 4, 6), torch.ones(3, 6, 4)], [{"boxes": torch.ones(2, 4)}]), "2 x 3 x 4 x 6"),
        ((torch.ones(8, 5), torch.ones(8)), "8 x 5"),
        (((torch.ones(8, 5), torch.ones(8, 2)), torch.ones(8)), "8 x 5"),
    ],
    ids=["one tensor", "a list of images", "two", "two inputs"],
)
def test_shapes_are_said_with_the_number_of_samples(batch, words):
    assert shape_in_words([batch]) == words
