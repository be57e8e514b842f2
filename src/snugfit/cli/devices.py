"""`snugfit devices`: the cards whose memory and speed are known.

Examples:
  snugfit devices
  snugfit devices rtx-4090
  snugfit devices my-machine.yaml
  snugfit devices local
  snugfit devices --json

`local` is the GPU of this machine and `cpu` its processor, with what `snugfit calibrate` measured of them. A YAML file is
a card in a machine of your own: `like: a100-80gb`, and lines such as `network_gigabits_per_second: 100` for what differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from snugfit.cli import output
from snugfit.contexts import readings_of
from snugfit.device_kinds import CPU
from snugfit.devices import DEVICES, Device, device_named
from snugfit.fields import as_data
from snugfit.nccl import nccl_memory
from snugfit.report.console import card, table

_NOT_SHOWN = (
    *("flops", "memory_bandwidth", "host_link_bandwidth", "peer_bandwidth", "network_bandwidth"),
    *("corrects_in_memory", "sustained", "context"),
)
"""Fields of a device that have other names here, or none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `snugfit devices`."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="one card, a file, local or cpu: everything known of it"
    )
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    if args.name is not None:
        known = _known(device_named(args.name))
        rows = [(key.replace("_", " "), _text(known[key])) for key in known]
        return output.print_either(known, lambda: card(known["name"], rows), as_json=args.json)
    return output.print_either({"devices": [_plain(device) for device in DEVICES]}, _table, as_json=args.json)


def _table() -> str:
    titles = ("name", "memory", "context", "fp32", "tf32", "16-bit", "memory", "link", "vendor's name")
    units = ("", "GiB", "MiB", "TFLOP/s", "TFLOP/s", "TFLOP/s", "GB/s", "GB/s", "")
    rows = table([titles, units, *map(_row, DEVICES)], right=range(1, 8), indent="", wrap_at=sys.maxsize)
    notes = (
        "FLOP/s are dense peaks, without sparsity. A dash is a number that no source gives. * memory only, no time.",
        "context is what CUDA takes for itself: the median of readings of the card, ~ typical of its generation.",
        "Also: local, the GPU of this machine. Sources: snugfit devices --json",
    )
    return "\n".join([*rows, "", *notes])


def _known(device: Device) -> dict[str, Any]:
    """All that is known of one device; for the processor, what was measured of it too."""
    plain = _plain(device)
    if device.name != CPU:
        return plain
    import torch

    from snugfit.processor import this_processor
    from snugfit.recording.cpu_clock import kept_speeds

    processor = this_processor().in_words()
    speeds = kept_speeds(processor, torch.__version__)
    return {**plain, "processor": processor, "calibration": None if speeds is None else as_data(speeds)}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{key} {_text(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(device: Device) -> tuple[str, ...]:
    numbers = (
        (device.memory_bytes, 2**30, 1),
        *((device.flops.get(dtype), 1e12, 1) for dtype in ("float32", "tf32", "float16")),
        (device.memory_bandwidth, 1e9, 0),
        (device.host_link_bandwidth, 1e9, 0),
    )
    memory, *rates = ["-" if value is None else f"{value / unit:.{digits}f}" for value, unit, digits in numbers]
    context = "-"
    if device.context is not None:
        context = f"{'~' if device.context.source == 'assumed' else ''}{device.context_bytes / 2**20:.0f}"
    return device.name + ("*" if device.bytes_only else ""), memory, context, *rates, device.vendor_name


def _plain(device: Device) -> dict[str, Any]:
    rates = {
        "flops_per_second": dict(device.flops),
        "memory_bytes_per_second": device.memory_bandwidth,
        "host_link_bytes_per_second": device.host_link_bandwidth,
        "peer_link_bytes_per_second": device.peer_bandwidth,
        "network_bytes_per_second": device.network_bandwidth,
    }
    group = nccl_memory(device, device.machine_cards or 2)
    context = device.context
    taken = {
        "context_bytes": None if context is None else context.typical_bytes,
        "context_range_bytes": None if context is None else list(context.range_bytes),
        "context_source": None if context is None else context.source,
        "context_readings": dict(readings_of(device.name)),
        "nccl_bytes": group.typical_bytes,
        "nccl_range_bytes": None if group.range_bytes is None else list(group.range_bytes),
        "nccl_source": group.source,
        "nccl_readings": group.where,
    }
    return {**as_data(device, without=_NOT_SHOWN), **taken, **rates}
