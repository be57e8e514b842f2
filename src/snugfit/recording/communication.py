"""How long one collective takes: what it costs to start, the steps of a ring or a tree, and bytes over the slowest link.

NCCL, which carries collectives out, knows several ways for each and takes the one that its own model says is fastest:
seconds to start, seconds for each step, and bytes over a share of the slowest link's bandwidth. The same is done here.

- **Ring.** Every card passes on a part of the data to the next, with `ranks - 1` steps for gathering or scattering, and
  twice that for an all-reduce. Its bytes cross the slowest link of the ring: NVLink inside a machine, PCIe where more
  cards meet than NVLink joins, between machines the ports of all cards of the group in one machine together.
- **Tree.** An all-reduce between machines has log2(machines) steps twice instead, and moves more bytes.
- **In the switch.** From Hopper on, the NVLink switch adds up; an all-reduce then passes each link once (NVLS).
- **Straight.** All-to-all, scatter, gather, send: each rank sends to each, over the network what leaves the machine.

Each of the first two has a short protocol (flags travel with the data: quick steps, part of the bandwidth) and a long one.

Every figure has its source beside it; three were fitted by `python -m benchmarks.communication` to all-reduces of 2 to 8
A100 on NVLink, and to nothing else. What that says about other machines is in docs/accuracy/collectives.md.

Limits: ranks arrive together, and are spread evenly over machines; networks have no other users and switches no hot spots;
kernels that run meanwhile are not slowed down; NCCL's tuning is not read from its environment.
"""

from __future__ import annotations

import math

from snugfit.devices import Device
from snugfit.recording.operator_run import Collective

START_SECONDS = 43e-6
"""Start of a collective, in which ranks also find each other (fitted: benchmarks/results/communication.json). NCCL's own
model has 7 to 14 microseconds (tuning.cc, below), and the quickest small ones of a training run on 8 H100 take 14 to 25 (the
same results); against what training sends, it does not matter."""
SEND_SECONDS = 12e-6
"""The same of one send: 10 on a bridge and 17 on a switch, for sizes up to 1 MiB (the same results)."""
LONG_STEP_SECONDS = 11.2e-6
"""One step of the long protocol over NVLink or PCIe (fitted, as above)."""
SHORT_SHARE = 0.66
"""Bandwidth of the short protocol, of that of the long one (fitted, as above). NCCL: 0.5 for LL and 0.92 for LL128."""
SHORT_STEP_SECONDS = {"NVLink": 0.6e-6, "PCIe": 1.0e-6, "network": 5.0e-6}
NETWORK_STEP_SECONDS = 14e-6
"""Steps of the short protocol by link, and one of the long one over a network. Source: NCCL 2.30's hwLatencies,
github.com/NVIDIA/nccl/blob/5067397c2676d5aed50042fc39e5c8ee96eb0027/src/graph/tuning.cc"""
SHARES = {"NVLink": 0.8, "PCIe": 0.76, "network": 0.96}
"""Share of a link that is payload: NCCL counts on 20 of 25 GB/s of a link of NVLink 2 to 4 and 40 of 50 of NVLink 5, on 12
of 15.75 GB/s of PCIe 3 with 16 lanes, and on 12 of 12.5 GB/s of a port of 100 Gb/s. Source: src/graph/topo.h, the same
commit."""
TREE_SHARE = 0.92 * 0.85
"""Bandwidth of a tree, of that of a ring. Source: tuning.cc, as above."""
SWITCH_SHARE = 0.61
"""Share of NVLink that an all-reduce in the switch takes: 275 of 450 GB/s (an engineer of NCCL's, NVIDIA/nccl-tests#212)."""
SWITCH_STEP_SECONDS = 25e-6
"""What it takes to start. Source: hwLatencies, as above."""
SWITCH_GENERATION = (9, 0)
"""The compute capability from which on switches add up. Source: src/graph/search.cc of NCCL, the same commit."""
_TOGETHER = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")
KINDS = (*_TOGETHER, "all_to_all", "gather", "scatter", "send")
"""Collectives that are known; those of the first line are carried out by rings."""


def collective_seconds(collective: Collective, device: Device) -> float | None:
    """Returns how long a collective takes once all ranks have reached it.

    Seconds, 0 for a single rank; None where a link that it needs is not known, or the software differs from CUDA's.
    """
    assert collective.kind in KINDS, f"collective {collective.kind!r} is unknown"
    if device.bytes_only:
        return None
    if collective.ranks <= 1:
        return 0.0
    inside = math.ceil(collective.ranks / collective.machines)
    link, local, across = "network", math.inf, math.inf
    if inside > 1:
        joined = _joined(device, inside)
        if joined is None:
            return None
        link, local = joined
    if collective.machines > 1:
        if device.network_bandwidth is None:
            return None
        across = device.network_bandwidth * SHARES["network"]
    if collective.kind == "send":
        return SEND_SECONDS + collective.nbytes / min(local if collective.machines == 1 else math.inf, across)
    if collective.kind not in _TOGETHER:
        each = collective.nbytes / collective.ranks
        return START_SECONDS + max(each * (inside - 1) / local, each * (collective.ranks - inside) / across)
    seconds = _by_rings(collective, inside, link, min(local, across * inside))
    adds_up = (device.compute_capability or (0, 0)) >= SWITCH_GENERATION and (device.peer_cards or 0) > 2
    if collective.kind == "all_reduce" and collective.machines == 1 and link == "NVLink" and adds_up:
        assert device.peer_bandwidth is not None
        seconds = min(seconds, SWITCH_STEP_SECONDS + collective.nbytes / (device.peer_bandwidth * SWITCH_SHARE))
    return START_SECONDS + seconds


def _joined(device: Device, cards: int) -> tuple[str, float] | None:
    """The links that connect some cards of one machine, and the bytes a second that one card sends over them."""
    if device.peer_link is None or device.peer_link == "none":
        return None
    if device.peer_bandwidth is not None and cards <= (device.peer_cards or 0):
        return "NVLink", device.peer_bandwidth * SHARES["NVLink"]
    return None if device.host_link_bandwidth is None else ("PCIe", device.host_link_bandwidth * SHARES["PCIe"])


def _by_rings(collective: Collective, inside: int, link: str, slowest: float) -> float:
    """The fastest of rings and trees, in both protocols."""
    kind, size, ranks, machines = collective
    passes = 2 if kind == "all_reduce" else 1
    far = passes * (machines - 1)
    size_in_ring = size if kind in ("broadcast", "reduce") else passes * size * (ranks - 1) / ranks
    ways = [(passes * (ranks - 1) - far, far, size_in_ring / slowest)]
    if kind == "all_reduce" and machines > 1:
        ways.append((2 * (inside - 1), 2 * math.ceil(math.log2(machines)), 2 * size / (slowest * TREE_SHARE)))
    short, far_short = SHORT_STEP_SECONDS[link], SHORT_STEP_SECONDS["network"]
    return min(
        min(
            near * short + far * far_short + moved / SHORT_SHARE,
            near * LONG_STEP_SECONDS + far * NETWORK_STEP_SECONDS + moved,
        )
        for near, far, moved in ways
    )
