"""Documents as commands write them, made once: a plan, estimates before and after a change, a run, ladders."""

import copy
import json

import pytest
import torch
from torch import nn

import snugfit


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(self.norm(x))


class Hostile(nn.Module):
    """Blocks whose name would be markup, if a page took it for that."""

    def __init__(self, width=32, blocks=3):
        super().__init__()
        self.stem = nn.Linear(16, width)
        self.add_module(NAME, nn.ModuleList(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.get_submodule(NAME):
            x = block(x)
        return self.head(x.mean(1))


NAME = "</script><img src=x onerror=document_was_run()>"
FORBIDDEN = ("init", "loss_impl", "offload_optimizer", "step_in_backward")
BATCH = ((16, 1024, 16), torch.float32), ((16,), torch.int64)


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output, batch[1])


@pytest.fixture(scope="session")
def documents(pool, tmp_path_factory):
    """A folder with plan.json, before.json, after.json, cards.json, gpus.json, predicted/, ladder/ and run/."""
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
