"""Tables of text: `csv:`, `jsonl:` and `parquet:` files or folders, and `hf:NAME` through the library datasets.

A file is looked through once, for its rows and mistakes, and stays where it is: columns are read from it when they are used
(but for a list of JSON, which has no rows to read one by one).

A folder has one file for each part: train, and validation or test or both. A mistake in a file is reported with its line.

Why csv and jsonl are read by Python's own modules and not by `datasets.load_dataset("csv", data_files=...)` (datasets 5.2):
that takes a row with a field too few and fills it up, takes `"b" c` for `b c`, says the place of a byte that is no UTF-8
within some piece of the file, and knows no lines, so none of our messages could name one; it writes a copy of the file into
the user's cache, which nobody removes (99 MiB for a file of 97); and 100 MB take it 1.5 s of the processor and one second
more for its import, where reading twice takes 1.4 s here. Neither holds the text in memory.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from snugfit.attributes import attributes_set
from snugfit.errors import InputError, in_words, message_of
from snugfit.library_imports import needed
from snugfit.workloads.hf_files import quiet
from snugfit.workloads.text.stored import Column, StoredColumn, opened, shown

KINDS = ("csv", "jsonl", "parquet", "hf")
PARTS = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "dev"), "test": ("test",)}
"""Names of files, and of splits, for each part."""

_BATCH = 1000
"""Rows of a binary table that are in memory at a time."""
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What stands between the fields of a csv file, in words."""
_OBJECT = 'Give one object a line, or a list of them, such as {"text": "...", "label": "..."}.'
ENDINGS = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".json"), "parquet": (".parquet",)}

Row = tuple[int, Mapping[str, Any]]
"""The line that a row begins in, and its values by column."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Named columns of equal length."""

    name: str
    """Where it is from, for messages."""

    columns: Mapping[str, Column]
    """Column name -> values."""

    lines: Sequence[int] | None = None
    """The line of the file each row is from; None where rows have no lines."""

    label_names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Names of the labels, for columns that hold their numbers."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def where(self, row: int) -> str:
        """Returns in words where a row is (file, line)."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"


def read_tables(spec: str, *, download: bool) -> dict[str, Table]:
    """Returns part -> table; a single file is the `train` part.

    `spec`: `csv:`, `jsonl:` or `parquet:` with a file or a folder, or `hf:NAME` or `hf:NAME:CONFIG`.
    `download`: whether `hf:` data that is not in the local cache may be fetched.
    """
    kind, _, where = spec.partition(":")
    if not where:
        takes = "NAME" if kind == "hf" else "FILE"
        raise InputError(f"data {spec!r} names no {takes.lower()}. Write {kind}:{takes}.")
    if kind == "hf":
        tables = _from_hub(spec, where, download)
    else:
        files = _files(spec, kind, Path(where).expanduser())
        readers: dict[str, Callable[[Path], Table]]
        readers = {"csv": partial(_lined, _csv_rows), "jsonl": _read_json, "parquet": _read_parquet}
        tables = {part: readers[kind](file) for part, file in files.items()}
    for table in tables.values():
        if not len(table):
            raise InputError(f"data {table.name!r} has no rows. Give a file with some.")
    return tables


def _files(spec: str, kind: str, path: Path) -> dict[str, Path]:
    if path.is_dir():
        found = {part: _file_of(path, names, ENDINGS[kind]) for part, names in PARTS.items()}
        if found["train"] is None:
            raise InputError(
                f"data {spec!r}: {str(path)!r} has no train{ENDINGS[kind][0]}. Put one there, or name a file."
            )
        return {part: file for part, file in found.items() if file is not None}
    if not path.is_file():
        raise InputError(f"data {spec!r}: {str(path)!r} does not exist. Give an existing file, or a folder of parts.")
    return {"train": path}


def _file_of(folder: Path, names: Sequence[str], endings: Sequence[str]) -> Path | None:
    candidates = (folder / f"{name}{ending}" for name in names for ending in endings)
    return next((file for file in candidates if file.is_file()), None)


def _lined(rows: Callable[..., Iterator[Row]], path: Path) -> Table:
    """Reads through a file whose rows have line numbers."""
    lines = array("q")
    names: dict[str, None] = {}
    for line, row in rows(path, show=True):
        names.update(dict.fromkeys(row))
        lines.append(line)

    def column(name: str) -> StoredColumn:
        return StoredColumn(len(lines), lambda: (row.get(name) for _, row in rows(path)))

    return Table(name=str(path), columns={name: column(name) for name in names}, lines=lines)


def _lines(path: Path, show: bool) -> Iterator[str]:
    """Yields the lines of a file with their ends, split as csv wants them."""
    with opened(path, newline="") as file:
        yield from shown(file, f"reading {path}", path.stat().st_size, file.buffer.tell) if show else file


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    limit = csv.field_size_limit(sys.maxsize if sys.maxsize < 2**31 else 2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _delimiter(path: Path) -> str:
    """The separator of fields: a tab in .tsv, else what gives the most names in the first line, a comma first."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with opened(path, newline="") as file:
        first = file.readline()
    return max(_DELIMITERS, key=lambda one: len(next(csv.reader([first], delimiter=one), [])))


