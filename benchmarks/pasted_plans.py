"""Lines of `snugfit plan SCRIPT`, pasted into scripts of other projects and trained: do they fit, and learn the same?

    python -m benchmarks.pasted_plans --sources DIR [--only NAME ...]

DIR is that of `benchmarks.scripts`. Each script is planned for cpu within a share of what it takes as it is, by techniques
that are exact, the diff is put on a copy by `patch`, and both are taken through the same steps for real, from one seed.
Rows go to `results/pasted_plans.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.results_file import made_by_name
from benchmarks.scripts import SCRIPTS, Script, estimated_on_cpu, really

SHARES = {"nanoGPT": 0.9, "unet": 0.96, "timm": 0.9, "minGPT": 0.8, "makemore": 0.9}
"""Script -> the budget, as a share of what it takes as it is."""


def row(script: Script, share: float, sources: Path) -> dict[str, Any]:
    """Plans a script within a share of its memory, and trains it with and without the plan's lines."""
    project = sources / script.repository.replace("/", "+")
    script.make_data(project)
    as_it_is, said = estimated_on_cpu(script, project)
    if as_it_is is None:
        return {"said": said}
    budget = int(share * as_it_is["peak_allocated_bytes"])
    with tempfile.TemporaryDirectory(dir=sources) as folder:
        copy = Path(folder) / project.name
        shutil.copytree(project, copy, copy_function=os.link)  # `patch` puts new files in the place of those it changes
        kept = {"budget_bytes": budget, "as_it_is_bytes": as_it_is["peak_allocated_bytes"]}
        plan, said = estimated_on_cpu(script, copy, "plan", "--budget", f"{budget}B", "-o", "lines.diff")
        if plan is None:
            return {**kept, "said": said}
        subprocess.run(["patch", "-p0", "-i", "lines.diff"], cwd=script.place(copy)[0], check=True, capture_output=True)
        before, losses_before = _trained(script, project, Path(folder))
        after, losses_after = _trained(script, copy, Path(folder))
    return {
        **kept,
        "said": "",
        "recipe": plan["recipe"],
        "diff": plan["diff"],
        "predicted_bytes": plan["estimate"]["peak_allocated_bytes"],
        "measured_bytes": after,
        "measured_before_bytes": before,
        "losses_before": losses_before,
        "losses_after": losses_after,
    }


def _trained(script: Script, project: Path, folder: Path) -> tuple[int | None, list[float]]:
    file = folder / "losses.json"
    found, said = really(script, project, "--losses", str(file))
    if found is None:
        raise RuntimeError(f"{script.path}: {said}")
    return found["allocator_peak_bytes"], json.loads(file.read_text())


def main() -> None:
    """Makes the rows, each in the place of the one of its name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=SHARES, default=list(SHARES))
    args = parser.parse_args()

    def make(name: str) -> dict[str, Any]:
        script = SCRIPTS[name]
        made = row(script, SHARES[name], args.sources.resolve())
        return {"repository": script.repository, "script": script.path, **made}

    for name, made in made_by_name("pasted_plans", args.only, SHARES, make):
        print(name, json.dumps({key: value for key, value in made.items() if key != "diff"}), flush=True)


if __name__ == "__main__":
    main()
