"""Predicted bytes of the accuracy list against what a pretend card counts, and the operator that fails where memory ends.

Each configuration of `benchmarks/gpu/configurations.py`, as small as it is on a CPU but with `MORE` times the samples, is
simulated for a card and trained on a pretend card that has just the reserved peak; then on one that has a share of it, until
an operator finds no room.

    nice python -m benchmarks.card_bytes [--match vit] [--minutes 10] [--again]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

import snugfit
from benchmarks.gpu.configurations import BY_NAME, cases
from benchmarks.gpu.part import Place
from benchmarks.gpu.training_run import TrainingRun, built
from benchmarks.held_out import take_course
from benchmarks.results_file import RESULTS, write
from snugfit.fake_device.personality import Personality
from snugfit.phases import listen, phase
from snugfit.pretend_card.memory import CardMemory
from snugfit.pretend_card.present import card_present
from snugfit.recording.replay import replay
from snugfit.runs.run_device import run_device
from snugfit.simulator.given_training import simulate_training
from snugfit.simulator.session import STEPS
from snugfit.techniques.batches import map_tensors

NAME = "card_bytes"
MORE = 8
"""Samples for one of the list: with its few, the workspace of the matrix library is half of the memory."""
PLACE = Place(kind="cuda", card="pretend card", torch_version=torch.__version__, capability=(8, 0))
SHARES = (90, 80, 70, 60)
"""Percent of the reserved peak; each configuration is tried on a card with all of it, and with one of these, in turn."""
CARD = run_device("rehearse:a100-40gb")
Asked = tuple[str, str, str]
"""Phase, operator and module."""


class Ended(Exception):
    """Memory ended."""


def measured(run: TrainingRun, capacity_bytes: int) -> tuple[dict[str, int], Asked | None]:
    """Trains on a pretend card, up to its end.

    Args:
        run: What is trained.
        capacity_bytes: What the card has.

    Returns:
        Its peaks, and who found no room first; None where all did.
    """
    torch.manual_seed(0)
    run.build()  # its library is imported: a card tells those that are there that its tensors have values
    with card_present(capacity_bytes, seed=1) as card, listen(card.on_phase):
        failures = ending_at_the_first(card.memory)
        device = card.personality.device
        with contextlib.suppress(Ended):
            with phase("build"):
                model = built(run, device)
                card.watch(model)
            trainer = snugfit.prepare(model, run.recipe, device=device, **run.arguments)
            card.watch(trainer.model)
            take_course(trainer, run.batch, run.arguments, steps=STEPS, evaluate=run.evaluate)
        allocator = card.memory.allocator
        peaks = {"allocated_bytes": allocator.peak_allocated_bytes, "reserved_bytes": allocator.peak_reserved_bytes}
        return peaks, failures[0] if failures else None


def ending_at_the_first(memory: CardMemory) -> list[Asked]:
    """Lets the first request that a card cannot serve end the run, where recovery would go on.

    Args:
        memory: The card's memory.

    Returns:
        Who asked, once that has happened.
    """
    failures: list[Asked] = []

    def watched(request: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*given: Any, **named: Any) -> Any:
            try:
                return request(*given, **named)
            except torch.OutOfMemoryError:
                failures.append((named.get("phase", ""), named.get("operator", ""), named.get("module", "")))
                raise Ended from None

        return ask

    for name in ("alloc", "workspace"):
        setattr(memory, name, watched(getattr(memory, name)))
    return failures


def compared(run: TrainingRun, model: Any, shares: Iterable[int]) -> dict[str, Any]:
    """Returns what was predicted of a run and what was counted.

    Args:
        run: What is trained.
        model: What is simulated: the same model without memory, or a function that builds it.
        shares: Percent of the reserved peak with which it is tried again, until an operator finds no room.
    """
    batch = map_tensors(run.batch(), lambda tensor: tensor.to("meta"))
    trace = simulate_training(
        model, run.recipe, batch, personality=Personality(), evaluate=run.evaluate, arguments=run.arguments
    ).trace
    whole = replay(trace)
    counted, failed = measured(run, whole.peak_reserved_bytes)
    limits = []
    for share in shares:
        capacity = whole.peak_reserved_bytes * share // 100
        shortage = replay(trace, capacity_bytes=capacity).shortage
        _, failed_there = measured(run, capacity)
        limits.append(
            {
                "percent": share,
                "predicted": None if shortage is None else list(shortage),
                "failed": None if failed_there is None else list(failed_there),
            }
        )
    return {
        "predicted": {"allocated_bytes": whole.peak_allocated_bytes, "reserved_bytes": whole.peak_reserved_bytes},
        "counted": counted,
        "limits": [{"percent": 100, "predicted": None, "failed": None if failed is None else list(failed)}, *limits],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--match", default="", help="only configurations with this in their name")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after so many")
    parser.add_argument("--again", action="store_true", help="also those that are there already")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    path = RESULTS / f"{NAME}.json"
    known = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() and not args.again else []
    rows = {one["name"]: one for one in known}
    ends = time.monotonic() + 60 * args.minutes
    for number, name in enumerate(case.name for case in cases(PLACE)):
        if time.monotonic() > ends:
            break
        if name in rows or args.match not in name:
            continue
        configuration = BY_NAME[name]
        run = dataclasses.replace(configuration, scale=MORE * configuration.scale).run("cpu")
        try:
            CARD.check(run.recipe)
            rows[name] = {"name": name, **compared(run, run.build, [SHARES[number % len(SHARES)]])}
        except snugfit.InputError as refused:
            rows[name] = {"name": name, "left_out": str(refused)}
        except Exception as error:
            rows[name] = {"name": name, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        print(json.dumps(rows[name]), flush=True)
        write(NAME, {"rows": list(rows.values())})


if __name__ == "__main__":
    main()
