"""`snugfit calibrate`: a minute of measuring, kept for every prediction of time for this machine.

Examples:
  snugfit calibrate
  snugfit calibrate --device cpu
  snugfit calibrate --json > calibration.json

Measured are matrix products, convolutions, memory, launches, the link to the host and CUDA's context (of a processor, in
seconds: products, memory, and what stands around an operator), and a small model's step against its prediction. What is
kept holds for this device, this torch and this number of threads; `--device local`, `--device cpu` and `train --budget`
use it from then on, and `snugfit devices local` (or `cpu`) shows it. Run it while nothing else runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from snugfit.cli import groups, options, output
from snugfit.device_kinds import CPU, CUDA, REHEARSE
from snugfit.errors import InputError
from snugfit.report.console import card
from snugfit.units import format_bytes, format_seconds

CHECK_BATCH_SIZE = 8


class CalibrateOptions:
    """What is measured."""

    device: groups.Name
    """cpu or cuda. Default: cuda where there is one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `snugfit calibrate`."""
    options.add_options(parser, CalibrateOptions)
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Measures, stores, checks and prints."""
    kind = device_of(args.device)
    print(f"snugfit: measuring {kind}; an earlier calibration stays until this one is there.", file=sys.stderr)
    import torch

    from snugfit.calibration import verification
    from snugfit.calibration.calibrate import calibrate

    found = calibrate(torch.device(kind))
    print("snugfit: kept; now a small model's step against its prediction.", file=sys.stderr)
    words = [verification.STOCK, "--image-size", str(verification.STOCK_IMAGE_SIZE), "--device", kind]
    row = verification.verify("plain", {}, words, batch_size=CHECK_BATCH_SIZE, on_line=lambda line: None)
    found["check"] = row
    title, kept = " ".join(found["identity"].values()), f"kept in {found['path']}"
    rows = [*_rows(found["speeds"]), *_check(row)]
    return output.print_either(found, lambda: f"{card(title, rows)}\n{kept}", as_json=args.json)


def device_of(asked: str | None) -> str:
    """Returns the device type to measure; `InputError` where it is not here or cannot be measured."""
    from snugfit.measure.device_probe import probe_device

    if asked is not None and asked.startswith(REHEARSE):
        raise InputError(f"device {asked!r} is rehearsed: its bytes are real, its seconds are not. Give cpu or cuda.")
    if asked not in (None, "auto", CPU, CUDA):
        raise InputError(f"device {asked!r} cannot be measured; give cpu or cuda, or leave it out.")
    return probe_device(asked or "auto").kind


def _rows(speeds: Mapping[str, Any]) -> list[tuple[str, str]]:
    rates = speeds["product_rates"]
    found = []
    if isinstance(rates, Mapping):
        for name, title in (("product_rates", "matrix products"), ("convolution_rates", "convolutions")):
            parts = [f"{dtype} {rate / 1e12:.3g}" for dtype, rate in speeds[name].items()]
            found.append((title, ", ".join(parts) + " TFLOP/s"))
        found.append(("memory", f"{speeds['bytes_per_second'] / 1e9:.0f} GB/s"))
        found.append(("an operator of the host", format_seconds(speeds["operator_seconds"])))
        link, context, kernel = (speeds[name] for name in ("link_bytes_per_second", "context_bytes", "kernel_seconds"))
        found.append(("an empty kernel", "" if kernel is None else format_seconds(kernel)))
        found.append(("link to the host", "" if link is None else f"{link / 1e9:.1f} GB/s"))
        found.append(("CUDA context", "" if context is None else format_bytes(context)))
        return found
    factors = ", ".join(f"{dtype} {factor:.2f}" for dtype, factor in speeds["dtype_factors"].items())
    found.append(
        ("matrix products", f"float32 up to {max(rate for _, rate in rates) / 1e9:.0f} GFLOP/s; of that {factors}")
    )
    size, seconds = speeds["memory_seconds"][-1]
    found.append(("memory", f"{size / seconds / 1e9:.1f} GB/s read and written by long operators"))
    found.append(("around an operator", format_seconds(speeds["operator_seconds"])))
    return found


def _check(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "error" in row:
        return [("check", f"could not be run: {row['error']}")]
    from snugfit.calibration.verification import compared

    pair = compared(dict(row)).get("seconds")
    if pair is None:
        return []
    predicted, measured = pair
    text = f"a step of a small model: predicted {format_seconds(predicted)}, measured {format_seconds(measured)}"
    return [("check", f"{text} ({predicted / measured - 1:+.0%})")]
