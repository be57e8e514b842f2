"""torch's DistributedDataParallel on this CPU, its measured peak beside what is predicted for its user.

    python -m benchmarks.ddp                 (writes results/ddp.json)

The reducer of DDP is C++ and does not run on fake tensors, so it is a model of two lines, which is what this file checks:

- As it is by default, gradients are copied into buckets (25 MiB each, the first 1 MiB) that live from the moment at which
  the model is wrapped. A rank takes what one process takes for its share of the batch, and the bytes of all gradients
  once more.
- With `gradient_as_bucket_view=True` gradients lie in the buckets, and `zero_grad` lets go of views only. A rank takes what
  one process takes that zeroes its gradients in place (`zero_grad(set_to_none=False)`).

Processes over gloo take steps of a loop as anybody writes it; tensors are counted by the allocator's events.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import tempfile
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch

import snugfit
from benchmarks.ranks import SAMPLES, SECONDS, SUBJECTS, Subject
from benchmarks.results_file import write
from snugfit.measure.meter import meter_for
from snugfit.techniques.batch_share import share_of
from snugfit.techniques.batches import cut, map_tensors

RANKS, STEPS = 2, 4
BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * 2**20, 2**20
"""As torch has them (`bucket_cap_mb`, `dist._DEFAULT_FIRST_BUCKET_BYTES`)."""


def bucket_bytes(model: torch.nn.Module) -> list[int]:
    """Returns the bytes of each bucket, in the order in which gradients are ready.

    Args:
        model: The model that DDP wraps.
    """
    import torch.distributed as dist

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    found, _ = dist._compute_bucket_assignment_by_size(list(reversed(weights)), [FIRST_BUCKET_BYTES, BUCKET_BYTES])
    backwards = list(reversed(weights))
    return [sum(backwards[index].nbytes for index in bucket) for bucket in found]


def predicted(subject: Subject, *, view: bool) -> int:
    """Returns the predicted peak of a rank."""
    share = map_tensors(
        cut(subject.batch("meta"), 0, SAMPLES // RANKS, SAMPLES), lambda one: torch.empty_like(one, device="meta")
    )

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        _step(model, optimizer, batch, subject, set_to_none=not view)

    estimate = snugfit.estimate(subject.build, share, step=step, optimizer="adamw", device="cpu")
    return estimate.peak_allocated_bytes + (0 if view else sum(bucket_bytes(subject.build())))


def measured(rank: int, subject: Subject, *, view: bool) -> int:
    """Trains as DDP's users do, and returns the most that tensors took."""
    meter = meter_for("cpu", window_steps=STEPS)
    meter.start()
    model = torch.nn.parallel.DistributedDataParallel(subject.build(), gradient_as_bucket_view=view)
    optimizer = torch.optim.AdamW(model.parameters())
    meter.built()
    start, end = share_of(SAMPLES, RANKS, rank)
    for number in range(STEPS):
        _step(
            model, optimizer, map_tensors(cut(subject.batch("cpu"), start, end - start, SAMPLES), torch.clone), subject
        )
        meter.after_step(number + 1)
    return int(meter.result(0)["peak_tensor_bytes"] or 0)


def _step(
    model: Any, optimizer: torch.optim.Optimizer, batch: Any, subject: Subject, *, set_to_none: bool = True
) -> None:
    loss = model(**batch).loss if subject.loss is None else subject.loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=set_to_none)


def _serve(rank: int, meeting: str, ends: Connection) -> None:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS,
        timeout=datetime.timedelta(seconds=SECONDS),
    )  # fmt: skip
    while (task := ends.recv()) is not None:
        try:
            ends.send(measured(rank, SUBJECTS[task[0]], view=task[1]))
        except Exception:
            ends.send(traceback.format_exc())
    dist.destroy_process_group()


def main() -> None:
    """Measures and predicts each model with and without views, and writes the results."""
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    context, rows = multiprocessing.get_context("spawn"), []
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(rank, f"{folder}/meeting", theirs), daemon=True).start()
            ends.append(ours)
        for name, subject in SUBJECTS.items():
            for view in (False, True):
                for end in ends:
                    end.send((name, view))
                truth = [end.recv() if end.poll(SECONDS) else "no answer" for end in ends]
                if any(isinstance(one, str) for one in truth):
                    raise SystemExit(f"{name}: {truth}")
                guess = predicted(subject, view=view)
                rows.append(
                    {
                        "model": name,
                        "gradient_as_bucket_view": view,
                        "measured_bytes": truth,
                        "predicted_bytes": guess,
                        "worst": round(max((guess / one for one in truth), key=lambda ratio: abs(ratio - 1)), 5),
                    }
                )
                print(rows[-1], flush=True)
                within = sum(abs(row["worst"] - 1) <= 0.02 for row in rows)
                write("ddp", {"ranks": RANKS, "within_2_percent": within, "rows": rows})
        for end in ends:
            end.send(None)


if __name__ == "__main__":
    main()
