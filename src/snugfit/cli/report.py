"""`snugfit report`: a run, an estimate, a plan, a ladder or a profile as one page for a browser, or two on one axis.

Examples:
  snugfit plan torchvision:vit_l_16 --batch-size 64 --budget 8GiB --device rtx-4090 --json > plan.json
  snugfit report plan.json -o report.html
  snugfit report runs/photos -o photos.html
  snugfit report before.json after.json -o change.html
  snugfit report estimate.json profile.json -o predicted_and_measured.html

The page holds everything it shows and asks for nothing from anywhere; it works from disk, without network.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from snugfit.cli import output
from snugfit.errors import InputError, in_words
from snugfit.json_files import read_json
from snugfit.planner.budgets import budgets_of
from snugfit.report.page import kind_of, page, shown
from snugfit.runs.run_files import PLAN, RunFiles, holds_run

_SHOWN = "a run directory, or what --json of snugfit estimate, plan, ladder, train or profile printed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit report`."""
    parser.add_argument("first", metavar="RUN_DIR|FILE", type=output.some_path, help=_SHOWN)
    second = "another one, to be shown beside the first on one axis"
    parser.add_argument("second", metavar="SECOND", nargs="?", type=output.some_path, help=second)
    written = "the page, FILE.html"
    parser.add_argument("-o", "--output", metavar="FILE", type=output.some_path, required=True, help=written)
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Reads one or two documents and writes their page."""
    output.check_files(args, output=(".html",))
    documents = [_document(path) for path in (args.first, args.second) if path is not None]
    text = page(documents)
    with output.writing(args.output):
        args.output.write_text(text, encoding="utf-8")
    parts = [{"name": one["name"], "kind": one["kind"], "parts": list(one["sections"])} for one in documents]
    found = {"path": str(args.output), "bytes": len(text.encode()), "documents": parts}
    return output.print_either(found, lambda: f"written: {args.output}", as_json=args.json)


def _document(path: Path) -> dict[str, Any]:
    """Returns what a page shows of a run directory or a file; `InputError` where it is none of ours."""
    named = repr(str(path))
    document, plan, source, rows = _read_run(path) if path.is_dir() else (_read_file(path), None, path, [])
    kind = kind_of(document)
    if kind is None:
        raise InputError(_not_ours(document, named))
    planned = plan if plan is not None else document if kind == "plan" else None
    budgets = None if planned is None else budgets_of(planned, str(source))
    try:
        return shown(document, name=str(path), budgets=budgets, plan=plan, source=str(source), rows=rows)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"{named} was altered, or written by another version of snugfit ({in_words(error)}). "
            "Write it anew with this one."
        ) from error


def _read_file(path: Path) -> Any:
    instead = f"Give {_SHOWN}."
    return read_json(path, repr(str(path)), instead=instead, missing=instead)


def _read_run(path: Path) -> tuple[Any, Any, Path, list[Any]]:
    """Returns the result of a run, or what there is of one; its plan if it was planned, the plan's file, and its metrics."""
    files = RunFiles(path)
    if not holds_run(path):
        ladder = path / "ladder.json"
        if ladder.is_file():
            return _read_file(ladder), None, ladder, []
        raise InputError(f"{str(path)!r} is no run directory: it holds no run. Give {_SHOWN}.")
    found, rows = files.read_summary(), files.read_metrics()
    if found is None and not rows:
        raise InputError(
            f"the run in {str(path)!r} has no result: it is not finished, and no step of it is written down yet. Go on with "
            f"it (snugfit train --run-dir {path} --resume), and report it then."
        )
    if found is None:
        request, recipe = files.read_request().to_mapping(), files.read_recipe().to_mapping()
        found = {"workload": request, "recipe": recipe, "rows": rows, "saved_step": files.last_saved()}
    source = path / PLAN
    return found, _read_file(source) if source.exists() else None, source, rows


def _not_ours(document: Any, named: str) -> str:
    """Says what a document is that a page does not show."""
    keys = document.keys() if isinstance(document, dict) else set()
    if {"frontier", "estimate"} & keys and "reasons" in keys:
        return f"{named} is a plan of an earlier version of snugfit, which keeps nothing for other budgets. Plan anew."
    if {"budget_bytes", "slowdown", "faster"} <= keys:
        return (
            f"{named} is what `snugfit plan --from` answered for one budget. Give the plan that was handed to --from."
        )
    if {"fits", "comparison", "estimate"} <= keys:
        return f"{named} is what `snugfit check` printed. Give what `snugfit estimate --json` prints of the same."
    return f"{named} is JSON, and none of snugfit's that a page shows. Give {_SHOWN}."
