"""`snugfit profile SCRIPT [args...]`: any training script, unchanged, and where its memory goes.

options of snugfit stand before SCRIPT; everything after it is the script's own

Examples:
  snugfit profile examples/plain_training.py
  snugfit profile --steps 2 --stop examples/plain_training.py --batch-size 64
  snugfit profile --snapshot memory.pickle train.py          (opens in https://pytorch.org/memory_viz)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from snugfit.cli.groups import Count, File
from snugfit.cli.options import add_options
from snugfit.cli.output import add_json_option, check_files, print_json, write_file
from snugfit.report.console import plain_for


class ProfileOptions:
    """What is watched, and how it is shown."""

    steps: Count = 3
    """optimizer steps to watch (default: 3)"""
    stop: bool = False
    """end the script after them; otherwise it goes on unwatched"""
    no_advice: bool = False
    """do not simulate the model for advice"""
    timeline: File
    """draw live memory over the steps (.html or .png)"""
    snapshot: File
    """write what was seen as a PyTorch memory snapshot (pickle)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `snugfit profile`."""
    parser.add_argument(
        "script", metavar="SCRIPT", help="a Python file or notebook that trains something, or -m MODULE"
    )
    rest = parser.add_argument("arguments", metavar="args", nargs=argparse.REMAINDER, help="the script's own arguments")
    rest.required = False
    add_options(parser, ProfileOptions)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the script, prints its profile, and returns the script's exit code."""
    check_files(args, timeline=(".html", ".png"), snapshot=())
    from snugfit.simulator.script import check_script

    check_script(args.script)
    with _script_output_aside() if args.json else contextlib.nullcontext(sys.stdout) as stream:
        from snugfit.profiler.profile import profile_script
        from snugfit.recording.snapshot import write_snapshot
        from snugfit.report.profile_card import profile_card, profile_drawing, profile_to_plain
        from snugfit.report.timeline_figure import write_timeline

        profile = profile_script(
            args.script, args.arguments, steps=args.steps, stop=args.stop, with_advice=not args.no_advice
        )
        sys.stdout.flush()
        # Printed before files are written: a disk that is full by now must not take the result of a long run with it.
        with contextlib.redirect_stdout(stream):
            if args.json:
                print_json(profile_to_plain(profile))
            else:
                print("\n" + plain_for(profile_card(profile), stream.encoding))
        stream.flush()
        write_file(args.snapshot, lambda path: write_snapshot(path, profile.trace, profile.config))
        drawn = (lambda: profile_drawing(profile)), (lambda: profile_to_plain(profile))
        write_file(args.timeline, lambda path: write_timeline(path, *drawn))
    return profile.exit_code


@contextlib.contextmanager
def _script_output_aside() -> Iterator[TextIO]:
    """Redirects stdout to stderr for the rest of the process, child processes included; yields the real stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8") as stream:
        yield stream
