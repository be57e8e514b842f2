"""`snugfit export`: a recipe in the words of another tool.

Examples:
  snugfit export recipe.yaml --to deepspeed --batch-size 64 --gpus 8 --lr 5e-5 -o ds_config.json
  snugfit export runs/vit_l_16-photos --to deepspeed
  snugfit export plan.json --to deepspeed --gpus 4 --offload nvme --nvme-path /local_nvme
  snugfit export recipe.yaml --to deepspeed --model hf:llama/config.json --seq-len 2048 --device rtx-4090 --gpus 8
  snugfit export recipe.yaml --to hf --batch-size 64 --lr 2e-5 -o training_args.json
  snugfit export runs/llama-chats --to axolotl --device rtx-4090 -o axolotl.yaml

RECIPE is what `snugfit plan -o` wrote, what `snugfit plan --json` printed, or the directory of a run; the training settings
of a plan or a run hold too. With --model (a run has its own) and --device it is simulated what the tool's own ways cost, or,
for DeepSpeed, where the weights and their state should be.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any

from snugfit.cli import groups, options, output
from snugfit.errors import InputError, did_you_mean, option
from snugfit.units import parse_bytes
from snugfit.workload import DEFAULT_BATCH_SIZE

if TYPE_CHECKING:
    from snugfit.interop.export_costs import Costs
    from snugfit.interop.exported import Export
    from snugfit.interop.stored_recipes import StoredRun
    from snugfit.interop.where_state_goes import Places
    from snugfit.simulator.request import NamedModel

TABLES = ("hf", "accelerate", "fabric", "torchtitan", "axolotl", "llamafactory")
TARGETS = ("deepspeed", *TABLES)
ENDINGS = {"deepspeed": (".json",), "hf": (".json",), "fabric": (".json",), "torchtitan": ()}
"""Target -> endings that its file may have; those that are not here take YAML."""
OFFLOADS = ("cpu", "nvme")
STAGES = ("0", "1", "2", "3")


class ExportOptions:
    """What is written."""

    to: groups.Name
    """the tool: deepspeed, hf (transformers), accelerate, fabric, torchtitan, axolotl or llamafactory"""
    by_hand: Annotated[str, "SETTINGS"]
    """what your script hands over itself, so that the file leaves it out: lr_schedule, optimizer, or both with a comma"""


class DeepSpeedOptions:
    """What DeepSpeed's config says beyond a recipe."""

    stage: Annotated[str, "N"]
    """stage of ZeRO, 0 to 3. Default: 0 for shard=none, 2 for gradients, 3 for full, or the least that the rest needs."""
    offload: Annotated[str, "WHERE"]
    """cpu or nvme: where the optimizer's state goes, and at stage 3 the weights too. Default: as the recipe says."""
    nvme_path: groups.Folder
    """folder on the drive. Default: /local_nvme."""


