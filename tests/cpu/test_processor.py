"""An estimate for cpu says for which processor it holds."""

import torch
from torch import nn

import snugfit
from snugfit import processor
from snugfit.processor import Processor, this_processor


def test_in_words():
    made = Processor(
        model="A processor",
        features=("avx2",),
        capability="AVX2",
        limits=(("ONEDNN_MAX_CPU_ISA", "SSE41"),),
        threads=2,
        torch_version="2.14",
    )
    assert made.in_words() == "A processor, AVX2, ONEDNN_MAX_CPU_ISA=SSE41, 2 threads"
    assert made.identity()["limits"] == (("ONEDNN_MAX_CPU_ISA", "SSE41"),)


def test_limits_and_threads_are_part_of_it(monkeypatch):
    for name in processor.LIMITS:
        monkeypatch.delenv(name, raising=False)
    plain = this_processor()
    assert plain.model and plain.capability and plain.threads == torch.get_num_threads() and plain.limits == ()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert this_processor().identity() != plain.identity()


def test_an_estimate_says_it():
    model, batch = nn.Linear(8, 4), (torch.zeros(5, 8), torch.zeros(5, dtype=torch.long))

    def loss(output, batch):
        return nn.functional.cross_entropy(output, batch[1])

    here = snugfit.estimate(model, batch, loss=loss, device="cpu")
    assert here.processor.startswith(this_processor().model)
    assert here.to_mapping()["processor"] == here.processor and here.processor in here.card()
    card = snugfit.estimate(model, batch, loss=loss, device="rtx-4090")
    assert card.processor is None and card.to_mapping()["processor"] is None and "holds for" not in card.card()
