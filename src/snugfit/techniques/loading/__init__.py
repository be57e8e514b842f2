"""Data loading beside training: workers, page-locked memory, prefetch.

What it saves. Time, not device memory. With `workers=0` the training process decodes and converts every batch itself,
and the device waits meanwhile. `workers=N` does it in N processes, each `prefetch` batches ahead. `pin_memory` puts the
batches into page-locked host memory, from which a copy to a CUDA device runs beside compute (`non_blocking=True`); from
ordinary memory the driver first copies into a page-locked buffer of its own and the host waits.

What it costs. Host memory: up to `workers * prefetch` batches in shared memory, and each worker is a process with its
own interpreter (about 200 to 400 MB, though pages that nobody writes stay shared). Page-locked memory cannot be swapped
out. Starting workers takes from tenths of a second to seconds at the start of each epoch.

When it is wrong. Small images that are in memory already (digits, CIFAR-10 at 32x32) load in microseconds: workers then
only add the cost of moving batches between processes. On a machine with two cores workers take cores away from training
on CPU. Where /dev/shm is small (containers) workers die of it: use fewer, or a smaller prefetch.

The order of the data depends on the seed and the epoch only, never on these three, so the update stays `exact`.

Source: `torch.utils.data` and "CUDA semantics: use pinned memory buffers" (torch documentation).
"""

from __future__ import annotations

import dataclasses

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Planning

MOST_WORKERS = 256
"""Each is a copy of the training process: more would exhaust the machine before they helped."""

_PIN_IT = {
    "workers": "; pin it to what your data needs",
    "pin_memory": "; pin it where copies to the card show in a profile",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """How data is loaded."""

    workers: int = 0
    """Processes that load data beside training; 0 loads in the training process."""

    pin_memory: bool = False
    """Batches come in page-locked host memory, so that copies to a CUDA device overlap with compute."""

    prefetch: int = 2
    """Batches each worker keeps ready."""


TECHNIQUE = Technique(
    name="loading",
    fields=("workers", "pin_memory", "prefetch"),
    rows=(17,),
    level="exact",
    summary="no memory; time waiting for data",
    known_as="dataloader data-loading num-workers prefetch-factor",
    rules={
        f"workers is {{recipe.workers}}; it must be 0 (load in the training process) to {MOST_WORKERS} processes.": (
            lambda r: not 0 <= r.workers <= MOST_WORKERS
        ),
        "prefetch is {recipe.prefetch}; it must be at least 1.": lambda r: r.prefetch < 1,
    },
    may_change="loading",
    in_the_loop="give them to your DataLoader",
    planning=Planning(
        off=lambda field, _: "loading of data is not simulated" + _PIN_IT.get(field, ""),
        quiet=True,
    ),
    example="it moves work to other processes and changes neither the step's memory nor its arithmetic",
)
