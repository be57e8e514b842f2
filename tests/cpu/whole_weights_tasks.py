"""What ranks do in `training/test_whole_weights.py`, each in its own process, over gloo."""

import warnings
from pathlib import Path

import torch
from shard_tasks import MODELS, among_others, share
from small_models import cross_entropy
from text_models import LLAMA, build

import snugfit
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.private_torch.gloo import letting_go

STEPS = 3
WIDE = {**LLAMA, "initializer_range": 0.3}
"""Weights so large that it says many different words."""


def batches():
    """Batches of tokens of the small Llama."""
    generator = torch.Generator().manual_seed(2)
    ids = [torch.randint(0, LLAMA["vocab_size"], (4, 12), generator=generator) for _ in range(STEPS)]
    return [{"input_ids": one, "labels": one} for one in ids]


def trainer_of(fields, *, dtype=torch.float64, tied=True):
    """A trainer of a small Llama, its weights tied or not."""
    warnings.simplefilter("ignore", snugfit.SnugfitWarning)
    model = build(WIDE, tie_word_embeddings=tied).to(dtype)
    return snugfit.prepare(model, snugfit.Recipe(**fields), lr=0.01, device="cpu")


def saved(rank, world, meeting, fields, folder):
    """Saves a file and a folder between two steps; returns the whole weights after the last, and how many it was told of."""
    with among_others(rank, world, meeting):
        trainer = trainer_of(fields)
        for number, batch in enumerate(batches()):
            if number == STEPS - 1:
                trainer.save(Path(folder) / "between")
            ids = share((batch["input_ids"],), rank, world)[0]
            trainer.step({"input_ids": ids, "labels": ids})
        if "quantize" not in fields:
            trainer.save(Path(folder) / "model.safetensors")
        trainer.save(Path(folder) / "model")
        return trainer.full_state_dict()


def refused(rank, world, meeting, folder):
    """Returns what each rank hears of a save where nothing can be written, and the loss of the step after it."""
    with among_others(rank, world, meeting):
        trainer = trainer_of({"shard": "full"})
        ids = share((batches()[0]["input_ids"],), rank, world)[0]
        batch = {"input_ids": ids, "labels": ids}
        trainer.step(batch)
        try:
            trainer.save(Path(folder) / "a file" / "model")
        except snugfit.InputError as error:
            return str(error), float(trainer.step(batch))
        return "", 0.0


def peak_of_a_save(rank, world, meeting, folder):
    """Returns the most bytes of tensors that a save of 64 MiB in blocks of 4 MiB held here beside this rank's shares."""
    with among_others(rank, world, meeting), letting_go():
        trainer = snugfit.prepare(MODELS["wide"], snugfit.Recipe(shard="full"), loss=cross_entropy, device="cpu")
        events = AllocatorEvents()
        warm_up()
        events.start()
        trainer.save(Path(folder) / "wide.safetensors")
        events.stop()
        return events.peak_bytes
