"""Takes out lines of the package, one at a time, and says which of them some tests notice: how much these tests hold.

    python tests/line_mutants.py src/snugfit/training/update.py tests/cpu/training/test_update.py --seed 1 --count 10

A mutant is a copy of the checkout in which one statement is gone or the test of one `if` is turned round; the checkout stays
as it is. Which ones are tried is drawn by the seed from all functions of the files of `src` together. Tests that were made
quicker should notice what they noticed: `--before REVISION` also runs what is not noticed with the tests of that commit, and
ends with an error where these do.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "benchmarks", "examples", "docs", "mkdocs.yml", "pyproject.toml", "README.md", "Makefile")
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Delete, ast.Continue, ast.Break)
SLOWER = 3  # a mutant whose tests take so many times as long as without it, and a minute, has no end: it is noticed


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yields (line, what is changed, the source with that change)."""
    lines = source.splitlines(keepends=True)
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    for node in {id(node): node for function in functions for node in ast.walk(function)}.values():
        if isinstance(node, ast.If):
            changed = f"not ({ast.unparse(node.test)})"
            yield node.lineno, f"if {changed}", _replaced(lines, node.test, f"({changed})")
        elif isinstance(node, SIMPLE) and not isinstance(getattr(node, "value", None), ast.Constant):
            yield node.lineno, f"without {ast.unparse(node)}", _replaced(lines, node, "pass")


def _replaced(lines: list[str], node: Any, text: str) -> str:
    first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
    kept = first[: node.col_offset].decode() + text + last[node.end_col_offset :].decode()
    return "".join([*lines[: node.lineno - 1], kept, *lines[node.end_lineno :]])


def copy_of(folder: Path, revision: str | None = None) -> Path:
    """A copy of the checkout, with the tests of another commit where one is named."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    if revision:
        shutil.rmtree(folder / "tests")
        archive = subprocess.run(["git", "archive", revision, "tests"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder


def passes(folder: Path, tests: list[str], seconds: float | None = None) -> bool:
    """Whether all tests pass in a copy; False also where they have no end."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen(command, cwd=folder, env=environment, **quiet)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("files", nargs="+", help="files of src, and tests (files, or single ones as pytest names them)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--before", metavar="REVISION", help="a commit whose tests should notice no more than these")
    parser.add_argument(
        "--within", nargs="*", default=[], metavar="WORD", help="only functions with this in their names"
    )
    args = parser.parse_args()
    sources, tests = ([name for name in args.files if name.startswith(part)] for part in ("src/", "tests/"))
    every = [(file, *one) for file in sources for one in mutants((ROOT / file).read_text("utf-8"))]
    drawn = random.Random(args.seed).sample(every, min(args.count, len(every)))
    counts = {"noticed": 0, "LOST": 0, "not noticed": 0}
    with tempfile.TemporaryDirectory() as now, tempfile.TemporaryDirectory() as then:
        folders = [copy_of(Path(now)), *([copy_of(Path(then), args.before)] if args.before else [])]
        limits = []
        for folder in folders:
            begun = time.monotonic()
            if not passes(folder, tests):
                sys.exit("the tests fail without a mutant")
            limits.append(SLOWER * (time.monotonic() - begun) + 60)
            print(f"without a mutant: {time.monotonic() - begun:.0f} s", flush=True)
        for file, line, what, source in drawn:
            for folder, limit in zip(folders, limits, strict=True):
                original = (folder / file).read_text("utf-8")
                (folder / file).write_text(source, "utf-8")
                seen = not passes(folder, tests, limit)
                (folder / file).write_text(original, "utf-8")
                if seen:
                    break
            counts[found := ("noticed" if folder is folders[0] else "LOST") if seen else "not noticed"] += 1
            print(f"{found:11s} {file}:{line} {what[:90]!r}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    sys.exit(1 if counts["LOST"] else 0)


if __name__ == "__main__":
    main()
