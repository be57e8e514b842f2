"""Collectives: bytes and steps of each, the link that is the slowest, and what is not known."""

import dataclasses
import math

import pytest

from snugfit.devices import DEVICES, device_named
from snugfit.recording.communication import (
    KINDS,
    LONG_STEP_SECONDS,
    SHARES,
    START_SECONDS,
    collective_seconds,
)
from snugfit.recording.operator_run import Collective

A100, H100, RTX4090 = map(device_named, ("a100-80gb", "h100-80gb", "rtx-4090"))
GIB = 2**30


def seconds(kind, nbytes, ranks, machines=1, card=A100):
    return collective_seconds(Collective(kind, nbytes, ranks, machines), card)


def bus(kind, nbytes, ranks, machines=1, card=A100):
    """Bytes a second that each link would carry in a ring, as nccl-tests print it."""
    passes = 2 if kind == "all_reduce" else 1
    return passes * (ranks - 1) / ranks * nbytes / seconds(kind, nbytes, ranks, machines, card)


@pytest.mark.parametrize("kind", ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"))
@pytest.mark.parametrize("ranks", (2, 4, 8))
def test_large_ones_take_what_the_link_takes(kind, ranks):
    passes = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1, "reduce": 1}.get(kind, (ranks - 1) / ranks)
    steps = (2 if kind == "all_reduce" else 1) * (ranks - 1)
    bytes_per_second = A100.peer_bandwidth * SHARES["NVLink"]
    expected = START_SECONDS + steps * LONG_STEP_SECONDS + passes * 8 * GIB / bytes_per_second
    assert seconds(kind, 8 * GIB, ranks) == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks, machines", [(2, 1), (8, 1), (2, 2), (16, 2), (512, 64)])
def test_more_bytes_never_take_less(kind, ranks, machines):
    times = [seconds(kind, 2**power, ranks, machines) for power in range(0, 36)]
    assert times == sorted(times) and times[0] < times[-1]
    assert times[0] < 0.02 and math.isfinite(times[-1])


def test_a_single_rank_has_nobody_to_talk_to():
    assert seconds("all_reduce", GIB, 1) == 0


def test_small_ones_cost_steps_and_large_ones_bytes():
    assert seconds("all_reduce", 4, 8) < 1.3 * seconds("all_reduce", 4, 2)
    assert seconds("all_gather", GIB, 8) > 1.5 * seconds("all_gather", GIB, 2)


def test_more_cards_than_a_bridge_joins_meet_over_pcie():
    pair = dataclasses.replace(A100, peer_cards=2)
    assert bus("all_reduce", GIB, 2, card=pair) > 200e9
    assert 20e9 < bus("all_reduce", GIB, 3, card=pair) < 25e9
    assert bus("all_reduce", GIB, 8, card=RTX4090) == pytest.approx(24e9, rel=0.02)


def test_machines_share_the_ports_of_their_cards():
    assert bus("all_gather", 8 * GIB, 16, 2) == pytest.approx(8 * 25e9 * 0.96, rel=0.02)
    assert bus("all_gather", 8 * GIB, 2, 2) == pytest.approx(25e9 * 0.96, rel=0.02)
    slow = dataclasses.replace(A100, network_bandwidth=1.25e9)
    assert seconds("all_gather", GIB, 16, 2, slow) > 10 * seconds("all_gather", GIB, 16, 2)
    wide = dataclasses.replace(A100, network_bandwidth=1e12)
    assert bus("all_gather", 8 * GIB, 16, 2, wide) == pytest.approx(bus("all_gather", 8 * GIB, 8), rel=0.05)


def test_trees_keep_small_all_reduces_quick_on_many_machines():
    assert seconds("all_reduce", 2**16, 4096, 512) < 0.1 * seconds("all_gather", 2**16, 4096, 512)
    assert seconds("all_reduce", 2**16, 4096, 512) < 1.5 * seconds("all_reduce", 2**16, 1024, 128)


def test_hoppers_switch_adds_up():
    assert bus("all_reduce", 16 * GIB, 8, card=H100) == pytest.approx(480e9, rel=0.03)
    assert bus("all_gather", 16 * GIB, 8, card=H100) == pytest.approx(360e9, rel=0.03)
    assert bus("all_reduce", 16 * GIB, 8) < A100.peer_bandwidth


def test_all_to_all_leaves_the_machine_with_its_share_only():
    inside = seconds("all_to_all", GIB, 8)
    assert inside == pytest.approx(START_SECONDS + GIB * 7 / 8 / 240e9)
    assert seconds("all_to_all", GIB, 16, 2) == pytest.approx(START_SECONDS + GIB * 8 / 16 / 24e9)


def test_no_time_where_a_link_is_not_known():
    assert RTX4090.network_bandwidth is None
    assert seconds("all_reduce", GIB, 2, 2, RTX4090) is None
    assert seconds("all_reduce", GIB, 16, 2, RTX4090) is None
    assert seconds("all_reduce", GIB, 2, 1, RTX4090) > 0
    unknown = dataclasses.replace(A100, peer_link=None)
    assert seconds("all_reduce", GIB, 2, 1, unknown) is None
    assert seconds("all_reduce", GIB, 2, 2, unknown) == seconds("all_reduce", GIB, 2, 2)
    assert seconds("all_reduce", GIB, 8, 1, dataclasses.replace(RTX4090, host_link_bandwidth=None)) is None
    assert seconds("all_reduce", GIB, 8, 1, device_named("m3-max")) is None
    assert seconds("all_reduce", GIB, 8, 1, device_named("mi300x")) is None


@pytest.mark.parametrize("card", [card for card in DEVICES if not card.bytes_only], ids=lambda card: card.name)
def test_every_card_that_is_timed_says_how_it_reaches_others(card):
    assert card.links_source and seconds("all_gather", GIB, 2, card=card) > 0
    if card.peer_bandwidth is not None:
        assert card.peer_link.startswith("NVLink") and card.peer_cards >= 2
        assert card.peer_bandwidth > card.host_link_bandwidth
    assert (card.network is None) == (card.network_bandwidth is None)
