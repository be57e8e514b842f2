"""Mixtures of experts whose stacked matrices are packed or adapted, trained alone and in several processes."""

import torch
from shard_tasks import among_others, whole
from text_models import MIXTURES, build

import snugfit
from snugfit.techniques.batch_share import share_of

EVERYTHING = {"adapter": "lora", "adapter_rank": 3, "adapter_targets": ("*",)}


def tokens():
    ids = torch.randint(0, 200, (2, 24), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def mixture(name, implementation="grouped_mm", **changes):
    model = build(MIXTURES[name], **changes)
    model.config._experts_implementation = implementation
    return model


def trained(name, recipe, rank=0, world=1):
    """The last loss and what is trained, whole, after three steps."""
    start, end = share_of(2, world, rank)
    batch = {key: ids[start:end] for key, ids in tokens().items()}
    model = mixture(name)
    trainer = snugfit.prepare(model, snugfit.Recipe(**recipe), device="cpu", optimizer="sgd", lr=0.3, batch_size=2)
    loss = [float(trainer.step(batch)) for _ in range(3)][-1]
    trainer.finish()
    named = model.named_parameters()
    return loss, {key: whole(one).detach().clone() for key, one in named if one.requires_grad}


def trained_in_several(rank, world, meeting, name, recipes):
    """The same of each recipe, by this rank's samples."""
    with among_others(rank, world, meeting):
        return [trained(name, recipe, rank, world) for recipe in recipes]
