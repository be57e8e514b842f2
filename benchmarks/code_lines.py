"""Lines of code of src, by room: without blank lines, comments and docstrings.

python -m benchmarks.code_lines                     (as it stands here)
python -m benchmarks.code_lines 1ff8674 HEAD        (of commits, side by side)
python -m benchmarks.code_lines --added cf9b86e     (what each commit added, against its first parent)
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = "src/snugfit/"
_NO_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
)  # fmt: skip


@functools.cache
def code_lines(source: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text:
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def files_here() -> dict[str, str]:
    return {str(path): path.read_text(encoding="utf-8") for path in Path(SOURCE).rglob("*.py")}


def files_of(commit: str) -> dict[str, str]:
    packed = subprocess.run(["git", "archive", commit, SOURCE], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        names = [member.name for member in files if member.name.endswith(".py")]
        return {name: files.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr]


def by_room(files: dict[str, str]) -> Counter[str]:
    rooms: Counter[str] = Counter()
    for name, source in files.items():
        room, _, rest = name.removeprefix(SOURCE).partition("/")
        rooms[room if rest else "ground floor"] += code_lines(source)
    return rooms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", help="commits; none: the files here")
    parser.add_argument("--added", action="store_true", help="what each commit added")
    options = parser.parse_args()
    if options.added:
        total = 0
        for commit in options.commits:
            added = sum(by_room(files_of(commit)).values()) - sum(by_room(files_of(f"{commit}^1")).values())
            said = subprocess.run(
                ["git", "log", "-1", "--format=%s", commit], capture_output=True, text=True, check=True
            )
            total += added
            print(f"{added:+6}  {commit}  {said.stdout.strip()[:90]}")
        print(f"{total:+6}")
        return
    names = options.commits or ["here"]
    found = [by_room(files_of(commit)) for commit in options.commits] or [by_room(files_here())]
    print(f"{'':14}" + "".join(f"{name[:10]:>11}" for name in names))
    for room in sorted(set().union(*found)):
        print(f"{room:14}" + "".join(f"{rooms[room]:11}" for rooms in found))
    print(f"{'all':14}" + "".join(f"{sum(rooms.values()):11}" for rooms in found))


if __name__ == "__main__":
    main()
