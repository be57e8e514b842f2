"""What a ladder leaves in its directory, beside the runs of its rungs: its document, its figure, the config of a preset."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.cli import output
from snugfit.errors import InputError
from snugfit.ladder_presets import Preset
from snugfit.report.figure import NoMatplotlibError
from snugfit.report.ladder_figure import draw_ladder
from snugfit.runs.request import free_directory

_FILES = ("ladder.json", "ladder.png", "ladder.svg")
"""Its document and its figure."""
_OTHER = " Give another --out."


def output_directory(args: argparse.Namespace, preset: Preset | None) -> tuple[Path, Path | None]:
    """Returns the directory of this ladder, and the topmost one made for it; an earlier ladder may still be there."""
    if args.out is not None:
        out: Path = args.out
        there = [name for name in (*_FILES, "rungs") if (out / name).exists()]
        if there and not args.overwrite:
            raise InputError(f"{out} holds {there[0]} already. Give --overwrite to replace it, or another --out.")
    else:
        model = Path(args.model.rsplit(":", 1)[-1]).name if preset is None else preset.name
        out = free_directory("ladder", model, f"estimate-{args.card or 'cpu'}" if args.estimate else args.data)
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    with output.writing(out, _OTHER):
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(13, "Permission denied")
    return out, missing[-1] if missing else None


def remove_earlier(out: Path, *, keep: str) -> None:
    """Removes what another ladder left; the first rung of this one is there already."""
    with output.writing(out, _OTHER):
        for name in _FILES:
            (out / name).unlink(missing_ok=True)
        for rung in (out / "rungs").glob("*"):
            if rung.name != keep:
                shutil.rmtree(rung, ignore_errors=True)


def write_config(preset: Preset, out: Path) -> str:
    """Writes a preset's model config where a run can find it; returns the model's name for `snugfit train`."""
    if preset.config is None:
        assert preset.model is not None
        return preset.model
    path = out / "model" / "config.json"
    with output.writing(path, _OTHER):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(preset.config, indent=1) + "\n", encoding="utf-8")
    return f"hf:{path}"


def write_document(out: Path, document: Mapping[str, Any]) -> None:
    """Writes what is known so far, so that a stopped ladder keeps its finished rungs."""
    path = out / "ladder.json"
    with output.writing(path):
        path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def draw(out: Path, rungs: Sequence[Mapping[str, Any]], title: str) -> list[Path]:
    """Draws the figure if matplotlib is installed, and returns the files written."""
    figures = [out / "ladder.png", out / "ladder.svg"]
    try:
        with output.writing(out):
            draw_ladder(rungs, title=title, paths=figures)
    except NoMatplotlibError as error:
        print(f"snugfit: {error}", file=sys.stderr)
        return []
    return figures
