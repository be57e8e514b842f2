"""`snugfit verify`: six recipes of a model, run here and held against their predictions, bytes and time.

Examples:
  snugfit verify
  snugfit verify torchvision:resnet18 --model-arg num_classes=10 --image-size 64 --batch-size 16
  snugfit verify hf:config.json --seq-len 128 --batch-size 4 --device cuda --out rows.jsonl
  snugfit verify model.py:build --image-size 64 --batch-size 16 --report report.json

Every recipe trains on random data in a process of its own. On a processor time is predicted after `snugfit calibrate`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from snugfit.calibration import verification
from snugfit.calibration.verify_report import report
from snugfit.cli import groups, options, output
from snugfit.cli.calibrate import device_of
from snugfit.errors import InputError
from snugfit.report.console import row_of
from snugfit.report.words import as_options
from snugfit.units import format_bytes, format_seconds

DEFAULT_BATCH_SIZE = 8
DEFAULT_MINUTES = 5
_TITLES = ("recipe", "predicted", "measured", "off", "a step", "measured", "off", "remark")
_WIDTHS = (19, 10, 10, 7, 9, 9, 6, 6)
_NUMBERS = range(1, 7)
_SHAPES = ("model_arg", "task", "image_size", "seq_len")
"""Options of a MODEL."""


class VerifyOptions:
    """How it is run."""

    batch_size: groups.Count = DEFAULT_BATCH_SIZE
    """samples of an update"""
    device: groups.Name
    """where to train: cpu or cuda. Default: cuda where there is one."""
    minutes: groups.Count = DEFAULT_MINUTES
    """no recipe begins that would end later, as far as the ones before tell; at least one is run"""
    out: groups.File
    """also write the rows to this file, one JSON object a line"""
    report: groups.File
    """also write a file to attach to an issue: the rows, this machine and its versions, as JSON"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `snugfit verify`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="torchvision:NAME, timm:NAME, hf:DIR/config.json or path/file.py:function. Default: a small one of ours.",
    )
    options.add_options(parser, VerifyOptions)
    options.add_options(parser, groups.DataOptions, "model_arg", "task", "image_size")
    options.add_options(parser, groups.ReadingOptions, "seq_len")
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the recipes one after the other and prints a table."""
    output.check_files(args, out=(), report=(".json",))
    device = device_of(args.device)
    words = _words(args, device)
    rows: list[dict[str, Any]] = []
    chosen = verification.recipes(args.batch_size)
    print(f"snugfit: {len(chosen)} recipes, in at most about {args.minutes} min (--minutes)", file=sys.stderr)
    began, slowest = time.monotonic(), 0.0
    for number, (name, recipe) in enumerate(chosen.items(), 1):
        begins = time.monotonic()
        if begins - began + slowest > 60 * args.minutes:
            break
        if sys.stderr.isatty() or args.json:
            print(f"recipe {number}/{len(chosen)} {name}", file=sys.stderr, flush=True)
        rows.append(verification.verify(name, recipe, words, batch_size=args.batch_size, on_line=lambda line: None))
        slowest = max(slowest, time.monotonic() - begins)
        if number == 1 and "error" in rows[0]:  # model or shapes are wrong, and so they would be for the others
            raise InputError(rows[0]["error"])
        if not args.json:
            if number == 1:
                output.print_text(row_of(_TITLES, _WIDTHS, _NUMBERS))
                output.print_text("  ".join("─" * width for width in _WIDTHS))
            output.print_text(row_of(_cells(rows[-1]), _WIDTHS, _NUMBERS))
    left_out = list(chosen)[len(rows) :]
    if left_out:
        more = math.ceil(len(chosen) * slowest / 60)
        print(f"snugfit: no time for {', '.join(left_out)}; --minutes {more} is enough for all.", file=sys.stderr)
    if args.json:
        output.print_json({"rows": rows, "left_out": left_out})
    elif "seconds" not in verification.compared(rows[0]):
        print("No time is predicted for this device yet: `snugfit calibrate` measures it in a minute.")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    output.write_file(args.out, lambda path: path.write_text(lines, encoding="utf-8"))
    if args.report is not None:
        asked = {name: getattr(args, name) for name in ("model", "batch_size", *_SHAPES)}
        text = json.dumps(report(asked, device, rows), indent=1) + "\n"
        output.write_file(args.report, lambda path: path.write_text(text, encoding="utf-8"))
    return 0


def _words(args: argparse.Namespace, device: str) -> list[str]:
    """Returns model, shapes and device as options of `snugfit train`."""
    words = [verification.STOCK if args.model is None else args.model, "--device", device]
    if args.model is None:
        given = [f"--{name.replace('_', '-')}" for name in _SHAPES if getattr(args, name)]
        if given:
            raise InputError(f"{', '.join(given)} is for a MODEL of yours, and none is named.")
        return [*words, "--image-size", str(verification.STOCK_IMAGE_SIZE)]
    for text in args.model_arg or ():
        words += ["--model-arg", text]
    return words + as_options({name: getattr(args, name) for name in ("task", "image_size", "seq_len")})


def _cells(row: Mapping[str, Any]) -> list[str]:
    if "error" in row:
        return [row["name"], *["-"] * 6, " ".join(str(row["error"]).split())]
    pairs = verification.compared(dict(row))
    cells = [row["name"]]
    bytes_ = pairs.get("reserved") or pairs.get("allocated")
    for pair, form, digits in ((bytes_, _in_bytes, 2), (pairs.get("seconds"), format_seconds, 0)):
        if pair is None:
            cells += ["-", "-", "-"]
        else:
            predicted, measured = pair
            cells += [form(predicted), form(measured), f"{predicted / measured - 1:+.{digits}%}"]
    return [*cells, ""]


def _in_bytes(value: float) -> str:
    return format_bytes(int(value))
