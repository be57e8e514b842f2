"""`snugfit profile SCRIPT [args...]`: any training script, unchanged, and where its memory goes."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from snugfit.cli.output import add_json_option, check_writable, print_json, some_path, whole_number
from snugfit.errors import InputError

if TYPE_CHECKING:
    from snugfit.profiler.profile import Profile

EPILOG = """options of snugfit stand before SCRIPT; everything after it is the script's own

examples:
  snugfit profile examples/plain_training.py
  snugfit profile --steps 2 --stop examples/plain_training.py --batch-size 64
  snugfit profile --snapshot memory.pickle train.py          (opens in https://pytorch.org/memory_viz)"""
_TIMELINES = (".html", ".png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `snugfit profile`.

    Args:
        parser: The subcommand's parser.
    """
    parser.epilog = EPILOG
    parser.add_argument("script", metavar="SCRIPT", help="a Python file that trains something")
    rest = parser.add_argument("arguments", metavar="args", nargs=argparse.REMAINDER, help="the script's own arguments")
    rest.required = False
    parser.add_argument(
        "--steps", type=whole_number, default=3, metavar="N", help="optimizer steps to watch (default: 3)"
    )
    parser.add_argument("--stop", action="store_true", help="end the script after them; otherwise it goes on unwatched")
    parser.add_argument("--no-advice", action="store_true", help="do not simulate the model for advice")
    parser.add_argument(
        "--timeline", metavar="FILE", type=some_path, help="draw live memory over the steps (.html or .png)"
    )
    parser.add_argument(
        "--snapshot", metavar="FILE", type=some_path, help="write what was seen as a PyTorch memory snapshot (pickle)"
    )
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the script and prints its profile.

    Args:
        args: The parsed options.

    Returns:
        The script's exit code.

    Raises:
        InputError: There is no such script, or a file cannot be written.
    """
    _check_files(args)
    from snugfit.profiler.script import check_script

    check_script(args.script)
    with _script_output_aside() if args.json else contextlib.nullcontext(sys.stdout) as stream:
        from snugfit.profiler.profile import profile_script
        from snugfit.report.profile_card import print_profile, profile_to_plain

        profile = profile_script(
            args.script, args.arguments, steps=args.steps, stop=args.stop, with_advice=not args.no_advice
        )
        sys.stdout.flush()
        # Printed before files are written: a disk that is full by now must not take the result of a long run with it.
        with contextlib.redirect_stdout(stream):
            if args.json:
                print_json(profile_to_plain(profile))
            else:
                print_profile(profile, stream)
        stream.flush()
        for path, write in ((args.snapshot, _write_snapshot), (args.timeline, _write_timeline)):
            if path is not None:
                try:
                    write(path, profile)
                except OSError as error:
                    raise InputError(f"{str(path)!r} cannot be written: {error.strerror or error}.") from error
    return profile.exit_code


def _write_snapshot(path: Path, profile: Profile) -> None:
    from snugfit.recording.snapshot import write_snapshot

    write_snapshot(path, profile.trace, profile.config)


def _write_timeline(path: Path, profile: Profile) -> None:
    from snugfit.report.profile_timeline import profile_drawing
    from snugfit.report.timeline_figure import write_timeline

    write_timeline(profile_drawing(profile), path)


def _check_files(args: argparse.Namespace) -> None:
    """Refuses files that could not be written, before the script takes its time."""
    if args.timeline is not None and args.timeline.suffix.lower() not in _TIMELINES:
        raise InputError(f"--timeline is {str(args.timeline)!r}; give a file that ends in {' or '.join(_TIMELINES)}.")
    check_writable(timeline=args.timeline, snapshot=args.snapshot)


@contextlib.contextmanager
def _script_output_aside() -> Iterator[TextIO]:
    """Sends all that is written to stdout to stderr, child processes included, for the rest of the process.

    Yields:
        The real stdout.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8") as stream:
        yield stream
