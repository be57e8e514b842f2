"""`snugfit plan SCRIPT`: the fastest way to train by an unchanged script in less memory, as lines to paste into it.

The script is run on the fake device as it is, which shows where its optimizer is made and what its models are called there.
From then on a recipe is text: lines put into the script, which is simulated with them, in full. So what a plan promises was
simulated of the very lines that it gives.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from snugfit.devices import Device
from snugfit.errors import DoesNotFitError, InputError, RecipeError, did_you_mean
from snugfit.fake_device.personality import Personality
from snugfit.planner.constraints import Constraints
from snugfit.planner.places import budget_for, place_for
from snugfit.planner.plan_result import Plan
from snugfit.planner.planner import Planner
from snugfit.planner.probe import WORKERS, Place, Probe, Simulations
from snugfit.planner.script_plan_result import ScriptLines, ScriptPlan
from snugfit.recipe import Recipe
from snugfit.recording.recording import Recording
from snugfit.simulator.fresh_workers import FreshWorkers, fresh_workers
from snugfit.simulator.own_script import ASSUMED, import_all, on_host, record_script
from snugfit.simulator.script import Program, check_script
from snugfit.simulator.script_lines import STYLES, Lines
from snugfit.simulator.script_seen import ScriptRecording
from snugfit.simulator.script_text import decoded, diff
from snugfit.simulator.subjects import Subject
from snugfit.techniques import LOOP_FIELDS
from snugfit.values.assumptions import AssumeArgument, Assumptions, assumptions_from
from snugfit.workers.pool import Pool
from snugfit.workload import Workload

_OF_TORCH = ("checkpoint", "optimizer", "precision")
"""Fields of which some values are lines of plain torch."""
_THEIRS = LOOP_FIELDS - {"optimizer"}
"""Fields that belong to the script's own loop."""
_ALONE = ("adapter", "quantize")
"""Fields that make new weights, which several processes would each train for themselves: theirs were shared before."""
_SHARED = "the script's processes share their weights before it could be"


def plan_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    budget: str | int | None = None,
    device: str | None = None,
    constraints: Constraints | None = None,
    style: str = "snugfit",
    assume: AssumeArgument = None,
    gpus: int | None = None,
    nodes: int = 1,
) -> ScriptPlan:
    """Finds the fastest way in which a script trains within a budget; arguments as of `plan_named`.

    `style`: what the lines to paste are made of: snugfit, or torch, which can say fewer techniques.
    `gpus`, `nodes`: as of `estimate_script`; how they share the work stays the script's.
    """
    if style not in STYLES:
        raise InputError(f"--as is {style!r}; {did_you_mean(style, STYLES)}")
    program = check_script(script)
    place, budget_bytes = budget_for(place_for(device), budget)
    asked, forbidden = constraints or Constraints(), set(_THEIRS)
    alone = (gpus or 1) * nodes == 1
    if not alone:
        forbidden.update(_ALONE)
    _check_pins(asked, forbidden, alone=alone)
    assumed = assumptions_from(assume).completed(ASSUMED)
    record = functools.partial(_record, program, list(arguments), assumed, place.card, gpus, nodes)
    subject = functools.partial(_subject, script, Workload(gpus=gpus or 1, nodes=nodes))
    plainly = subject(functools.partial(record, None))
    first = Simulations(plainly, place, fresh_workers())
    as_it_is = first.need(Recipe())
    lines = _lines(program, as_it_is, style)
    if place.personality.is_card and not any(one.place == "device" for one in as_it_is.recorded.trace.storages):
        raise on_host(script)
    seen = lines.seen
    if seen.own_precision:
        forbidden.add("precision")
    if style == "torch":
        forbidden |= set(Recipe().to_mapping()) - set(_OF_TORCH)
    _check_pins(asked, forbidden, seen.own_precision, alone=alone)
    wanted = dataclasses.replace(asked, forbidden=asked.forbidden | forbidden)
    before, fused = first, False
    quietly = subject(functools.partial(record, None, quiet=True))
    with _workers(quietly, as_it_is, place, seen.libraries) as pool:
        if lines.can_fuse():
            told = dataclasses.replace(lines, fused=True)
            with_it = Simulations(subject(functools.partial(record, told)), place, pool)
            with_it.simulate([Recipe()])
            if fused := _is_better(with_it.probes.get(Recipe()), as_it_is):
                before, lines = with_it, told
        changed = subject(functools.partial(record, lines))
        with Planner(changed, place, wanted, pool=pool, before=before) as planner:
            found = _at(planner, budget_bytes, style)
    reasons = {**found.reasons, **dict(_reasons(lines, fused=fused, alone=alone, asked=asked))}
    budgets = dataclasses.replace(found.budgets, may_change=False)
    found = dataclasses.replace(found, reasons=reasons, fallbacks=(), rivals=(), budgets=budgets)
    return _with_lines(found, script, arguments, lines, as_it_is)


