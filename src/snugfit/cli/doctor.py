"""`snugfit doctor`: what is installed here and works, what is missing, what that leaves out, and how to get it.

Examples:
  snugfit doctor
  snugfit doctor --json

Libraries that may not go with this torch or this GPU are imported and used a little, in a process of their own. The exit
code is 0 where snugfit works, with whatever is not installed, and 2 where something is broken: asked for and not there, or
there and not working.
"""

from __future__ import annotations

import argparse
import platform
import sys

from snugfit import __version__
from snugfit.cli import output
from snugfit.fields import as_data
from snugfit.report.console import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `snugfit doctor`."""
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Looks, prints, and returns 2 where something is broken."""
    from snugfit.calibration.health import Check, checks

    if sys.stderr.isatty():
        print("snugfit: trying torch and what is built on it; some seconds.", file=sys.stderr)
    found = checks()
    works = all(check.state != "broken" for check in found)
    system = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}

    def cells(check: Check) -> tuple[str, str, str]:
        more = [f"left out: {check.left_out}"] if check.left_out else []
        more += [f"do: {check.fix}"] if check.fix else []
        return check.state, check.name, "\n".join([check.found, *more])

    def text() -> str:
        title = f"snugfit {__version__}, Python {system['python']}, {system['platform']}"
        return "\n".join([title, *table([cells(check) for check in found])])

    document = {**system, "works": works, "checks": [as_data(check) for check in found]}
    output.print_either(document, text, as_json=args.json)
    return 0 if works else 2
