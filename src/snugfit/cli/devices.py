"""`snugfit devices`: the cards whose memory and speed are known.

Examples:
  snugfit devices
  snugfit devices --json
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from snugfit.cli import output
from snugfit.devices import DEVICES, Device
from snugfit.fields import as_data
from snugfit.report.console import table

_NOT_SHOWN = ("flops", "memory_bandwidth", "host_link_bandwidth", "corrects_in_memory", "sustained")
"""Fields of a device that have other names here, or none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `snugfit devices`.

    Args:
        parser: The subcommand's parser.
    """
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the table.

    Args:
        args: The parsed options.

    Returns:
        0.
    """
    if args.json:
        output.print_json({"devices": [_plain(device) for device in DEVICES]})
        return 0
    titles = ("name", "memory", "fp32", "tf32", "16-bit", "memory", "link", "vendor's name")
    units = ("", "GiB", "TFLOP/s", "TFLOP/s", "TFLOP/s", "GB/s", "GB/s", "")
    print("\n".join(table([titles, units, *map(_row, DEVICES)], right=range(1, 7), indent="", wrap_at=sys.maxsize)))
    print()
    print("FLOP/s are dense peaks, without sparsity. A dash is a number that no source gives. * memory only, no time.")
    print("Also: local, the GPU of this machine. Sources: snugfit devices --json")
    return 0


def _row(device: Device) -> tuple[str, ...]:
    numbers = (
        (device.memory_bytes, 2**30, 1),
        *((device.flops.get(dtype), 1e12, 1) for dtype in ("float32", "tf32", "float16")),
        (device.memory_bandwidth, 1e9, 0),
        (device.host_link_bandwidth, 1e9, 0),
    )
    cells = ["-" if value is None else f"{value / unit:.{digits}f}" for value, unit, digits in numbers]
    return device.name + ("*" if device.bytes_only else ""), *cells, device.vendor_name


def _plain(device: Device) -> dict[str, Any]:
    rates = {
        "flops_per_second": dict(device.flops),
        "memory_bytes_per_second": device.memory_bandwidth,
        "host_link_bytes_per_second": device.host_link_bandwidth,
    }
    return {**as_data(device, without=_NOT_SHOWN), **rates}
