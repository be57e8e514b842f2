"""Sequences that are packed in a step, by lengths that the code knows and by lengths that are data: bytes and gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import snugfit
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.values.packed_sequences import OF_DATA, PACKED, _Pack

SHORT = [12, 9, 9, 4]


class Tagger(nn.Module):
    def __init__(self, lengths=None):
        super().__init__()
        self.lengths = lengths
        self.rnn, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, self.lengths or lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0].amax(1))


@pytest.mark.parametrize(("written", "answered"), [(None, [PACKED]), (SHORT, [OF_DATA])])
def test_bytes_are_those_of_the_lengths(pool, written, answered):
    def batch():
        return (torch.randn(4, 12, 8), torch.full((4,), 12)), torch.tensor([0, 1, 2, 0])

    arguments = {"loss": F.cross_entropy, "optimizer": "sgd", "device": "cpu"}
    arguments["forward"] = lambda model, batch: model(*batch[0])
    arguments["loss"] = lambda output, batch: F.cross_entropy(output, batch[1])
    torch.manual_seed(0)
    warm_up()  # what earlier tests left, and only the collector frees, would be taken off
    events = AllocatorEvents()
    events.start()
    trainer, given = snugfit.prepare(Tagger(written), **arguments), batch()
    for _ in range(3):
        trainer.step(given)
    events.stop()
    found = snugfit.estimate(Tagger(written), batch(), **arguments, pool=pool)
    assert [one for one in found.answered if "sequences" in one] == answered
    assert found.peak_allocated_bytes == pytest.approx(events.peak_bytes, rel=0.02)


@pytest.mark.parametrize("batch_first", [True, False])
def test_operators_give_what_the_kernel_gives(batch_first):
    padded = torch.randn(*((4, 12) if batch_first else (12, 4)), 8, dtype=torch.double, requires_grad=True)
    theirs = pack_padded_sequence(padded, SHORT, batch_first=batch_first)
    ours = _Pack.apply(padded, theirs.batch_sizes.tolist(), batch_first)
    assert torch.equal(ours, theirs.data)
    grad = torch.randn_like(ours)
    assert torch.equal(*(torch.autograd.grad(one, padded, grad)[0] for one in (ours, theirs.data)))
