"""A training that is configured for another tool, read as a model, a recipe and training settings; each field accounted for.

`import_TOOL.yaml` says what a key of the tool means here for each of its values (`*`: any other), and which keys change no
memory; all other keys are named as not understood. A row's `_note` is where the tool and this prediction differ, `_refused`
another training than is predicted here. Words in rows that are no field of a recipe (`micro`, `stage`, `bf16`, ...) are put
together here.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError
from snugfit.fields import field_infos
from snugfit.json_files import read_json
from snugfit.recipe import Recipe
from snugfit.workload import Workload
from snugfit.yaml_files import read_table, read_yaml

TOOLS = ("axolotl", "llamafactory", "deepspeed", "hf")
"""Tools that are read, in the order in which a file is asked whether it is theirs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What a configuration says."""

    tool: str
    """Whose it is."""
    model: str | None
    """What is trained, as `snugfit estimate` takes it; None where the file does not say."""
    task: str | None
    """What it is trained for; None where the file does not say."""
    seq_len: int | None
    """Tokens of a sequence; None where the file does not say."""
    settings: Mapping[str, Any]
    """Fields of the recipe, and training settings."""
    used: Mapping[str, Any]
    """Keys that were used, with their values; the tool's own defaults among them."""
    ignored: tuple[str, ...]
    """Keys that change no memory, or that say `auto`: the trainer fills these in from what is read elsewhere."""
    not_understood: Mapping[str, Any]
    """Keys that may change memory, and were left out."""
    notes: tuple[str, ...]
    """Where the tool and the prediction differ."""

    def account(self) -> Iterator[str]:
        """Yields lines that account for each field."""
        yield f"read as a configuration of {self.tool}: {_listed(self.used)}"
        if self.ignored:
            yield f"changes no memory, or is left to the trainer: {', '.join(self.ignored)}"
        if self.not_understood:
            yield f"NOT understood, and left out: {_listed(self.not_understood)}"
        yield from self.notes

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain data."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def import_config(path: Path, *, ranks: int = 1) -> Imported:
    """Reads a configuration of axolotl, LLaMA-Factory, DeepSpeed or transformers.

    Args:
        path: YAML or JSON.
        ranks: GPUs that the training is for, which most files do not say.

    Returns:
        What it says.

    Raises:
        InputError: It is none of these, or says something that cannot be.
    """
    given = _flat(_read(path))
    tool = _tool_of(given, path)
    reading = _Reading()
    table = reading.read(tool, given)
    inner = reading.meant.pop("file", None)
    if inner is not None:
        beside = next((one for one in (path.parent / str(inner), Path(str(inner))) if one.is_file()), None)
        if beside is not None:
            reading.read("deepspeed", _flat(_read(beside)), f"{beside.name}: ")
        else:
            reading.not_understood["deepspeed"] = reading.used.pop("deepspeed")
            reading.notes.append(
                f"deepspeed: there is no file {inner} here; give it, as it decides how GPUs share memory"
            )
    settings = dict(_put_together(reading, ranks, upcasts=table.get("upcasts", False)))
    _take_evaluations(reading, settings, ranks)
    model, seq_len = (settings.pop(name, None) for name in ("model", "seq_len"))
    known = {*field_infos(Recipe), *field_infos(Workload)}
    assert settings.keys() <= known, f"import_{tool}.yaml has words that mean nothing: {settings.keys() - known}"
    return Imported(
        tool=table["tool"],
        model=model,
        task=table.get("task"),
        seq_len=seq_len,
        settings=settings,
        used=reading.used,
        ignored=tuple(reading.ignored),
        not_understood=reading.not_understood,
        notes=(*(f"{', '.join(keys)}: {said}" for said, keys in reading.of_keys.items()), *reading.notes),
    )


