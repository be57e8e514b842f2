"""What NCCL takes: readings, assumptions marked as such, and null with its reason, never 0 in silence."""

import pytest

from snugfit.devices import DEVICES, device_named
from snugfit.nccl import nccl_bytes, nccl_memory

MIB = 2**20


def test_what_was_read_on_the_card_counts():
    assert nccl_bytes(device_named("a100-80gb"), 2) == (544 * MIB, nccl_bytes(device_named("a100-40gb"), 2)[1])
    size, source = nccl_bytes(device_named("a100-80gb"), 8)
    assert size == 688 * MIB and source.startswith("published: NVIDIA/nccl#964")


def test_other_cards_with_nvlink_are_assumed_to_take_as_much():
    found = nccl_memory(device_named("h100-80gb"), 8)
    assert found.source == "assumed" and found.range_bytes == (576 * MIB, 688 * MIB)
    assert found.range_bytes[0] <= found.typical_bytes <= found.range_bytes[1]
    assert nccl_bytes(device_named("h100-80gb"), 4096) == nccl_bytes(device_named("h100-80gb"), 8)


@pytest.mark.parametrize("card", DEVICES, ids=lambda card: card.name)
def test_what_nobody_read_is_null_with_a_reason(card):
    size, source = nccl_bytes(card, 4)
    assert source
    if card.bytes_only or not (card.peer_link or "").startswith("NVLink"):
        assert size is None
    else:
        assert 100 * MIB < size < 2**30 and "#" in source


def test_one_rank_has_no_communicator():
    assert nccl_bytes(device_named("rtx-4090"), 1)[0] == 0
