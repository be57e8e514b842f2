"""Tables of text: `csv:`, `jsonl:` and `parquet:` files or folders, and `hf:NAME` through the library datasets.

A folder has one file for each part: train, and validation or test or both. A mistake in a file is reported with its line.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.errors import InputError
from snugfit.workloads.hf_files import quiet

KINDS = ("csv", "jsonl", "parquet", "hf")
PARTS = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "dev"), "test": ("test",)}
"""Names of files, and of splits, for each part."""

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


def _read_csv(path: Path) -> Table:
    limit = csv.field_size_limit(sys.maxsize if sys.maxsize < 2**31 else 2**31 - 1)
    rows: list[list[str]] = []
    lines: list[int] = []
    reader = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            header = next(reader, [])
            line = reader.line_num + 1
            for row in reader:
                if row:
                    if len(row) != len(header):
                        raise InputError(
                            f"data file {str(path)!r}, line {line}: {len(row)} fields, and the header has {len(header)} "
                            f"({', '.join(header)}). Put texts with commas or line breaks into double quotes."
                        )
                    rows.append(row)
                    lines.append(line)
                line = reader.line_num + 1
    except csv.Error as error:
        at = reader.line_num if reader is not None else 1
        raise InputError(f"data file {str(path)!r}, line {at}: {error}. Repair that line.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    finally:
        csv.field_size_limit(limit)
    if len(set(header)) < len(header) or not all(name.strip() for name in header):
        raise InputError(
            f"data file {str(path)!r}: its first line must name each column once; it is {', '.join(header) or 'empty'}."
        )
    columns = {name.strip(): [row[place] for row in rows] for place, name in enumerate(header)}
    return Table(name=str(path), columns=columns, lines=lines)


def _read_jsonl(path: Path) -> Table:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    rows.append(_json_object(path, number, text))
                    lines.append(number)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table(name=str(path), columns={name: [row.get(name) for row in rows] for name in names}, lines=lines)


def _json_object(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
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
        columns = parquet.read_table(path).to_pydict()
    except (OSError, ArrowException) as error:
        raise InputError(
            f"data file {str(path)!r} cannot be read as parquet: {' '.join(str(error).split())[:200]}. It is damaged, cut "
            "short, or another kind of file."
        ) from error
    return Table(name=str(path), columns=columns)


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
    columns = {name: list(split[name]) for name in split.column_names}
    return Table(name=spec, columns=columns, label_names=names)


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> InputError:
    if isinstance(error, UnicodeDecodeError):
        return InputError(
            f"data file {str(path)!r} is not UTF-8 text: {error.reason} at byte {error.start}. Convert it."
        )
    return InputError(f"data file {str(path)!r} cannot be read: {error.strerror}.")


def texts_of(table: Table, column: str, *, empty: bool = False) -> list[str]:
    """Returns a column as texts.

    Args:
        table: The table.
        column: One of its columns.
        empty: Whether a text may be empty.

    Returns:
        The texts.

    Raises:
        InputError: Some are missing, empty, or no text; names the first.
    """
    values = table.columns[column]
    odd = _rows(values, lambda value: value is not None and not isinstance(value, str))
    if odd:
        raise InputError(
            f"data {table.name!r}, {table.where(odd[0])}: {column} is {values[odd[0]]!r} "
            f"({type(values[odd[0]]).__name__}), not text. Name another column with --text-column."
        )
    bare = _rows(values, lambda value: value is None or not (empty or value.strip()))
    if bare:
        raise InputError(
            f"data {table.name!r}: {len(bare)} of {len(values)} rows have no text in column {column!r} (first: "
            f"{table.where(bare[0])}). Remove them."
        )
    return list(values)


def _rows(values: Iterable[Any], odd: Callable[[Any], bool]) -> list[int]:
    return [row for row, value in enumerate(values) if odd(value)]
