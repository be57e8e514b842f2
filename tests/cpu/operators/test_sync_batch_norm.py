"""Batch norm over all processes: what it keeps, makes, sends and takes inside, as CUDA's kernels do."""

import pytest
import torch
from torch import nn

from snugfit import Recipe
from snugfit.operators import sync_batch_norm
from snugfit.operators.kernels import workspaces
from snugfit.simulator.given_training import simulate_training

CHANNELS, IMAGES, SIDE, RANKS = 64, 8, 16, 4
SAVED_BYTES = IMAGES * CHANNELS * SIDE * SIDE * 2
H100 = (9, 0)


def build():
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS))
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


def loss(output, batch):
    return output.float().square().mean()


@pytest.fixture(scope="module")
def trace(pool):
    batch = (torch.empty(RANKS * IMAGES, 3, SIDE, SIDE, device="meta"),)
    arguments = {"loss": loss, "batch_size": RANKS * IMAGES, "gpus": RANKS}
    recipe = Recipe(precision="bf16-mixed")
    return simulate_training(build(), recipe, batch, arguments=arguments, evaluate=False, pool=pool).trace


def of_norm(trace, operator):
    return [row.nbytes for row in trace.storages if row.operator.startswith(f"aten.{operator}.") and row.module == "1"]


def test_what_the_kernels_make(trace):
    numbers = CHANNELS * 4  # the kernels add up in float32, whatever the images are
    assert set(of_norm(trace, "batch_norm_stats")) == {numbers}
    assert set(of_norm(trace, "batch_norm_gather_stats_with_counts")) == {numbers}
    assert set(of_norm(trace, "batch_norm_elemt")) == {SAVED_BYTES}
    steps = len(of_norm(trace, "batch_norm_elemt"))
    assert of_norm(trace, "batch_norm_backward_reduce") == [numbers] * 4 * steps
    assert of_norm(trace, "batch_norm_backward_elemt") == [SAVED_BYTES] * steps


def test_what_processes_send_each_other(trace):
    sent = {(run.phase, *run.collective[:3]) for run in trace.runs if run.collective}
    assert ("forward", "all_gather", RANKS * (2 * CHANNELS + 1) * 4, RANKS) in sent
    assert ("backward", "all_reduce", 2 * CHANNELS * 4, RANKS) in sent


def test_every_process_counts(trace):
    """The statistics of each process are selected by a mask that is true for all of them."""
    selected = of_norm(trace, "index")
    assert set(selected) == {RANKS * CHANNELS * 4, RANKS * 4}


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, True)])
def test_unwanted_gradients_are_made_with_channels_last_only(last, wanted):
    layout = torch.channels_last if last else torch.contiguous_format
    images = torch.empty(2, 4, 3, 3, device="meta", dtype=torch.float16).to(memory_format=layout)
    mean, deviation = sync_batch_norm.statistics(images, 1e-5)
    weight = torch.empty(4, device="meta", dtype=torch.float16)
    made = sync_batch_norm.sums(images, images, mean, deviation, weight, *wanted)
    assert [one is not None for one in made] == [last or one for one in (wanted[0], *wanted)]
    assert {one.dtype for one in made[:2] if one is not None} <= {torch.float32}
    assert {one.dtype for one in made[2:] if one is not None} <= {torch.float16}
    assert sync_batch_norm.gradient(images, images).is_contiguous(memory_format=layout)
    assert sync_batch_norm.normalised(images).stride() == images.stride()


def test_without_weights_there_is_nothing_for_them():
    images = torch.empty(2, 4, device="meta")
    mean, deviation = sync_batch_norm.statistics(images, 1e-5)
    made = sync_batch_norm.sums(images, images, mean, deviation, None, True, False, False)
    assert [one.numel() for one in made] == [4, 4, 0, 0]  # [N, C] lies as with channels last


@pytest.mark.parametrize(
    ("shape", "blocks", "groups"),
    [
        ((32, 64, 56, 56), 128, 2),  # 32 channels by 16 threads of 16 pixels: 392 blocks, of which 128
        ((8, 64, 16, 16), 8, 2),
        ((2, 64, 16, 16), 0, 0),  # 2 blocks are too few to share
        ((32, 3, 56, 56), 25, 2),  # 2 channels by 256 threads
    ],
)
def test_blocks_that_share_a_channel_write_their_parts(shape, blocks, groups):
    images = torch.empty(shape, device="meta").to(memory_format=torch.channels_last)

    def inside(operator, *args):
        return sum(one.nbytes for one in workspaces(f"aten.{operator}.default", args, {}, H100))

    parts = shape[1] * blocks * 4
    assert inside("batch_norm_stats", images) == 4 * parts + 4 * groups
    assert inside("batch_norm_backward_reduce", images, images) == 2 * parts + 4 * groups
    assert inside("batch_norm_stats", images.contiguous()) == 0