def _at(planner: Planner, budget_bytes: int, style: str) -> Plan:
    try:
        return planner.at(budget_bytes)
    except DoesNotFitError as error:
        more = ["A smaller batch in the script takes less, and was not tried; gradients can be added up over several."]
        if style == "torch":
            more.insert(0, "With --as torch few techniques can be said; without it more can be tried.")
        if (all_blocks := planner.simulations.refusals.get(Recipe(checkpoint="all"))) is not None:
            more.insert(0, f"checkpoint=all could not be tried: {all_blocks.reason}")
        error.args = ("\n".join([str(error), *more]),)
        raise


@contextmanager
def _workers(quietly: Subject, as_it_is: Probe, place: Place, libraries: Sequence[str]) -> Iterator[Pool]:
    """Workers that have imported the script's libraries, if it does the same with them; else those of all scripts."""
    if not libraries:
        yield fresh_workers()
        return
    with closing(FreshWorkers(WORKERS)) as workers:
        workers.libraries = libraries, functools.partial(import_all, place.personality)
        again = Simulations(quietly, place, workers)
        again.simulate([Recipe()])
        found = again.probes.get(Recipe())
        again.close()
        yield workers if found is not None and _is_same(found, as_it_is) else fresh_workers()


def _is_same(one: Probe, other: Probe) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("need_bytes", "total_bytes", "seconds"))


def _record(
    program: Program,
    arguments: Sequence[str],
    assume: Assumptions,
    card: Device,
    gpus: int | None,
    nodes: int,
    lines: Lines | None,
    recipe: Recipe,
    personality: Personality,
    *,
    quiet: bool = False,
) -> Recording:
    """Records a script by a recipe's lines, or as it is; runs in a worker.

    `quiet`: not to repeat what the script prints; with lines it never is.
    """
    from snugfit.techniques.own_optimizer import own_optimizer

    own = own_optimizer(recipe.optimizer)
    if own is not None:
        own.load()
    changed = lines.changed(recipe) if lines is not None else {} if quiet else None
    put_on = () if lines is None else lines.put_on(recipe)
    found = record_script(
        program, arguments, assume, personality,
        changed=changed, put_on=put_on, for_plan=True, card=card, gpus=gpus, nodes=nodes,
    )  # fmt: skip
    if lines is not None and recipe.adapter != "none" and (more := found.seen.left_out - lines.seen.left_out) > 0:
        raise InputError(
            f"adapter={recipe.adapter}: {more} of its weights would be in no optimizer, as the script collects weights "
            "before the line that puts adapters on its model. Collect them where the optimizer is made, or behind that line."
        )
    return found


def _subject(script: str, workload: Workload, record: Any) -> Subject:
    return Subject(record=record, title=script, workload=workload, built=True, by_recipe=False)


