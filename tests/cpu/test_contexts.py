"""CUDA's context: readings of cards, and what a card without a reading gets."""

import statistics

import pytest

from snugfit.contexts import _ROWS, context_of, readings_of, without_size
from snugfit.devices import DEVICES, Device
from snugfit.units import MIB

CARDS = [card for card in DEVICES if card.compute_capability is not None]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_has_a_context(card):
    context = card.context
    least, most = context.range_bytes
    assert 50 * MIB < least <= context.typical_bytes <= most < 1000 * MIB
    assert context.source == ("published" if readings_of(card.name) else "assumed")
    row = _ROWS.get(without_size(card.name))
    if row is not None:  # the two tables speak of the same card
        assert (tuple(row["compute_capability"]), row["sm_count"]) == (card.compute_capability, card.sm_count)


def test_a_reading_is_what_the_process_had_less_what_torch_had():
    in_use, allocated, unallocated = 22.86 * 1024, 22.56 * 1024, 48.63
    assert "22.86 GiB - 22.56 GiB - 48.63 MiB" in readings_of("rtx-3090")
    least, most = context_of("rtx-3090", None, None).range_bytes
    assert least <= (in_use - allocated - unallocated) * MIB <= most


@pytest.mark.parametrize("name", list(_ROWS))
def test_every_reading_has_its_place_and_is_of_a_context(name):
    readings = readings_of(name)
    assert readings and all("#" in place or " GiB of which " in place or "/" in place for place in readings.values())
    own = context_of(name, None, None)
    assert own.range_bytes[0] > 0 and own.range_bytes[1] < 1000 * MIB


def test_a_card_that_nobody_read_gets_that_of_its_generation_by_its_size():
    half, whole = (context_of("unheard-of", (8, 6), count) for count in (40, 80))
    assert whole.typical_bytes == pytest.approx(2 * half.typical_bytes, abs=1)
    assert half.source == "assumed"
    read = [card.context_bytes / card.sm_count for card in CARDS if card.compute_capability == (8, 6)]
    assert whole.typical_bytes / 80 == pytest.approx(statistics.median(read), rel=0.05)


def test_a_row_of_a_user_without_a_context_gets_a_typical_one():
    row = {"name": "my-card", "vendor_name": "", "memory_source": "", "memory_bytes": 8 * 2**30}
    for more in ({}, {"compute_capability": (8, 9)}, {"compute_capability": (99, 0), "sm_count": 10}):
        card = Device(**row, **more)
        assert card.context.source == "assumed" and 20 * MIB < card.context_bytes < 1000 * MIB
    assert Device(**row | {"name": "cpu"}).context_bytes == 0
