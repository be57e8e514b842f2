"""Lines put into the text of a script: before a statement, into a call, beside its imports; and the diff. Pure text."""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence

from snugfit.errors import InputError
from snugfit.simulator.script_seen import Place

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_CELL = re.compile(r".*\[(cell \d+)\]")
Part = tuple[int, int, bytes]
"""Where bytes of a text begin and end, and what comes in their place."""


def decoded(data: bytes) -> str:
    """Returns the text of a file as Python reads it, its ends of lines as they are."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding)


class ProgramText:
    """The parts of a program (a file; the cells of a notebook) as one text, in which loops and what follows are found."""

    def __init__(self, parts: Mapping[str, bytes]) -> None:
        """`parts`: name -> text, in the order in which they run."""
        self._first: dict[str, int] = {}
        self.text = ""
        for name, data in parts.items():
            self._first[name] = self.text.count("\n") + 1
            self.text += f"{decoded(data)}\n"

    def numbers(self, places: Iterable[tuple[str, int]]) -> list[int]:
        """Returns the numbers in the text of those of some files and lines that are in it."""
        return [self._first[file] + line - 1 for file, line in places if file in self._first]

    def file_line(self, number: int) -> str:
        """Returns `file:line` of a line of the text."""
        file, line = self._part(number)
        return f"{file}:{line}"

    def place(self, number: int) -> str:
        """Returns how a person calls a line of the text who knows of which program it is."""
        file, line = self._part(number)
        cell = _CELL.fullmatch(file)
        return f"line {line} of {cell[1]}" if cell else f"line {line}"

    def _part(self, number: int) -> tuple[str, int]:
        file, first = max((one for one in self._first.items() if one[1] <= number), key=lambda one: one[1])
        return file, number - first + 1


class ScriptText:
    """The text of a script, and changes that are collected before they are made."""

    def __init__(self, path: str, text: str) -> None:
        """Reads it."""
        self.path, self.text = path, text
        self._data = text.encode()
        self._tree = ast.parse(text)
        self._lines = self._data.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._end = "\r\n" if "\r\n" in text else "\n"
        self._parts: list[Part] = []
        self._imports: list[str] = []

    def put_before(self, place: Place, statements: Sequence[str]) -> None:
        """Puts statements before the one in which a place is."""
        start, _ = self._span(self._statement(place))
        begin = self._data.rfind(b"\n", 0, start) + 1
        before = self._data[begin:start]
        if before.strip():  # behind the head of its block
            if any("\n" in one for one in statements):
                raise _no_room(self.path, place.line)
            self._parts.append((start, start, "".join(f"{one}; " for one in statements).encode()))
            return
        rows = [f"{before.decode()}{row}{self._end}" for one in statements for row in one.splitlines()]
        self._parts.append((begin, begin, "".join(rows).encode()))

    def in_call(
        self, place: Place, name: str, *, renamed: str = "", given: str = "", without: Sequence[str] = ()
    ) -> None:
        """Changes the call of something by its name in the statement in which a place is.

        `renamed`: what is called in its place.
        `given`: an argument that is added, such as `fused=True`.
        `without`: keywords that are taken out.
        """
        calls = [one for one in ast.walk(self._statement(place)) if isinstance(one, ast.Call) and called(one) == name]
        if len(calls) != 1:
            raise InputError(f"{self.path}:{place.line} has no single call of {name} that could be changed.")
        call = calls[0]
        if any(keyword.arg is None for keyword in call.keywords):
            raise InputError(f"{self.path}:{place.line} gives {name} arguments by **, which may be any.")
        if renamed:
            self._parts.append((*self._span(call.func), renamed.encode()))
        dropped = [self._span(one) for one in call.keywords if one.arg in without]
        spans = (*map(self._span, call.args), *map(self._span, call.keywords))
        arguments = sorted(spans)
        kept = [self._data[start:end] for start, end in arguments if (start, end) not in dropped]
        if dropped:
            self._parts.append(
                (arguments[0][0], arguments[-1][1], b", ".join([*kept, *filter(None, [given.encode()])]))
            )
        elif given:
            last = arguments[-1][1] if arguments else self._span(call)[1] - 1
            self._parts.append((last, last, f"{', ' if arguments else ''}{given}".encode()))

    def imports(self, module: str) -> None:
        """Has a module imported, unless the file does so at its top."""
        if f"import {module}" not in self._imports and not any(module in names for names in self._imported()):
            self._imports.append(f"import {module}")

    def changed(self) -> str:
        """Returns the text with all changes made; `InputError` where it is no Python any more."""
        data = self._data
        for start, end, new in sorted([*self._parts, *self._import_part()], key=lambda part: part[:2], reverse=True):
            data = data[:start] + new + data[end:]
        text = data.decode()
        try:
            compile(text, self.path, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise _no_room(self.path, error.lineno or 0) from error
        return text

    def _import_part(self) -> Iterator[Part]:
        if not self._imports:
            return
        imports = [isinstance(one, ast.Import | ast.ImportFrom) and not _is_future(one) for one in self._tree.body]
        lines = "".join(f"{one}{self._end}" for one in self._imports).encode()
        if any(imports):  # behind the first ones that stand together
            behind = self._tree.body[[*imports, False].index(False, imports.index(True)) - 1]
            at = self._starts[behind.end_lineno or behind.lineno]
            yield at, at, lines if self._data[:at].endswith(b"\n") else self._end.encode() + lines
            return
        first = next((one for one in self._tree.body if not _is_future(one) and not _is_docstring(one)), None)
        at = self._starts[first.lineno - 1] if first is not None else len(self._data)
        yield at, at, lines

    def _imported(self) -> Iterator[list[str]]:
        for one in self._tree.body:
            if isinstance(one, ast.Import):
                yield [name.name for name in one.names if name.asname is None]

    def _statement(self, place: Place) -> ast.stmt:
        """The innermost statement in which a place is; of a line without a column, the one that is alone there."""
        around = [one for one in ast.walk(self._tree) if isinstance(one, ast.stmt) and _is_in(place, one)]
        innermost = [one for one in around if not any(other in around for other in ast.walk(one) if other is not one)]
        if len(innermost) != 1:
            raise _no_room(self.path, place.line)
        return innermost[0]

    def _place(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)


def diff(path: str, before: str, after: str) -> str:
    """Returns the changes of a file as a unified diff, for `patch -p0`."""
    rows = difflib.unified_diff(_LINE.findall(before), _LINE.findall(after), path, path)
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def _is_in(place: Place, statement: ast.stmt) -> bool:
    assert statement.end_lineno is not None and statement.end_col_offset is not None
    if place.column is None:
        return statement.lineno <= place.line <= statement.end_lineno
    begin, end = (statement.lineno, statement.col_offset), (statement.end_lineno, statement.end_col_offset)
    return begin <= (place.line, place.column) < end


def called(call: ast.Call) -> str:
    """Returns the name of what is called, without what it is an attribute of; empty where it has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _no_room(path: str, line: int) -> InputError:
    return InputError(
        f"{path}:{line} has no room for a statement before it. Put what makes the optimizer on a line of its own."
    )
