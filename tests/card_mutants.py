"""Takes out each wait, event, mark and release of the code that copies beside the compute, one at a time, and says which of
them the tests on the pretend card notice.

    python tests/card_mutants.py [--out build/card_mutants.json]

A mutant is a copy of the package in which one call does nothing (a statement), or returns what means "nothing to wait for"
(a value). Locks of pages are taken out too: then copies wait, so the numbers stay right, and only tests that forbid a step
to wait can see it. Those that nothing sees are printed; each needs a reason, or a test.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = (
    "techniques/streams.py",
    "techniques/host_pool.py",
    "techniques/offload_activations/apply.py",
    "techniques/offload_optimizer/apply.py",
    "training/health.py",
    "workloads/loader.py",
)
STATEMENTS = {"wait_event", "record", "synchronize", "compute_waits_for", "host_waits_for", "_let_go", "arrived"}
"""Calls that stand alone: the mutant leaves them out."""
HOLDS = "_leaving.append"
"""What keeps a tensor until its copy is done; left out, it is released at once."""
VALUES = {"compute_mark": "None", "copy_mark": "None", "query": "True"}
"""Calls whose value is used -> what stands in their place."""
LOCKED = ("pin_memory", "pin")
TESTS = (
    ("tests/cpu/pretend_card", "copies_beside or a_step or (predicted_bytes and offload and mlp) or loader"),
    ("tests/gpu/test_step_on_cuda.py", "wait or late or leave or offload or both"),
    ("tests/cpu/training/test_health.py", ""),
    ("tests/cpu/techniques/test_host_pool.py", ""),
)


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Yields (what was taken out, the source without it)."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = _name(node.value)
            if name in STATEMENTS or HOLDS in ast.unparse(node):
                yield f"line {node.lineno}: {ast.unparse(node)}", _replaced(lines, node, "pass")
        elif isinstance(node, ast.Call) and _name(node) in VALUES:
            yield f"line {node.lineno}: {ast.unparse(node)}", _replaced(lines, node, VALUES[_name(node)])
        elif isinstance(node, ast.keyword) and node.arg in LOCKED and not isinstance(node.value, ast.Constant):
            yield f"line {node.lineno}: {ast.unparse(node)}", _replaced(lines, node.value, "False")


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _replaced(lines: list[str], node: ast.expr | ast.stmt, text: str) -> str:
    assert node.end_lineno is not None and node.end_col_offset is not None
    first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
    kept = first[: node.col_offset].decode() + text + last[node.end_col_offset :].decode()
    return "".join([*lines[: node.lineno - 1], kept, *lines[node.end_lineno :]])


def seen(package: Path) -> str | None:
    """Returns the first test that fails with a mutant; None where all pass."""
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}"}
    for path, chosen in TESTS:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            str(ROOT / path),
        ]
        try:
            done = subprocess.run(
                [*command, "-k", chosen] if chosen else command,
                cwd=package, env=environment, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{path}: no end in 5 minutes"
        if done.returncode not in (0, 5):
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return failed[0] if failed else f"{path}: exit code {done.returncode}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "card_mutants.json")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(ROOT / "src" / "snugfit", package / "snugfit")
        unchanged = seen(package)
        assert unchanged is None, f"without a mutant: {unchanged}"
        for file in FILES:
            place = package / "snugfit" / file
            original = place.read_text(encoding="utf-8")
            for what, source in mutants(original):
                place.write_text(source, encoding="utf-8")
                noticed = seen(package)
                rows.append({"file": file, "taken_out": what, "noticed_by": noticed})
                print(f"{'seen  ' if noticed else 'UNSEEN'} {file} {what}", flush=True)
                place.write_text(original, encoding="utf-8")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    count = sum(row["noticed_by"] is not None for row in rows)
    print(f"{count} of {len(rows)} mutants are noticed")


if __name__ == "__main__":
    main()
