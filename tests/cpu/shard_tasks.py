"""What ranks do in `techniques/test_shard.py`, each in its own process, over gloo."""

import contextlib
import datetime
import warnings

import torch
import torch.distributed as dist
from rank_processes import SECONDS
from small_models import cross_entropy, make_batches, make_model
from torch.distributed.tensor import DTensor

import snugfit
from snugfit.techniques.shard import share_of

STEPS = 3
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


@contextlib.contextmanager
def among_others(rank, world, meeting):
    """This rank in a process group over all ranks."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    yield
    dist.destroy_process_group()  # not after an error: others may wait for this rank, and learn of it when it is gone


def share(batch, rank, world):
    """This rank's samples of a batch."""
    start, end = share_of(len(batch[0]), world, rank)
    return tuple(tensor[start:end] for tensor in batch)


def whole(tensor):
    """A tensor as one process has it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def build(name, dtype):
    """A model without what differs between a batch and its shares: dropout and statistics of the batch."""
    model = make_model(name, dtype)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout | torch.nn.MultiheadAttention):
            module.p = module.dropout = 0.0
    return model


def trained(name, fields, settings, batches, dtype, **more):
    """Losses and weights after a step for each batch."""
    warnings.simplefilter("ignore", snugfit.SnugfitWarning)
    trainer = snugfit.prepare(
        build(name, dtype), snugfit.Recipe(**fields), loss=cross_entropy, lr=0.01, device="cpu", **settings, **more
    )
    losses = [float(trainer.step(batch)) for batch in batches]
    trainer.finish()
    return losses, {key: whole(value).detach().clone() for key, value in trainer.model.named_parameters()}


def train(rank, world, meeting, name, fields, settings, samples, last, dtype):
    """Returns losses and weights of a training on this rank's shares; the last batch may be smaller."""
    with among_others(rank, world, meeting):
        batches = [*make_batches(name, samples, STEPS - 1, dtype), *make_batches(name, last, 1, dtype)]
        return trained(name, fields, settings, [share(batch, rank, world) for batch in batches], dtype)


def message(rank, world, meeting, fields, settings, samples=8):
    """Returns the message of the error that a preparation or its first step gives."""
    with among_others(rank, world, meeting):
        try:
            trained("mlp", fields, settings, [share(make_batches("mlp", samples, 1)[0], rank, world)], torch.float64)
        except snugfit.SnugfitError as error:
            return str(error)
        return ""
