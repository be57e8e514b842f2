"""Batches that lay samples end to end are as wide as shuffles make them; padded ones as their longest sample."""

import random

import pytest
import torch
from own_scripts import estimated, measured_bytes, written
from torch.nn.utils.rnn import pad_sequence

from snugfit.simulator.shuffled_batches import lies_end_to_end, widest_drawn
from snugfit.simulator.widest_samples import widest_batches

LENGTHS = random.Random(0).choices(range(20, 401), k=400)
WIDTHS = {number: ((length,),) for number, length in enumerate(LENGTHS)}


def total(batch):
    return sum(LENGTHS[number] for number in batch)


def longest(batch):
    return len(batch) * max(LENGTHS[number] for number in batch)


@pytest.mark.parametrize(("numbers_of", "found"), [(total, True), (longest, False)])
def test_what_is_padded_does_not_lie_end_to_end(numbers_of, found):
    order = sorted(WIDTHS, key=lambda number: -LENGTHS[number])
    assert lies_end_to_end(WIDTHS, order[:16], order[-1:] * 16, numbers_of) is found
    assert not lies_end_to_end(WIDTHS, order[:1], order[-1:], numbers_of)  # one sample tells nothing


def test_a_batch_is_wider_than_most_and_narrower_than_the_widest_of_all():
    before = random.getstate()
    found, drawn = widest_drawn(WIDTHS, 16, 400), random.Random(1)
    assert random.getstate() == before and len(set(found)) == 16
    assert total(found) < 0.85 * sum(sorted(LENGTHS)[-16:])
    assert all(total(drawn.sample(range(400), 16)) < total(found) for _ in range(1000))


def test_a_batch_is_wide_in_each_direction():
    """Graphs of many nodes, and others of many edges."""
    draw = random.Random(0)
    graphs = {number: ((draw.randint(10, 100), 4), (2, draw.randint(10, 300))) for number in range(200)}
    found = widest_drawn(graphs, 8, 200)
    for direction, (left, right) in enumerate([(10, 100), (10, 300)]):
        sides = [max(graphs[number][direction]) for number in found]
        assert sum(sides) > 1.3 * len(found) * (left + right) / 2


@pytest.mark.parametrize(("collate", "padded"), [(torch.cat, False), (lambda rows: pad_sequence(rows, True), True)])
def test_loaders(collate, padded):
    rows = [torch.zeros(length) for length in LENGTHS]
    loader = torch.utils.data.DataLoader(rows, 16, shuffle=True, collate_fn=collate)
    (numbers, *_), said = widest_batches(loader)
    assert ("100 shuffles" in said) is not padded
    assert (max(LENGTHS[number] for number in numbers) == max(LENGTHS)) or not padded


PACKED = """
import random, torch
from torch import nn
random.seed(0)
torch.manual_seed(0)
rows = [torch.randint(0, 100, (random.randint(20, 400),)) for _ in range(400)]
model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 100))
optimizer = torch.optim.Adam(model.parameters())
for x in torch.utils.data.DataLoader(rows, 16, shuffle=True, collate_fn=torch.cat):
    loss = nn.functional.cross_entropy(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_packed_texts_take_hardly_less_than_predicted(tmp_path, capsys):
    script = written(tmp_path, PACKED)
    _, found, err = estimated(capsys, script, device="cpu")
    assert found is not None, err
    assert 1 < found["peak_allocated_bytes"] / measured_bytes(script, until="--steps=99") < 1.15
