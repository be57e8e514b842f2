"""Takes out each wait, event, record, pin and release of the code that copies beside the compute, one at a time, and says
which tests notice.

    python tests/card_mutants.py [--match streams] [--write]

A mutant is a copy of the package in which one statement is gone, or one value means "nothing to wait for". Its tests run in
a fork of a process that has imported torch, those of the changed file first. What nothing notices is printed; it needs a
test, or a reason in `REASONS`. `--write` keeps the result in `benchmarks/results/card_mutants.json`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CARD, TECHNIQUES = "tests/cpu/pretend_card", "tests/cpu/techniques"
COPIES = f"{CARD}/test_copies.py"
MATRIX = f"{CARD}/test_techniques_on_card.py::test_matches_plain_training"
FILES = {
    "techniques/streams.py": [COPIES],
    "techniques/host_pool.py": [COPIES, f"{TECHNIQUES}/test_host_pool.py"],
    "techniques/offload_activations/apply.py": [
        f"{TECHNIQUES}/test_offload_activations.py", f"{MATRIX}[tied-offload_activations]", COPIES
    ],
    "techniques/offload_optimizer/apply.py": [
        f"{MATRIX}[tied-offload_optimizer]", f"{TECHNIQUES}/test_offload_optimizer.py", COPIES
    ],
    "training/update.py": [
        f"{MATRIX}[mlp-offload_optimizer]", COPIES, f"{TECHNIQUES}/test_offload_optimizer.py",
        f"{CARD}/test_recovery_on_card.py::test_memory_ends_at_any_operator[backward-offload_optimizer]",
    ],
    "training/health.py": [COPIES, "tests/cpu/training/test_health.py"],
    "techniques/loading/apply.py": [COPIES],
}  # fmt: skip
"""File -> tests that say something about it, the fastest first."""
STATEMENTS = {
    "wait_event", "record", "synchronize", "compute_waits_for", "host_waits_for", "_let_go", "arrived", "forget", "clear",
    "popleft",
}  # fmt: skip
"""Calls that stand alone: the mutant leaves them out."""
HOLDS = "_leaving.append"
"""What keeps a tensor until its copy is done; left out, it is released at once."""
COUNTED = "weakref.finalize"
"""What tells the pool that its memory is gone."""
VALUES = {"compute_mark": "None", "copy_mark": "None", "query": "True", "usable_pin_memory": "False"}
"""Calls whose value is used -> what stands in their place."""
LOCKED = ("pin_memory", "pin")
ONLY = {"training/update.py": ("_leaving", "update.arrived", "update.forget")}
"""File -> what a mutant of it must mention: the rest of it waits for nothing."""
REASONS: dict[str, str] = {}
"""Mutant -> why no test can notice it."""
SECONDS = 40
"""Processor time after which tests of a mutant are taken to have no end."""
RESULT = ROOT / "benchmarks" / "results" / "card_mutants.json"
LIBRARIES = ("torch", "torchvision.models", "torch._dynamo", "torch._decomp", "hypothesis", "pytest", "numpy", "yaml")


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Yields (what was taken out, the source without it)."""
    lines = source.splitlines(keepends=True)
    for node, text in _places(ast.parse(source)):
        yield f"line {node.lineno}: {ast.unparse(node)}", _replaced(lines, node, text)


