"""Training scripts of other projects on a card, unchanged: `snugfit estimate SCRIPT` beside what they take.

The scripts are those of `benchmarks/scripts.py`, at sizes of a card. The variable SNUGFIT_SOURCES names the folder of their
repositories. Each is taken through the steps of its estimate for real, watched by `snugfit profile`, under which backward
runs in the script's own thread: cuBLAS then holds one workspace less than a run of the script by itself, and the prediction
is compared without it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.part import Case, Part, Place, percent
from benchmarks.scripts import REAL_SCRIPT, SCRIPTS, Script, on_device
from snugfit.recording.cublas import CUBLAS
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool

SOURCES = "SNUGFIT_SOURCES"
WORDS: dict[str, str] = {
    "nanoGPT": (
        "--dataset=made --batch_size=12 --block_size=1024 --eval_iters=2 --gradient_accumulation_steps=4 --compile=False"
    ),
    "timm": "--data-dir made --model vit_base_patch16_224 --num-classes 2 -b 16 --epochs 1 --workers 2 --amp",
    "imagenet": "--dummy -a resnet50 -b 64 --epochs 1",
    "unet": "--epochs 1 --batch-size 4 --scale 1.0 --amp",
    "word_language_model": "--epochs 1 --model Transformer",
    "dcgan": "--dataset fake --batchSize 64",
    "minGPT": "",
    "super_resolution": "--upscale_factor 3 --batchSize 16 --nEpochs 1",
    "siamese_network": "--epochs 1",
    "makemore": "",
    "mnist": "",
    "mnist_rnn": "--epochs 1",
    "vae": "--epochs 1",
    "gat": "",
    "run_clm": SCRIPTS["run_clm"].words,
    "run_glue": SCRIPTS["run_glue"].words,
    "run_image_classification": SCRIPTS["run_image_classification"].words,
    "sft": SCRIPTS["sft"].words,
    "diffusion": SCRIPTS["diffusion"].words,
    "fabric": SCRIPTS["fabric"].words,
}  # fmt: skip
"""Script -> its words."""


def cases(place: Place) -> Sequence[Case]:
    """Returns the scripts.

    Args:
        place: Where they are measured.
    """
    why = "scripts of other projects on a CPU are rows of benchmarks.scripts" if place.kind == "cpu" else ""
    if not why and SOURCES not in os.environ:
        why = f"{SOURCES} names no folder of their repositories"
    return [
        Case(
            name=name,
            settings={"repository": SCRIPTS[name].repository, "script": SCRIPTS[name].path, "words": _words(name)},
            packages=("torchvision",),
            left_out=why,
        )
        for name in WORDS
    ]


def _words(name: str) -> str:
    return f"{WORDS[name]} {SCRIPTS[name].on_card}".strip()


def _found(name: str) -> tuple[Script, Path]:
    script = dataclasses.replace(SCRIPTS[name], words=WORDS[name])
    return script, Path(os.environ[SOURCES]).resolve() / script.repository.replace("/", "+")


def measure(name: str, place: Place) -> dict[str, Any]:
    """Takes a script through its steps, in this process.

    Args:
        name: The script.
        place: Where.

    Returns:
        `allocated_bytes` and `steps`.
    """
    from snugfit.cli import main

    script, project = _found(name)
    script.make_data(project)
    folder, path = script.place(project)
    os.chdir(folder)
    sys.path.insert(0, str(project))
    words = ["profile", "--json", "--no-advice", "--steps", "1000", str(REAL_SCRIPT), path, *_words(name).split()]
    with tempfile.TemporaryFile() as document:
        kept_stdout = os.dup(1)
        os.dup2(document.fileno(), 1)  # the document goes to what the process was started with
        try:
            code = main(words)
        finally:
            os.dup2(kept_stdout, 1)
        if code:
            raise RuntimeError(f"snugfit profile ended with exit code {code}")
        document.seek(0)
        found = json.loads(document.read())
    return {"allocated_bytes": found["allocator_peak_bytes"], "steps": found["steps"]}


def predict(name: str, place: Place, pool: Pool) -> dict[str, Any]:
    """Estimates a script for the card.

    Args:
        name: The script.
        place: Where it is measured.
        pool: Not used.

    Returns:
        `allocated_bytes`, `watched_bytes` (without the workspace of backward's thread), `total_bytes` (reserved, and the
        context) and `step_seconds`.

    Raises:
        InputError: It is not answered.
    """
    from snugfit.devices import device_named
    from snugfit.errors import InputError

    script, project = _found(name)
    script.make_data(project)
    found, said = on_device(script, project, device_named(place.card).name)
    if found is None:
        raise InputError(said)
    allocated = found["peak_allocated_bytes"]
    of_backward = (row for row in found["largest"] if (row["operator"], row["phase"]) == (CUBLAS, "backward"))
    watched = allocated - sum(row["size_bytes"] for row in of_backward)
    kept = {key: found[key] for key in ("total_bytes", "step_seconds")}
    return {"allocated_bytes": allocated, "watched_bytes": watched, **kept}


def _line(row: dict[str, Any]) -> str:
    predicted, measured = row["predicted"]["watched_bytes"], row["measured"]["allocated_bytes"]
    return f"{format_bytes(measured)} allocated {percent(predicted, measured):>9}"


PART = Part(
    name="scripts",
    title="Scripts of other projects",
    cases=cases,
    measure=measure,
    predict=predict,
    line=_line,
    first=8,
    timed=False,
    limit_seconds=180,
)