def _csv_rows(path: Path, show: bool = False) -> Iterator[Row]:
    delimiter = _delimiter(path)
    reader = csv.reader(_lines(path, show), strict=True, delimiter=delimiter)
    try:
        with _long_fields():
            header = next(reader, [])
            names = [name.strip() for name in header]
            if not header:
                raise InputError(f"data file {str(path)!r} has no rows. Give a file with some, under a line of names.")
            if len(set(header)) < len(header) or not all(names):
                raise InputError(
                    f"data file {str(path)!r}: its first line must name each column once; it is "
                    f"{', '.join(header)}. Name them."
                )
            line = reader.line_num + 1
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"data file {str(path)!r}, line {line}: {len(row)} fields, and the header has {len(header)} "
                        f"({', '.join(header)}). Put texts with {_DELIMITERS[delimiter]} or line breaks into double quotes."
                    )
                if row:
                    yield line, dict(zip(names, row, strict=True))
                line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"data file {str(path)!r}, line {reader.line_num}: {error}. Repair that line.") from error


def _read_json(path: Path) -> Table:
    """A file of one object a line, or of one list of objects, which has no lines to read one by one and is held whole."""
    with opened(path) as file:
        if not file.read(1000).lstrip().startswith("["):
            return _lined(_jsonl_rows, path)
        file.seek(0)
        try:
            rows = json.load(file)
        except (ValueError, RecursionError) as error:
            raise InputError(f"data file {str(path)!r} is no JSON: {error}. {_OBJECT}") from error
    for row, value in enumerate(rows, start=1):
        if not isinstance(value, dict):
            raise InputError(f"data file {str(path)!r}, row {row} is a {type(value).__name__}. {_OBJECT}")
    names = dict.fromkeys(name for row in rows for name in row)
    return Table(name=str(path), columns={name: [row.get(name) for row in rows] for name in names})


def _jsonl_rows(path: Path, show: bool = False) -> Iterator[Row]:
    for line, text in enumerate(_lines(path, show), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"data file {str(path)!r}, line {line} is no JSON: {error}. {_OBJECT}") from error
        if not isinstance(row, dict):
            raise InputError(f"data file {str(path)!r}, line {line} is a {type(row).__name__}. {_OBJECT}")
        yield line, row


def _read_parquet(path: Path) -> Table:
    what = f"data 'parquet:{path}' needs"
    arrow, parquet = (needed(what, module, install="snugfit[text]") for module in ("pyarrow", "pyarrow.parquet"))

    @contextlib.contextmanager
    def file() -> Iterator[Any]:
        try:
            with parquet.ParquetFile(path) as one:
                yield one
        except (OSError, arrow.ArrowException) as error:
            raise InputError(
                f"data file {str(path)!r} cannot be read as parquet: {message_of(error)}. It is damaged, "
                "cut short, or another kind of file."
            ) from error

    def values(name: str) -> Iterator[Any]:
        with file() as one:
            for batch in one.iter_batches(batch_size=_BATCH, columns=[name]):
                yield from batch.column(0).to_pylist()

    with file() as one:
        names, count = list(one.schema_arrow.names), one.metadata.num_rows
        next(one.iter_batches(batch_size=1, columns=names[:1]), None)  # the table of contents alone may be whole
    return Table(name=str(path), columns={name: StoredColumn(count, partial(values, name)) for name in names})


def _from_hub(spec: str, where: str, download: bool) -> dict[str, Table]:
    datasets = needed(f"data {spec!r} needs", "datasets", install="snugfit[text]")
    name, _, config = where.partition(":")
    settings, how = datasets.config, datasets.DownloadConfig(local_files_only=not download, max_retries=1)
    try:
        # Offline the library does not ask the network where that would only cost time.
        with quiet(), attributes_set([settings], HF_HUB_OFFLINE=settings.HF_HUB_OFFLINE or not download):
            loaded = datasets.load_dataset(name, config or None, download_config=how)
    except Exception as error:
        todo = (
            "Check the name (NAME or NAME:CONFIG) and the network."
            if download
            else "Nothing is fetched unless asked for: check the name (NAME or NAME:CONFIG), or add --download."
        )
        raise InputError(f"data {spec!r} cannot be loaded: {in_words(error)}. {todo}") from error
    tables = {}
    for part, names in PARTS.items():
        split = next((one for one in names if one in loaded), None)
        if split is not None:
            tables[part] = _table_of(spec, loaded[split])
    if "train" not in tables:
        raise InputError(f"data {spec!r} has no train split; it has {', '.join(map(str, loaded))}.")
    return tables


def _table_of(spec: str, split: Any) -> Table:
    names = {name: tuple(kind.names) for name, kind in split.features.items() if hasattr(kind, "names") and kind.names}

    def values(name: str) -> Iterator[Any]:
        return (value for batch in split.select_columns([name]).iter(batch_size=_BATCH) for value in batch[name])

    columns = {name: StoredColumn(len(split), partial(values, name)) for name in split.column_names}
    return Table(name=spec, columns=columns, label_names=names)


def texts_of(table: Table, column: str, *, empty: bool = False) -> Column:
    """Returns a column of which all values are texts (`empty`: also empty ones); an error names the first other."""
    values = table.columns[column]
    bare, first = 0, 0
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, str):
            raise InputError(
                f"data {table.name!r}, {table.where(row)}: {column} is {repr(value)[:200]} ({type(value).__name__}), not "
                "text. Name another column with --text-column."
            )
        if value is None or not (empty or value.strip()):
            bare += 1
            first = first if bare > 1 else row
    if bare:
        raise InputError(
            f"data {table.name!r}: {bare} of {len(values)} rows have no text in column {column!r} (first: "
            f"{table.where(first)}). Remove them."
        )
    return values
