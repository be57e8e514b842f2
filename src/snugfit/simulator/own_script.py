"""A training script, unchanged, on the fake accelerator: what its first optimizer steps would take.

The script runs in a worker, as `python SCRIPT arguments` or `python -m MODULE arguments` would run it, for its first steps
(`watched_script.py`). Nothing is written, sent or started (`harmless.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from snugfit.attributes import replaced
from snugfit.devices import Device
from snugfit.errors import CannotSimulateError, InputError, in_words, warn
from snugfit.fake_device.personality import Personality
from snugfit.simulator.behind_training import behind_passes, behind_training, perhaps_made, trained_in_turn
from snugfit.simulator.compiled_script import record_as_it_compiles
from snugfit.simulator.estimate import DeviceArgument, cards_of, estimated
from snugfit.simulator.fresh_workers import imported_since
from snugfit.simulator.later_optimizers import later_optimizers, makes_optimizer
from snugfit.simulator.launched import Launch, names_itself
from snugfit.simulator.memory_handlers import memory_handlers
from snugfit.simulator.periodic_branches import PeriodicBranches
from snugfit.simulator.prediction import Estimate
from snugfit.simulator.record_watched import record_watched
from snugfit.simulator.script import Program, check_script
from snugfit.simulator.script_run import run_watched
from snugfit.simulator.script_seen import ScriptRecording
from snugfit.simulator.script_text import ProgramText
from snugfit.simulator.thawed_later import thawed_later
from snugfit.simulator.watched_script import STEPS, WatchedScript
from snugfit.units import format_count
from snugfit.values.assumptions import AssumeArgument, Assumptions, assumptions_from
from snugfit.workload import Workload

_PASSES = 24
"""Backward passes that are waited through for an optimizer that a script makes further down: it may try batches first."""
ASSUMED = {"integer": 1, "branch": False}
"""What is taken where a script reads what its metrics and its early stopping are made of; the estimate names it."""


def import_all(personality: Personality, names: Sequence[str]) -> None:
    """Imports modules as a script on the fake device would; `CannotSimulateError` where one fails. Runs in a worker."""

    def run(_: Any) -> None:
        for name in names:
            importlib.import_module(name)

    try:
        with _silence():
            record_watched(WatchedScript(), run, Assumptions(), personality)
    except Exception as error:  # half of a library may be there now, so that nothing can be run here
        raise CannotSimulateError(
            f"the script's libraries are not imported apart from it: {in_words(error)}."
        ) from error


def estimate_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    device: DeviceArgument = None,
    assume: AssumeArgument = None,
    gpus: int | None = None,
    nodes: int = 1,
) -> Estimate:
    """Predicts what a training script takes as it is, on a card by name, on cpu or on every card (None).

    One that trains on the host is refused for a card by name, and for every card (None) predicted on cpu.

    `gpus`: processes of each of `nodes` machines, as torchrun starts them, of which the first is looked at; None: the
    script is started alone.
    """
    program, cards = check_script(script), cards_of(device)
    assumed = assumptions_from(assume).completed(ASSUMED)
    card = cards[0] if len(cards) == 1 else None
    record = functools.partial(record_script, program, list(arguments), assumed, card=card, gpus=gpus, nodes=nodes)
    found = estimated(record, cards, None, script, record_as_it_compiles)
    if found.peak_allocated_bytes:
        return found
    if device not in (None, "all"):
        raise on_host(script)
    warn(f"{script} puts nothing on a card: as it was called it trains on the host, for which it is predicted here.")
    return estimated(record, cards_of("cpu"), None, script, record_as_it_compiles)


def on_host(script: str) -> InputError:
    """Returns what is said of a script that was to be on a card and puts nothing there."""
    return InputError(
        f"{script} puts nothing on the card: as it was called it trains on the host. Give the arguments with which it "
        "trains on a card, or --device cpu."
    )


def record_script(
    program: Program,
    arguments: Sequence[str],
    assume: Assumptions,
    personality: Personality,
    *,
    changed: Mapping[str, str] | None = None,
    put_on: Sequence[str] = (),
    for_plan: bool = False,
    compiles: bool = False,
    card: Device | None = None,
    gpus: int | None = None,
    nodes: int = 1,
) -> ScriptRecording:
    """Records the first steps of a script; runs in a worker.

    `changed`: file -> text that is run in its place, without a word; None: as the files are.
    `put_on`: statements that are run with the `model` when its optimizer is made.
    `for_plan`: whether fidelity will be judged by it, for which its models are looked at.
    `compiles`: whether `torch.compile` compiles, for fake tensors and without a word; otherwise it is left out.
    `card`: whose name and memory the script is told; None: those of no card that there is.
    `gpus`, `nodes`: as of `estimate_script`.
    """
    from snugfit.fake_device.rewritten_code import other_text

    passes = _PASSES if makes_optimizer(ProgramText(program.parts()).text, _optimizers()) else STEPS
    watched = WatchedScript(program.owns, for_plan=for_plan, most=passes)
    before = set(sys.modules)
    launch = Launch(gpus, nodes)
    watched.observer.put_on = put_on

    def run(recorder: Any) -> None:
        named = [] if card is None or card.memory_bytes is None else names_itself(card.vendor_name, card.memory_bytes)
        with PeriodicBranches(watched).taken(), other_text(changed or {}), launch.begun(recorder), replaced(named):
            run_watched(watched, program, arguments, changed or {}, recorder)

    with ExitStack() as around:
        around.enter_context(_silence() if compiles or changed is not None else _numbers_told(program.path))
        around.enter_context(replaced(watched.changes()))
        recording = record_watched(watched, run, assume, personality, compiles=compiles)
    known = {field.name: getattr(recording, field.name) for field in dataclasses.fields(recording)}
    found = ScriptRecording(**known, seen=watched.observer.seen)
    if (workload := launch.workload) is not None:
        found = dataclasses.replace(found, workload=workload, alike_ranks=((launch.rank,),))
    if for_plan:
        seen, shared = dataclasses.replace(found.seen, libraries=imported_since(before)), launch.workload or Workload()
        workload = watched.workload.replace(gpus=shared.gpus, nodes=shared.nodes)
        found = dataclasses.replace(found, seen=seen, block_names=seen.blocks, workload=workload)
    as_it_is = changed is None  # lines are those of the file then
    later = _later(program, watched, alone=launch.ranks is None) if as_it_is and watched.enough else ()
    return dataclasses.replace(found, warnings=(*found.warnings, *launch.notes(), *dict.fromkeys(later)))


def _later(program: Program, watched: WatchedScript, *, alone: bool) -> Iterator[str]:
    """What to say of what the first steps do not come to: layers, optimizers, and what is computed behind the training."""
    parts = program.parts()
    whole = ProgramText(parts)
    if lines := memory_handlers(whole.text):
        yield (
            f"what {program.path} does where memory runs out ({', '.join(map(whole.place, lines))}) is not looked at, as it "
            "never does here: batches stay as large as the script tries them."
        )
    for end in watched.ends or [[]]:
        # cells behind the one that was ended are run
        cell = next((file for file, _ in end if file in parts), None)
        upto = len(parts) if cell is None else list(parts).index(cell) + 1
        text = ProgramText(dict(itertools.islice(parts.items(), upto)))
        yield from _behind(program.path, text, end, watched, alone=alone)


def _behind(
    path: Path, whole: ProgramText, end: Sequence[tuple[str, int]], watched: WatchedScript, *, alone: bool
) -> Iterator[str]:
    text, ended_at, reached = whole.text, whole.numbers(end), whole.numbers(watched.observer.lines)
    if (line := behind_training(text, ended_at)) is not None:
        yield (
            f"what {path} does from {whole.place(line)} on, behind its training, was not looked at: a test there, say, or a "
            "checkpoint that is loaded may take more."
        )
    # Several optimizers may step in loops of their own, which are no passes.
    by_hand = not watched.loaders.trained and watched.observer.how_many == 1
    if by_hand and (line := behind_passes(text, ended_at)) is not None:
        yield (
            f"what {path} does from {whole.place(line)} on, behind a pass through its data, was not looked at, as the "
            "pass ends by no loader of torch: an evaluation there, say, may take more."
        )
    # a loop of a script of several processes may start them
    loop = trained_in_turn(text, ended_at, reached) if alone else None
    if loop is not None or watched.observer.in_trials:
        place = "optuna" if loop is None else f"the loop at {whole.file_line(loop)}"
        yield f"{place} trains from anew in each turn, and the first was looked at: a larger model or batch takes more."
    if watched.frozen and (thawing := thawed_later(text, ended_at)):
        places = ", ".join(map(whole.place, thawing))
        yield (
            f"{format_count(watched.frozen)} parameters do not train in the steps that were looked at. Where {path} lets "
            f"them train later ({places}), their gradients, optimizer state and activations come on top."
        )
    made = [(line, name, "makes") for line, name in later_optimizers(text, reached, _optimizers())]
    made += [(line, name, "may make") for line, name in perhaps_made(text, ended_at, _optimizers())]
    for line, name, makes in made:
        yield (
            f"{whole.file_line(line)} {makes} another optimizer ({name}) behind the steps that were looked at: what it "
            "trains may take more, and is not predicted."
        )


def _optimizers() -> set[str]:
    """Names of torch's optimizers."""
    import torch

    return {name for name, one in vars(torch.optim).items() if isinstance(one, type)}


def _numbers_told(path: Path) -> AbstractContextManager[None]:
    """Context in which the first thing that a script prints stands behind what its numbers are worth."""
    write, told = sys.stdout.write, False

    def telling(text: str) -> int:
        nonlocal told
        if not told:
            told = True
            sys.stderr.write(f"{path} is simulated: it trains nothing, and numbers that it prints are made up.\n")
        return write(text)

    return replaced([(sys.stdout, "write", telling)])


@contextmanager
def _silence() -> Iterator[None]:
    """Context in which this process says nothing, by whatever way."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept, nothing = [os.dup(number) for number in (1, 2)], os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(nothing)
