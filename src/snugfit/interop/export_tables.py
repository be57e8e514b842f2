"""A recipe as another tool's configuration, by a table: what a field is there, what it is not, and what the tool does then.

`export_TOOL.yaml` has for each field of a recipe and for each training setting what is written for each of its values (`*`
for any other). A key that begins with `_` is for people: `_note` is said, `_refused` ends the export, `_is` is what the tool
does in the field's place: so there is also the recipe that the tool follows, and the difference can be simulated. What all
tools have in common stands in `export_all.yaml`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from snugfit.errors import RecipeError
from snugfit.fields import as_typed, field_infos
from snugfit.interop.deepspeed_config import settings_of
from snugfit.interop.exported import Export
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.techniques.shard import numbered
from snugfit.workload import STORED_OPTIMIZERS, Workload
from snugfit.yaml_files import read_table

TOOLS = ("hf", "accelerate", "fabric", "torchtitan", "axolotl", "llamafactory")
"""Tools with a table."""
ANY = "*"
_KINDS = ("none", "all", "selective", "gradients", "full", "checkpoints", "blocks")


def export_to(tool: str, run: Run, *, model: str | None = None, seq_len: int | None = None) -> Export:
    """Returns a recipe as a tool's configuration.

    Args:
        tool: One of `TOOLS`.
        run: The recipe, and the training settings that it is for, batch size included.
        model: What transformers loads: a name of its hub, or a folder; None: not known.
        seq_len: Tokens of a sequence; None: not known.

    Returns:
        The configuration, what it does not say, and the recipe that the tool follows.

    Raises:
        RecipeError: Listing everything that would be another update there.
    """
    table, common = read_table(f"interop/export_{tool}.yaml"), read_table("interop/export_all.yaml")
    words = {**_words(run), "model": model, "seq_len": seq_len, "tool": table["tool"]}
    config: dict[str, Any] = {}
    notes: list[str] = []
    if 0 < words["micro"] < words["most"]:
        notes.append(
            f"microbatch_size={words['most']} does not divide the share of a GPU, and {table['tool']} takes pieces of one "
            f"size: {words['micro']}."
        )
    problems: list[str] = list(_misfits(run, words))
    follows: dict[str, Any] = {} if words["accumulation"] == 1 else {"microbatch_size": words["micro"] or None}
    _write(config, table["always"], words)
    for name, kind, value in _fields(run, words):
        row = _row(name, kind, table, common)
        said = {**words, "value": as_typed(value)}
        problems += [row["_refused"].format(**said)] if "_refused" in row else []
        notes += [row["_note"].format(**said)] if "_note" in row else []
        if "_is" in row:
            follows[name] = row["_is"]
        _write(config, {key: one for key, one in row.items() if not key.startswith("_")}, {**words, "value": value})
    notes += [sentence for key, sentence in table.get("missing", {}).items() if not _holds(config, key)]
    if problems:
        raise RecipeError(problems, subject=f"export to {table['tool']}")
    return Export(
        target=table["tool"],
        config=config,
        notes=tuple(notes),
        follows=run.recipe.replace(**follows),
        format=table["format"],
    )


def _row(name: str, value: Any, table: Mapping[str, Any], common: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a table says of a value of a field; the plain one needs no row, as tools are plain where nothing is written."""
    written = str(value).lower() if isinstance(value, bool) else str(value)
    rows = [where["fields"].get(name) or {} for where in (table, common)]
    infos = field_infos(Recipe) if name in field_infos(Recipe) else field_infos(Workload)
    plain = name != "optimizer" and value == infos[name].default
    keys = [written, written.partition(",")[0]]
    for key in keys if plain else [*keys, ANY]:
        for row in rows:
            if key in row:
                return row[key] or {}
    assert plain, f"no table has {name}={value}"
    return {}


