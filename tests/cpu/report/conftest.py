"""Documents as commands write them, made once: a plan, estimates before and after a change, a run, ladders."""

import copy
import json
import shutil

import pytest
from shown_models import BATCH, FORBIDDEN, Hostile, cross_entropy
from torch import nn

import snugfit


@pytest.fixture(scope="session")
def documents(pool, tmp_path_factory):
    """A folder with plan.json, before.json, after.json, cards.json, gpus.json, predicted/, ladder/, run/ and stopped/."""
    folder = tmp_path_factory.mktemp("documents")

    def estimated(name, **how):
        found = snugfit.estimate(Hostile, BATCH, loss=cross_entropy, pool=pool, **how)
        (folder / name).write_text(found.to_json())
        return json.loads(found.to_json())

    how = {"loss": cross_entropy, "device": "rtx-3090", "forbid": FORBIDDEN}
    (folder / "plan.json").write_text(snugfit.plan(Hostile, BATCH, budget="800MiB", **how, pool=pool).to_json())
    before = estimated("before.json", device="rtx-3090")
    after = estimated("after.json", device="rtx-3090", recipe=snugfit.Recipe(checkpoint="all"))
    estimated("cards.json", device="rtx-3060-12gb,rtx-3090")
    estimated("gpus.json", device="rtx-3090", gpus=2)
    snugfit.train(
        nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), "digits", max_steps=2, batch_size=32, predict=True,
        run_dir=folder / "run", device="cpu", progress=False,
    )  # fmt: skip
    shutil.copytree(folder / "run", folder / "stopped")
    (folder / "stopped" / "summary.json").unlink()
    for place, taken in (("predicted", "predicted"), ("ladder", "measured")):
        (folder / place).mkdir()
        rungs = [_rung(name, found, taken) for name, found in (("plain", before), ("checkpoint", after))]
        ladder = {"model": "a", "preset": None, "data": "b", "device": "cpu", "rungs": rungs, "left_out": {}}
        (folder / place / "ladder.json").write_text(json.dumps(ladder))
    return folder


def _rung(name, found, taken):
    """An entry of a ladder, predicted by an estimate, or measured as it predicts."""
    peaks = {key: found[key] for key in ("peak_allocated_bytes", "peak_reserved_bytes", "total_bytes")}
    fidelity = {"level": "exact", "reasons": {}, "unchecked": {}}
    entry = {"name": name, "change": "", "fidelity": fidelity, "predicted": None, "measured": None}
    return copy.deepcopy({**entry, taken: peaks, "seconds": 1.5, "error": None})
