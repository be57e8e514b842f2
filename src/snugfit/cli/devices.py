"""`snugfit devices`: the cards whose memory and speed are known."""

from __future__ import annotations

import argparse
import json
from typing import Any

from snugfit.devices import DEVICES, Device

HELP = "list the cards whose memory and speed are known"
EPILOG = """examples:
  snugfit devices
  snugfit devices --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `snugfit devices`.

    Args:
        parser: The subcommand's parser.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Prints the table.

    Args:
        args: The parsed options.

    Returns:
        0.
    """
    if args.json:
        print(json.dumps({"devices": [_plain(device) for device in DEVICES]}, indent=2))
        return 0
    header = ("name", "memory", "fp32", "tf32", "16-bit", "memory", "link", "vendor's name")
    units = ("", "GiB", "TFLOP/s", "TFLOP/s", "TFLOP/s", "GB/s", "GB/s", "")
    rows = [header, units, *(_row(device) for device in DEVICES)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        cells = [
            cell.ljust(width) if i in (0, 7) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print()
    print("FLOP/s are dense peaks, without sparsity. A dash is a number that no source gives. * memory only, no time.")
    print("Also: local, the GPU of this machine. Sources: snugfit devices --json")
    return 0


def _row(device: Device) -> tuple[str, ...]:
    def scaled(value: float | None, unit: float, digits: int = 0) -> str:
        return "-" if value is None else f"{value / unit:.{digits}f}"

    flops = device.flops
    return (
        device.name + ("*" if device.bytes_only else ""),
        scaled(device.memory_bytes, 2**30, 1),
        scaled(flops.get("float32"), 1e12, 1),
        scaled(flops.get("tf32"), 1e12, 1),
        scaled(flops.get("float16"), 1e12, 1),
        scaled(device.memory_bandwidth, 1e9),
        scaled(device.host_link_bandwidth, 1e9),
        device.vendor_name,
    )


def _plain(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "vendor_name": device.vendor_name,
        "memory_bytes": device.memory_bytes,
        "memory_source": device.memory_source,
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "flops_per_second": dict(device.flops),
        "memory_bytes_per_second": device.memory_bandwidth,
        "host_link_bytes_per_second": device.host_link_bandwidth,
        "context_bytes": device.context_bytes,
        "bytes_only": device.bytes_only,
        "source": device.source,
    }