class _Reading:
    """What was read so far."""

    def __init__(self) -> None:
        self.used: dict[str, Any] = {}
        self.ignored: list[str] = []
        self.not_understood: dict[str, Any] = {}
        self.notes: list[str] = []
        self.of_keys: dict[str, list[str]] = {}
        """What is said of keys -> the keys, with their values."""
        self.meant: dict[str, Any] = {}

    def read(self, tool: str, given: Mapping[str, Any], prefix: str = "") -> Mapping[str, Any]:
        """Reads a tool's keys, and returns its table; `prefix`: the file that they stand in, for the account."""
        table, common = read_table(f"interop/import_{tool}.yaml"), read_table("interop/import_all.yaml")
        inside = {key.partition(".")[2]: value for key, value in given.items() if key.startswith("deepspeed.")}
        if inside:
            self.read("deepspeed", inside, "deepspeed.")
            given = {key: value for key, value in given.items() if not key.startswith("deepspeed.")}
        patterns = (*table["ignored"], *common["ignored"])
        for key, value in {**table["defaults"], **given}.items():
            row = table["fields"].get(key)
            row = common["shared"][row] if isinstance(row, str) else row or {}
            written = _written(value)
            found = row.get(written, row.get("*"))
            if written == "auto" and "auto" not in row:  # the trainer that reads the file fills it in
                self.ignored.append(prefix + key)
            elif written in row or "*" in row:
                self.used[prefix + key] = value
                self._take(key, value, found or {})
            elif value in (None, False) or any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns):
                self.ignored.append(prefix + key)
            else:
                self.not_understood[prefix + key] = value
        return table

    def _take(self, key: str, value: Any, found: Mapping[str, Any]) -> None:
        for name, meaning in found.items():
            if name == "_note":
                self.of_keys.setdefault(meaning, []).append(f"{key}={_written(value)}")
            elif name == "_refused":
                raise InputError(
                    f"{key}={_written(value)} is a training that is not predicted from a configuration: {meaning}. "
                    "Predict the script that trains so: snugfit estimate SCRIPT.py."
                )
            elif isinstance(meaning, str) and "{value}" in meaning:
                self.meant[name] = value if meaning == "{value}" else meaning.format(value=value)
            else:
                self.meant[name] = meaning


def _put_together(reading: _Reading, ranks: int, *, upcasts: bool) -> Iterator[tuple[str, Any]]:
    """Yields fields of a recipe and training settings: what several keys say together."""
    meant, notes = reading.meant, reading.notes
    adapter, quantize = meant.get("adapter"), meant.get("quantize")
    shared = bool(meant.keys() & {"stage", "shares"})
    if adapter is None:  # settings of one that is not put on
        for name in [name for name in meant if name.startswith("adapter_") or name == "targets"]:
            del meant[name]
    if quantize != "nf4":
        meant.pop("double_quantize", None)
    yield from _batch(meant, ranks)
    yield from _sharing(meant, notes, ranks)
    targets = meant.pop("targets", None)
    if targets is not None:
        names = targets if isinstance(targets, list) else str(targets).split(",")
        yield "adapter_targets", ",".join(f"*.{str(name).strip()}" for name in names)
    if "adapter_alpha" in meant:
        yield "adapter_alpha", float(meant.pop("adapter_alpha"))
    sixteen = "bf16" if meant.pop("bf16", False) else "16" if meant.pop("fp16", False) else None
    pure = "bf16-true" if meant.pop("pure", False) else "16-true" if meant.pop("pure16", False) else None
    mixed, tf32 = meant.pop("mixed", None), meant.pop("tf32", False)
    if sixteen is not None and pure is None:
        # LLaMA-Factory, accelerate's FSDP and DeepSpeed update weights in fp32; peft casts what is not quantised, too.
        in_32_bits = quantize is not None or (adapter is None and (upcasts or shared))
        pure = f"{sixteen}-mixed" if in_32_bits else f"{sixteen}-true"
        if adapter is not None and not quantize:
            notes.append("adapters, their gradients and state are counted in 16 bits, and that tool has them in 32")
    precision = pure or mixed or ("tf32" if tf32 else None)
    if precision is not None:
        yield "precision", precision
    yield from meant.items()


