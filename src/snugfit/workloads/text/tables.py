"""Tables of text: `csv:`, `jsonl:` and `parquet:` files or folders, and `hf:NAME` through the library datasets.

A file is looked through once, for its rows and mistakes, and stays where it is: columns are read from it when they are used.

A folder has one file for each part: train, and validation or test or both. A mistake in a file is reported with its line.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import json
import re
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from snugfit.errors import InputError
from snugfit.workloads.hf_files import quiet
from snugfit.workloads.text.stored import Shown, StoredColumn

KINDS = ("csv", "jsonl", "parquet", "hf")
PARTS = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "dev"), "test": ("test",)}
"""Names of files, and of splits, for each part."""

_BATCH = 1000
"""Rows of a binary table that are in memory at a time."""
_ENDED_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ENDINGS = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".json"), "parquet": (".parquet",)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Named columns of equal length."""

    name: str
    """Where it is from, for messages."""

    columns: Mapping[str, Sequence[Any]]
    """Column name -> values."""

    lines: Sequence[int] | None = None
    """The line of the file each row is from; None where rows have no lines."""

    label_names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Names of the labels, for columns that hold their numbers."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def where(self, row: int) -> str:
        """Returns where a row stands, in words."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"


def read_tables(spec: str, *, download: bool) -> dict[str, Table]:
    """Reads the tables of a data spec.

    Args:
        spec: `csv:`, `jsonl:` or `parquet:` with a file or a folder, or `hf:NAME` or `hf:NAME:CONFIG`.
        download: Whether `hf:` data that is not in the local cache may be fetched.

    Returns:
        Part -> table; a single file is the `train` part.

    Raises:
        InputError: It is missing, empty or damaged.
    """
    kind, _, where = spec.partition(":")
    if not where:
        takes = "NAME" if kind == "hf" else "FILE"
        raise InputError(f"data {spec!r} names no {takes.lower()}. Write {kind}:{takes}.")
    tables = _from_hub(spec, where, download) if kind == "hf" else _from_files(spec, kind, Path(where).expanduser())
    for table in tables.values():
        if not len(table):
            raise InputError(f"data {table.name!r} has no rows. Give a file with some.")
    return tables


def _from_files(spec: str, kind: str, path: Path) -> dict[str, Table]:
    read = {"csv": _read_csv, "jsonl": _read_jsonl, "parquet": _read_parquet}[kind]
    if path.is_dir():
        files = {part: _file_of(path, names, _ENDINGS[kind]) for part, names in PARTS.items()}
        if files["train"] is None:
            raise InputError(
                f"data {spec!r}: {str(path)!r} has no train{_ENDINGS[kind][0]}. Put one there, or name a file."
            )
        return {part: read(file) for part, file in files.items() if file is not None}
    if not path.is_file():
        raise InputError(f"data {spec!r}: {str(path)!r} does not exist. Give an existing file, or a folder of parts.")
    return {"train": read(path)}


def _file_of(folder: Path, names: Sequence[str], endings: Sequence[str]) -> Path | None:
    candidates = (folder / f"{name}{ending}" for name in names for ending in endings)
    return next((file for file in candidates if file.is_file()), None)


class _Lines:
    """The lines of a UTF-8 file, told apart as csv wants them, with their ends."""

    def __init__(self, path: Path, *, show: bool = False) -> None:
        self._path, self._show = path, show

    def __iter__(self) -> Iterator[str]:
        shown = Shown(f"reading {self._path}", self._path.stat().st_size) if self._show else None
        offset = 0
        with self._path.open("rb") as file:
            for number, data in enumerate(file):
                mark = len(codecs.BOM_UTF8) if number == 0 and data.startswith(codecs.BOM_UTF8) else 0
                try:
                    text = data[mark:].decode("utf-8")
                except UnicodeDecodeError as error:
                    at = offset + mark
                    raise UnicodeDecodeError(
                        "utf-8", error.object, at + error.start, at + error.end, error.reason
                    ) from None
                offset += len(data)
                if "\r" in text[:-2]:  # files of old systems end their lines so
                    yield from _ENDED_LINE.findall(text)
                else:
                    yield text
                if shown is not None and not number & 1023:
                    shown.at(offset)
        if shown is not None:
            shown.end(offset)


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    limit = csv.field_size_limit(sys.maxsize if sys.maxsize < 2**31 else 2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _csv_rows(path: Path, *, show: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yields the header and each row that is not empty, with the line it begins in."""
    reader = csv.reader(_Lines(path, show=show), strict=True, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    line = 1
    try:
        for row in reader:
            if row or line == 1:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"data file {str(path)!r}, line {reader.line_num}: {error}. Repair that line.") from error


