"""What NCCL takes: readings, assumptions marked as such, and null with its reason, never 0 in silence."""

import pytest

from snugfit.devices import DEVICES, device_named
from snugfit.nccl import nccl_memory

MIB = 2**20


def test_what_was_read_on_the_card_counts():
    assert nccl_memory(device_named("a100-80gb"), 2) == nccl_memory(device_named("a100-40gb"), 2)
    assert nccl_memory(device_named("a100-80gb"), 2).typical_bytes == 544 * MIB
    found = nccl_memory(device_named("a100-80gb"), 8)
    assert (
        found.typical_bytes == 688 * MIB and found.source == "published" and found.where.startswith("NVIDIA/nccl#964")
    )


def test_other_cards_with_nvlink_are_assumed_to_take_as_much():
    found = nccl_memory(device_named("h100-80gb"), 8)
    assert found.source == "assumed" and found.range_bytes == (576 * MIB, 688 * MIB)
    assert found.range_bytes[0] <= found.typical_bytes <= found.range_bytes[1]
    assert nccl_memory(device_named("h100-80gb"), 4096) == nccl_memory(device_named("h100-80gb"), 8)


@pytest.mark.parametrize("card", DEVICES, ids=lambda card: card.name)
def test_what_nobody_read_is_null_with_a_reason(card):
    found = nccl_memory(card, 4)
    assert found.where
    if card.bytes_only or not (card.peer_link or "").startswith("NVLink"):
        assert found.typical_bytes is None
    else:
        assert 100 * MIB < found.typical_bytes < 2**30 and "#" in found.where


def test_one_rank_has_no_communicator():
    assert nccl_memory(device_named("rtx-4090"), 1).typical_bytes == 0