def _places(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    # In a loop that lets go of one after the other, the mutant lets go of none; it does not go round for ever.
    in_loops = {id(one) for loop in ast.walk(tree) if isinstance(loop, ast.While) for one in loop.body}
    begun = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    at_begin = {id(one) for function in begun for one in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _name(node.value) in STATEMENTS or HOLDS in ast.unparse(node):
                yield node, "break" if id(node) in in_loops else "pass"
        elif isinstance(node, ast.Delete) or (isinstance(node, ast.Assign) and COUNTED in ast.unparse(node)):
            yield node, "pass"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            if isinstance(node.value, ast.Constant) and node.value.value is None and id(node) not in at_begin:
                yield node, "pass"
        elif isinstance(node, ast.Call) and _name(node) in VALUES:
            yield node, VALUES[_name(node)]
        elif isinstance(node, ast.keyword) and node.arg in LOCKED and not isinstance(node.value, ast.Constant):
            yield node.value, "False"
        elif isinstance(node, ast.IfExp) and ast.unparse(node.test) in LOCKED:
            yield node.test, "False"


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _replaced(lines: list[str], node: Any, text: str) -> str:
    first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
    kept = first[: node.col_offset].decode() + text + last[node.end_col_offset :].decode()
    return "".join([*lines[: node.lineno - 1], kept, *lines[node.end_lineno :]])


def seen(package: Path, tests: list[str]) -> str | None:
    """Returns the first test that fails with a mutant; None where all pass."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            os.write(writing, _first_failure(package, tests).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        found = answer.read()
    _, status = os.waitpid(child, 0)
    if not found:
        return f"no end in {SECONDS} seconds of processor time" if os.WIFSIGNALED(status) else None
    return None if found == "-" else found


def _first_failure(package: Path, tests: list[str]) -> str:
    """In a fork: runs tests on the mutant; `-` where all pass."""
    import pytest

    failed: list[str] = []

    class Watch:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                failed.append(report.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                failed.append(report.nodeid or "collection")

    os.chdir(ROOT)
    sys.path.insert(0, str(package))
    os.environ["PYTHONPATH"] = f"{package}{os.pathsep}{ROOT}"
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--fresh-processes"]
    code = pytest.main([*options, *tests], plugins=[Watch()])
    import snugfit

    assert Path(snugfit.__file__).is_relative_to(package), snugfit.__file__
    return failed[0] if failed else ("-" if code == 0 else f"exit code {int(code)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument(
        "--match", default="", help="only mutants with this in their file or text; the others are as kept"
    )
    parser.add_argument("--list", action="store_true", help="say what would be taken out")
    parser.add_argument("--write", action="store_true", help="keep the result with those of the benchmarks")
    args = parser.parse_args()
    kept = json.loads(RESULT.read_text(encoding="utf-8"))["mutants"] if args.match and RESULT.exists() else []
    rows = [row for row in kept if row["file"] in FILES and args.match not in f"{row['file']} {row['taken_out']}"]
    for name in () if args.list else LIBRARIES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(ROOT / "src" / "snugfit", package / "snugfit", ignore=shutil.ignore_patterns("__pycache__"))
        for file, tests in FILES.items():
            place = package / "snugfit" / file
            original = place.read_text(encoding="utf-8")
            wanted = [
                (what, source)
                for what, source in mutants(original)
                if args.match in f"{file} {what.partition(': ')[2]}"
                and any(word in what for word in ONLY.get(file, ("",)))
            ]
            if args.list:
                print(*(f"{file} {what}" for what, _ in wanted), sep="\n")
                continue
            unchanged = seen(package, tests) if wanted else None
            assert unchanged is None, f"without a mutant: {unchanged}"
            for what, source in wanted:
                place.write_text(source, encoding="utf-8")
                noticed = seen(package, tests)
                text = what.partition(": ")[2]
                rows.append({"file": file, "taken_out": text, "noticed_by": noticed})
                if noticed is None:
                    rows[-1]["reason"] = REASONS.get(f"{file} {text}")
                print(f"{'seen  ' if noticed else 'UNSEEN'} {file} {what} | {noticed or ''}", flush=True)
            place.write_text(original, encoding="utf-8")
    if args.list:
        return
    rows.sort(key=lambda row: list(FILES).index(row["file"]))
    count = sum(row["noticed_by"] is not None for row in rows)
    print(f"{count} of {len(rows)} mutants are noticed")
    if args.write:
        sys.path.insert(0, str(ROOT))
        from benchmarks.results_file import write

        write(RESULT.stem, {"noticed": count, "mutants": rows})
    unexplained = [row for row in rows if row["noticed_by"] is None and not row["reason"]]
    if unexplained:
        sys.exit(f"neither noticed nor explained: {json.dumps(unexplained, indent=1)}")


if __name__ == "__main__":
    main()