def _read_csv(path: Path) -> Table:
    lines = array("q")
    header: list[str] = []
    try:
        with _long_fields():
            rows = _csv_rows(path, show=True)
            header = next(rows, (1, []))[1]
            if len(set(header)) < len(header) or not all(name.strip() for name in header):
                raise InputError(
                    f"data file {str(path)!r}: its first line must name each column once; it is "
                    f"{', '.join(header) or 'empty'}."
                )
            for line, row in rows:
                if len(row) != len(header):
                    raise InputError(
                        f"data file {str(path)!r}, line {line}: {len(row)} fields, and the header has {len(header)} "
                        f"({', '.join(header)}). Put texts with commas or line breaks into double quotes."
                    )
                lines.append(line)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error

    def column(place: int) -> StoredColumn:
        def read() -> Iterator[str]:
            with _long_fields():
                yield from (row[place] for _, row in islice(_csv_rows(path), 1, None))

        return StoredColumn(len(lines), read)

    return Table(
        name=str(path), columns={name.strip(): column(place) for place, name in enumerate(header)}, lines=lines
    )


def _read_jsonl(path: Path) -> Table:
    lines = array("q")
    names: dict[str, None] = {}
    try:
        for number, text in enumerate(_Lines(path, show=True), start=1):
            if text.strip():
                names.update(dict.fromkeys(_json_object(path, number, text)))
                lines.append(number)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error

    def column(name: str) -> StoredColumn:
        return StoredColumn(len(lines), lambda: (json.loads(text).get(name) for text in _Lines(path) if text.strip()))

    return Table(name=str(path), columns={name: column(name) for name in names}, lines=lines)


def _json_object(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"data file {str(path)!r}, line {number} is no JSON: {error}. Each line must be one object, such as "
            '{"text": "...", "label": "..."}.'
        ) from error
    if not isinstance(row, dict):
        raise InputError(
            f"data file {str(path)!r}, line {number} is a {type(row).__name__}; each line must be one object, such as "
            '{"text": "...", "label": "..."}.'
        )
    return row


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InputError(
            f"data 'parquet:{path}' needs the library pyarrow, which does not import ({error}). "
            "Run: pip install snugfit[text]"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            names, count = list(file.schema_arrow.names), file.metadata.num_rows
            for _ in file.iter_batches(batch_size=1, columns=names[:1]):
                break
    except (OSError, ArrowException) as error:
        raise _no_parquet(path, error) from error

    def column(name: str) -> StoredColumn:
        def read() -> Iterator[Any]:
            try:
                with parquet.ParquetFile(path) as file:
                    for batch in file.iter_batches(batch_size=_BATCH, columns=[name]):
                        yield from batch.column(0).to_pylist()
            except (OSError, ArrowException) as error:
                raise _no_parquet(path, error) from error

        return StoredColumn(count, read)

    return Table(name=str(path), columns={name: column(name) for name in names})


def _no_parquet(path: Path, error: Exception) -> InputError:
    return InputError(
        f"data file {str(path)!r} cannot be read as parquet: {' '.join(str(error).split())[:200]}. It is damaged, cut "
        "short, or another kind of file."
    )


def _from_hub(spec: str, where: str, download: bool) -> dict[str, Table]:
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"data {spec!r} needs the library datasets, which does not import ({error}). Run: pip install snugfit[text]"
        ) from error
    name, _, config = where.partition(":")
    how = datasets.DownloadConfig(local_files_only=not download, max_retries=1)
    try:
        with quiet(), _offline(datasets, not download):
            loaded = datasets.load_dataset(name, config or None, download_config=how)
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        todo = (
            "Check the name (NAME or NAME:CONFIG) and the network."
            if download
            else "Nothing is fetched unless asked for: check the name (NAME or NAME:CONFIG), or add --download."
        )
        raise InputError(f"data {spec!r} cannot be loaded: {type(error).__name__}: {reason}. {todo}") from error
    tables = {}
    for part, names in PARTS.items():
        split = next((one for one in names if one in loaded), None)
        if split is not None:
            tables[part] = _table_of(spec, loaded[split])
    if "train" not in tables:
        raise InputError(f"data {spec!r} has no train split; it has {', '.join(map(str, loaded))}.")
    return tables


@contextlib.contextmanager
def _offline(datasets: Any, wanted: bool) -> Iterator[None]:
    """Keeps the library from asking the network for a while, where it would only cost time."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _table_of(spec: str, split: Any) -> Table:
    names = {name: tuple(kind.names) for name, kind in split.features.items() if hasattr(kind, "names") and kind.names}

    def column(name: str) -> StoredColumn:
        only = split.select_columns([name])
        return StoredColumn(
            len(split), lambda: (value for batch in only.iter(batch_size=_BATCH) for value in batch[name])
        )

    columns = {name: column(name) for name in split.column_names}
    return Table(name=spec, columns=columns, label_names=names)


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> InputError:
    if isinstance(error, UnicodeDecodeError):
        return InputError(
            f"data file {str(path)!r} is not UTF-8 text: {error.reason} at byte {error.start}. Convert it."
        )
    return InputError(f"data file {str(path)!r} cannot be read: {error.strerror}.")


def texts_of(table: Table, column: str, *, empty: bool = False) -> Sequence[str]:
    """Returns a column as texts.

    Args:
        table: The table.
        column: One of its columns.
        empty: Whether a text may be empty.

    Returns:
        The texts; those of a stored column stay stored.

    Raises:
        InputError: Some are missing, empty, or no text; names the first.
    """
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