def _fields(run: Run, words: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, kind and value of each field; the kind is what tables know: `every` of `every:2`, `names` of modules' names."""
    for name in field_infos(Recipe):
        value = kind = words["optimizer"] if name == "optimizer" else getattr(run.recipe, name)
        if name in ("shard", "checkpoint", "shard_unit", "offload_activations"):
            plain = as_typed(value)
            kind = plain if plain in _KINDS else plain.partition(":")[0] if ":" in plain else "names"
        if name in ("precision", "checkpoint") and run.recipe.shard != "none":
            kind = f"{kind}, shared out"
        yield name, kind, value
    for name in field_infos(Workload):
        # Without decay nobody need be left out of it.
        if name != "optimizer" and not (name == "no_decay" and not words["weight_decay"]):
            yield name, getattr(run.workload, name), getattr(run.workload, name)


def _words(run: Run) -> dict[str, Any]:
    """What tables write by name: numbers that follow from several fields, and the optimizer's settings, each written out."""
    from snugfit.training.optimizers import OF_TORCH

    recipe, workload = run.recipe, run.workload
    share = (workload.batch_size or 0) // workload.ranks
    most = min(recipe.microbatch_size or share, share)
    micro = next((size for size in range(most, 0, -1) if share % size == 0), 0)
    stored = recipe.optimizer or workload.optimizer
    algorithm = STORED_OPTIMIZERS.get(stored, stored)
    # What torch lacks (Muon) takes the settings of AdamW, which updates the rest.
    settings = settings_of(algorithm if algorithm in OF_TORCH else "adamw", workload)
    if stored == "adam" and not settings["weight_decay"]:  # without decay the two are one
        stored = "adamw"
    group = numbered(recipe.shard, "hybrid")
    betas = settings.get("betas", [None, None])
    fused = recipe.optimizer_impl in (None, "fused")
    patterns = recipe.adapter_targets
    # peft looks at how names end.
    targets = [name.rpartition(".")[2] for name in (patterns.split(",") if isinstance(patterns, str) else patterns)]
    return {
        **{name: getattr(recipe, name) for name in field_infos(Recipe)},
        **{name: getattr(workload, name) for name in field_infos(Workload)},
        "micro": micro,
        "most": most,
        "accumulation": share // micro if micro else 0,
        "processes": workload.ranks,
        "batch": workload.batch_size,
        "optimizer": stored,
        "lr": settings.get("lr"),
        "weight_decay": settings.get("weight_decay"),
        "momentum": settings.get("momentum"),
        "eps": settings.get("eps"),
        "beta1": betas[0],
        "beta2": betas[1],
        "fused": "_fused" if fused else "",
        "clip": workload.clip_norm or 0.0,
        "max_norm": workload.clip_norm or "inf",
        "group": group,
        "groups": workload.ranks // group if group else 1,
        "targets": targets,
        "targets_text": ",".join(targets),
        "prefetched": recipe.prefetch if recipe.workers else None,
        "parallel": "FSDP" if recipe.shard != "none" else "MULTI_GPU" if workload.ranks > 1 else "NO",
        "warm": "constant_with_warmup" if workload.warmup_steps else "constant",
    }


def _misfits(run: Run, words: Mapping[str, Any]) -> Iterator[str]:
    size, ranks = run.workload.batch_size, run.workload.ranks
    if size is None:
        yield "the batch has no size. Give --batch-size."
    elif size % ranks:
        yield f"a batch of {size} has no equal shares for {ranks} GPUs. Give a batch that {ranks} divides."


def _holds(config: Mapping[str, Any], key: str) -> bool:
    section, dot, rest = key.partition(".")
    return section in config and (not dot or _holds(config[section], rest))


def _write(config: dict[str, Any], row: Mapping[str, Any], words: Mapping[str, Any]) -> None:
    """Puts a row's keys into a configuration: dots lead into sections, a `{word}` alone keeps its type, None is left out."""
    for key, value in row.items():
        if isinstance(value, str) and "{" in value:
            value = (
                words[value[1:-1]] if value[1:-1] in words and value[0] + value[-1] == "{}" else value.format(**words)
            )
        if value is None:
            continue
        place, (*sections, last) = config, key.split(".")
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = list(value) if isinstance(value, tuple) else value


def differences(recipe: Recipe, follows: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yields fields that a tool does otherwise: name, what was asked for, what the tool does."""
    for field in dataclasses.fields(recipe):
        asked, done = getattr(recipe, field.name), getattr(follows, field.name)
        if asked != done:
            yield field.name, asked, done