def _lines(program: Program, as_it_is: Probe, style: str) -> Lines:
    """Where lines can be put into a script; `InputError` where several models have no name."""
    recorded = as_it_is.recorded
    assert isinstance(recorded, ScriptRecording)
    seen = recorded.seen
    if len(seen.nameless) > 1 or not seen.models:
        what = " and ".join(dict.fromkeys(seen.nameless)) or "what its optimizer updates"
        raise InputError(
            f"where {program.path} makes its optimizer, no variable of its code holds {what}, so it cannot be said what "
            "lines are for which. Keep each model in a variable of the script, such as `model = ...`, before its optimizer "
            "is made."
        )
    places = (*(model.place for model in seen.models), *(one.place for one in seen.optimizers))
    parts = program.parts()
    texts = {one.file: decoded(parts.get(one.file) or Path(one.file).read_bytes()) for one in places if one is not None}
    return Lines(seen=seen, texts=texts, style=style)


def _is_better(probe: Probe | None, other: Probe) -> bool:
    """Whether something takes no more memory and no more time, and less of one of them."""
    if probe is None:
        return False
    ours, theirs = (probe.need_bytes, probe.seconds), (other.need_bytes, other.seconds)
    return ours[0] <= theirs[0] * 1.001 and ours[1] <= theirs[1] and ours != theirs


def _check_pins(asked: Constraints, forbidden: set[str], own_precision: str = "", *, alone: bool) -> None:
    """Raises where something is pinned that cannot be put around the script."""
    if pinned := sorted(forbidden & asked.pins.keys()):
        problems = [_not_pinned(name, own_precision, alone=alone) for name in pinned]
        raise RecipeError(problems, subject="plan of a script")


def _not_pinned(name: str, own_precision: str, *, alone: bool) -> str:
    if name == "precision" and own_precision:
        return f"precision is pinned, and the script has its own: {own_precision}. Leave it out."
    if name in _ALONE and not alone:
        return f"{name} is pinned, and {_SHARED}. Leave it out."
    if name in _THEIRS:
        return f"{name} is pinned, and belongs to the script's own loop. Leave it out."
    return f"{name} is pinned, and no line of plain torch. Take --as snugfit for it."


def _reasons(lines: Lines, *, fused: bool, alone: bool, asked: Constraints) -> Iterator[tuple[str, str]]:
    """What is said of fields that are no choice here."""
    for name in filter(asked.is_free, Recipe().to_mapping()):
        if name in _THEIRS:
            yield name, "off: it belongs to the script's own loop."
        elif name in _ALONE and not alone:
            yield name, f"off: {_SHARED}."
        elif lines.style == "torch" and name not in _OF_TORCH:
            yield name, "off: no line of plain torch says it (--as snugfit)."
        elif name == "precision" and lines.seen.own_precision:
            yield name, f"off: {lines.seen.own_precision}."
    if fused:
        yield "optimizer_impl", "fused=True for the script's optimizer: simulated, no more memory and no more time."
    elif lines.can_fuse():
        yield "optimizer_impl", "off: fused=True was simulated, and is no better here."


def _with_lines(found: Plan, script: str, arguments: Sequence[str], lines: Lines, as_it_is: Probe) -> ScriptPlan:
    changed, seen = lines.changed(found.recipe), lines.seen
    alone = []
    for model, (statements, _) in zip(seen.models, lines.alone(found.recipe), strict=True):
        file, line = (None, None) if model.place is None else (_shown(model.place.file), model.place.line)
        if statements:
            alone.append(ScriptLines(file=file, line=line, text="\n".join(statements)))
    notes = []
    if any(one.file is None for one in alone):
        made = next((f" ({_shown(one.place.file)}:{one.place.line})" for one in seen.optimizers if one.place), "")
        notes.append(
            f"no variable of the script's code holds the {seen.nameless[0]} where its optimizer is made{made}, so the diff "
            "has no line for it. Put these there, `model` being that model:"
        )
    return ScriptPlan(
        plan=found,
        script=script,
        arguments=tuple(arguments),
        style=lines.style,
        diff="".join(diff(_shown(path), lines.texts[path], text) for path, text in sorted(changed.items())),
        lines=tuple(alone),
        total_bytes=as_it_is.total_bytes,
        step_seconds=as_it_is.seconds,
        notes=tuple(notes),
    )


def _shown(file: str) -> str:
    """A file's path from the current folder, where it lies in there."""
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file