class WhereOptions:
    """Options for what is simulated: what the tool's own ways cost, and where DeepSpeed should hold weights and state."""

    model: Annotated[str, "MODEL"]
    """as for `snugfit estimate`. Default: the run's."""
    device: groups.Name
    """the card (snugfit devices). Default: this machine's GPU, or else the run's."""
    host_budget: Annotated[str, "SIZE"]
    """host memory of a machine. Default: what is free here."""
    nvme_speed: Annotated[str, "SIZE"]
    """what a machine's drives read or write in a second, such as 3GB. Default: 7.88GB, the most that PCIe 4.0 carries on
    four lanes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit export`."""
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        type=output.some_path,
        help="recipe file, plan's or estimate's JSON, or run directory",
    )
    options.add_options(parser, ExportOptions)
    parser.add_argument("-o", "--output", metavar="FILE", type=output.some_path, help="where. Default: stdout.")
    output.add_json_option(parser)
    options.add_options(parser.add_argument_group("deepspeed"), DeepSpeedOptions)
    group = parser.add_argument_group("where weights and state should be")
    options.add_options(group, WhereOptions)
    options.add_options(group, groups.ShapeOptions)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the file, and prints what it cannot say."""
    from snugfit.interop.deepspeed_config import deepspeed_export
    from snugfit.interop.stored_recipes import stored_run

    _check(args)
    output.check_files(args, output=ENDINGS.get(args.to, (".yaml", ".yml")))
    given = options.given_fields(args, options.workload_fields(), "workload_")
    stored = stored_run(args.recipe, given, batch_size=DEFAULT_BATCH_SIZE)
    if args.to in TABLES:
        return _by_table(args, stored)
    wanted = _wanted(args)
    deepspeed_export(stored.run, wanted)  # what is refused, before anything is simulated
    named, places = _named(args, stored), None
    if named is not None:
        places = _places(args, stored, named)
        wanted = dataclasses.replace(wanted, largest_tensor=places.largest_tensor)
    export = deepspeed_export(stored.run, wanted)
    _show(args, export, stored, _costs(args, stored, named, export), places)
    return 0


def _by_table(args: argparse.Namespace, stored: StoredRun) -> int:
    """Exports to a tool that has a table."""
    from snugfit.interop.export_tables import export_to

    spec = args.model or stored.model or ""
    model = spec.partition(":")[2] if spec.startswith("hf:") else None
    export = export_to(args.to, stored.run, model=model, seq_len=args.seq_len or stored.seq_len)
    named = None if args.device is None else _named(args, stored)
    _show(args, export, stored, _costs(args, stored, named, export))
    return 0


def _costs(args: argparse.Namespace, stored: StoredRun, named: NamedModel | None, export: Export) -> Costs | None:
    """What it costs that the tool does some fields in its own way; None where it does not, or no model is known."""
    if named is None or export.follows == stored.run.recipe:
        return None
    from snugfit.interop.export_costs import costs_of

    return costs_of(named, stored.run, export, args.device)


def _check(args: argparse.Namespace) -> None:
    """Raises for words that are not allowed."""
    if args.to is None:
        raise InputError(f"--to must be given: the tool that the recipe is for, {' or '.join(TARGETS)}.")
    if args.to not in TARGETS:
        raise InputError(f"--to is {args.to!r}; {did_you_mean(args.to, TARGETS)}")
    of_deepspeed = [name for name in _OF_DEEPSPEED if args.to in TABLES and getattr(args, name) is not None]
    if of_deepspeed:
        raise InputError(f"--{of_deepspeed[0].replace('_', '-')} is for --to deepspeed, and this is for {args.to}.")
    for name, allowed in (("offload", OFFLOADS), ("stage", STAGES)):
        value = getattr(args, name)
        if value is not None and value not in allowed:
            raise InputError(f"--{name} is {value!r}; give {', '.join(allowed[:-1])} or {allowed[-1]}.")


_OF_DEEPSPEED = ("stage", "offload", "nvme_path", "by_hand", "host_budget", "nvme_speed")


def _wanted(args: argparse.Namespace) -> Any:
    """What was asked for besides the recipe."""
    from snugfit.interop.deepspeed_config import BY_HAND
    from snugfit.interop.deepspeed_wanted import Wanted

    by_hand = tuple(name.strip().replace("-", "_") for name in (args.by_hand or "").split(",") if name.strip())
    for name in by_hand:
        if name not in BY_HAND:
            raise InputError(f"--by-hand is {name!r}; give {' or '.join(BY_HAND)}, or both with a comma.")
    return Wanted(
        stage=None if args.stage is None else int(args.stage),
        offload=args.offload,
        nvme_path=None if args.nvme_path is None else str(args.nvme_path),
        by_hand=by_hand,
    )


def _named(args: argparse.Namespace, stored: StoredRun) -> NamedModel | None:
    """The model that is simulated; None where nothing is asked of it."""
    shape = [name for name in ("model_arg", "task", "image_size", "frames", "seq_len") if getattr(args, name)]
    asked = [name for name in ("host_budget", "nvme_speed") if getattr(args, name)]
    if args.device is None:
        if args.model is not None or shape or asked:
            given = "model" if args.model is not None else (*shape, *asked)[0]
            raise InputError(
                f"--{given.replace('_', '-')} is for where weights and state should be, on a card: give --device too "
                "(snugfit devices)."
            )
        return None
    from snugfit.runs.request import is_named
    from snugfit.simulator.request import NamedModel

    request = stored.request
    if args.model is not None:
        request = None
    elif request is None or not is_named(request.model):
        raise InputError("--device is for what a model takes on that card: give --model too.")
    if request is not None:
        return NamedModel(
            spec=request.model,
            model_args=(*request.model_args, *(args.model_arg or ())),
            task=args.task or request.task,
            image_size=args.image_size or request.image_size,
            seq_len=args.seq_len or request.seq_len,
        )
    args.assume = None
    return options.named_model(args)


def _places(args: argparse.Namespace, stored: StoredRun, named: NamedModel) -> Places:
    from snugfit.interop.where_state_goes import places_for

    sizes = {
        name: None if getattr(args, name) is None else parse_bytes(getattr(args, name), what=name.replace("_", " "))
        for name in ("host_budget", "nvme_speed")
    }
    return places_for(
        named,
        stored.run,
        args.device,
        host_bytes=sizes["host_budget"],
        nvme_speed=sizes["nvme_speed"],
        tensors=args.offload == "nvme",
    )


def _show(
    args: argparse.Namespace, export: Export, stored: StoredRun, costs: Costs | None, places: Places | None = None
) -> None:
    """Writes the file, or prints it where it is not written elsewhere, and says what it cannot say."""
    unsaid = ", ".join(map(option, stored.unsaid))
    told = f"Not given, so that these are snugfit's defaults, not those of {export.target}: {unsaid}."
    defaults = [told] if unsaid else []
    output.write_file(args.output, lambda path: path.write_text(export.text(), encoding="utf-8"))
    if args.json:
        simulated = {"costs": costs} if args.to in TABLES else {"costs": costs, "places": places}
        plain = {name: None if one is None else one.to_mapping() for name, one in simulated.items()}
        output.print_json({**export.to_mapping(), "notes": [*export.notes, *defaults], **plain})
        return
    said = [f"- {note}" for note in export.notes]
    if said:
        said.insert(0, f"What {export.target}'s file does not say:")
    text = "\n".join([*said, *defaults, *(f"\n{one}" for one in (costs, places) if one is not None)])
    if args.output is None:
        print(export.text(), end="")
        print(text, file=sys.stderr)
    else:
        output.print_text(text)