def _take_evaluations(reading: _Reading, settings: Mapping[str, Any], ranks: int) -> None:
    """Evaluations run at the microbatch of training here: smaller batches of theirs, or none at all, need no word."""
    micro = settings.get("microbatch_size", settings.get("batch_size", 0) // ranks)
    for key in ("per_device_eval_batch_size", "eval_batch_size"):
        value = reading.not_understood.get(key)
        if value is not None and (settings.get("evaluate") is False or (isinstance(value, int) and value <= micro)):
            reading.ignored.append(key)
            del reading.not_understood[key]


def _batch(meant: dict[str, Any], ranks: int) -> Iterator[tuple[str, Any]]:
    micro, pieces, whole = (meant.pop(name, None) for name in ("micro", "accumulation", "batch_size"))
    for name, value in (
        ("batch size of a GPU", micro),
        ("number of accumulated batches", pieces),
        ("batch size", whole),
    ):
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"the {name} is {value!r}; it must be a whole number from 1.")
    if micro is not None and whole is None:
        whole = micro * (pieces or 1) * ranks
    if whole is None:
        return
    yield "batch_size", whole
    if micro is not None and micro * ranks < whole:
        yield "microbatch_size", micro


def _sharing(meant: dict[str, Any], notes: list[str], ranks: int) -> Iterator[tuple[str, Any]]:
    shares = meant.pop("shares", False)
    stage, group = meant.pop("stage", 3 if shares else 0), meant.pop("group", None)
    on_host = meant.pop("state_on_host", False)
    if ranks == 1:
        if stage:
            notes.append("it is for several GPUs, and does not say for how many: counted for one. Give --gpus N")
        if meant.pop("offload_parameters", None):
            notes.append("weights on the host are known for several GPUs: counted on the GPU. Give --gpus N")
    elif stage:
        yield "shard", f"hybrid:{group}" if group not in (None, ranks) else "full" if stage == 3 else "gradients"
    if on_host and "offload_parameters" not in meant:
        yield "offload_optimizer", True


def _tool_of(given: Mapping[str, Any], path: Path) -> str:
    """The tool whose keys a file has most of."""
    counts = {}
    for tool in TOOLS:
        table = read_table(f"interop/import_{tool}.yaml")
        marks = [key for key in table["known_by"] if key in given or any(one.startswith(f"{key}.") for one in given)]
        if marks:
            counts[tool] = len(marks)
    if not counts:
        names = ", ".join(read_table(f"interop/import_{tool}.yaml")["tool"] for tool in TOOLS)
        hint = f" A model's own is given as hf:{path}." if "model_type" in given else ""
        hint = f" A recipe of snugfit is given as --recipe {path}." if given.keys() & field_infos(Recipe) else hint
        if any(key.startswith("budgets.") for key in given):
            hint = f" A plan of snugfit is shown by `snugfit report {path}`, and asked by `snugfit plan --from {path}`."
        raise InputError(f"{str(path)!r} is no configuration of {names}. Give one of these as --from.{hint}")
    return max(counts, key=lambda tool: counts[tool])


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix.lower() != ".json":
        return read_yaml(path, "configuration", example="base_model: hf-internal/llama")
    named, instead = f"configuration {str(path)!r}", "Give what the tool itself can read."
    document = read_json(path, named, instead=instead)
    if not isinstance(document, dict):
        raise InputError(f"{named} holds no settings. {instead}")
    return document


def _flat(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keys of sections with dots; fsdp_config has its keys with and without the word fsdp."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = f"{prefix}{key}"
        if prefix == "fsdp_config.":
            name = prefix + str(key).removeprefix("fsdp_")
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def _written(value: Any) -> str:
    """A value as tables have it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _listed(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_written(value)}" for key, value in found.items()) or "nothing"
