"""What follows from two short recordings is the whole one: every storage, every event, every operator."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from benchmarks.gpu.configurations import CONFIGURATIONS, Configuration
from benchmarks.gpu.subjects import SUBJECTS

from snugfit.errors import SnugfitError
from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.recording.recording import Recording
from snugfit.recording.trace import Trace
from snugfit.simulator.given_training import record_given
from snugfit.simulator.real_run import Refused
from snugfit.workers.pool import shared_pool

LAYERS = {
    "vit_b_16": "num_layers",
    "vit_l_16": "num_layers",
    "deit_small": "depth",
    "bert_base": "num_hidden_layers",
    "bert_large": "num_hidden_layers",
    "distilbert": "n_layers",
    "deberta": "num_hidden_layers",
    "gpt2": "n_layer",
    "llama_1b": "num_hidden_layers",
    "qwen3_0.6b": "num_hidden_layers",
    "mixtral": "num_hidden_layers",
    "t5_small": "num_layers",
}
"""Models that are a row of equal blocks -> how their builder calls the number of these."""
DEPTH, SHARED, DEEP = 10, 14, 20
"""Blocks that are more than twice as many as the longer of two short recordings has; where that one has six, as processes
share the weights; and where it has nine, or others beside them."""
WHOLE = {
    "adafactor": "each of its updates takes lists of tensors, as many as have one shape",
    "every:": "the recipe chooses among the blocks",
    "vit_b_16 adapter=lora quantize=nf4": "a warning counts the matrices that are not packed",
}
"""Part of a configuration's name -> why it is recorded whole."""


def deep(configuration: Configuration, gpus: int, recipe: Recipe, sizes: Mapping[str, int]) -> Any:
    """The configuration's small model, with more layers, and with these sizes."""
    make = SUBJECTS[configuration.subject].build
    more_needed = recipe.offload_activations == "checkpoints" or str(recipe.checkpoint).startswith("blocks:")
    layers = DEEP if more_needed else SHARED if gpus > 1 else DEPTH
    more = {LAYERS[configuration.subject]: layers, **sizes}
    assert isinstance(make, functools.partial)
    if "sizes" in make.keywords:
        return make.func("cpu", **{**make.keywords, "sizes": {"cpu": {**make.keywords["sizes"]["cpu"], **more}}})
    return make.func("cpu", **{**make.keywords, "cpu": {**make.keywords["cpu"], **more}})


def numbered(trace: Trace) -> Trace:
    """The trace with its streams numbered from 0: torch numbers them over all runs of a process."""
    known: dict[int, int] = {}

    def rows(given: Any) -> Any:
        return tuple(row._replace(stream=known.setdefault(row.stream, len(known))) for row in given)

    return dataclasses.replace(
        trace, storages=rows(trace.storages), workspaces=rows(trace.workspaces), runs=rows(trace.runs)
    )


def recorded(
    configuration: Configuration, *, whole: bool, gpus: int, sizes: Mapping[str, int], **changes: Any
) -> Recording | str:
    """The recording of a configuration, its recipe changed, or what stands in its way. In a worker."""
    import torch

    run = configuration.run("cpu")
    recipe = run.recipe.replace(**changes)
    with torch.device("meta"):
        model, batch = deep(configuration, gpus, recipe, sizes), run.batch()
    card, how = Personality(capability=(8, 0)), {"evaluate": run.evaluate, "whole": whole}
    arguments = {**run.arguments, "gpus": gpus}
    try:
        found: Recording = record_given(model, batch, arguments, recipe, card, **how)
    except (SnugfitError, Refused) as error:
        return str(error)
    return found


def both(
    configuration: Configuration, gpus: int = 1, sizes: Mapping[str, int] = MappingProxyType({}), **changes: Any
) -> tuple[int, list[str]] | None:
    """Records a configuration by a few blocks and whole: the blocks that were left out, and what differs. In a worker.

    None where it cannot be simulated either way.
    """
    short, long = (recorded(configuration, whole=whole, gpus=gpus, sizes=sizes, **changes) for whole in (False, True))
    if isinstance(short, str) or isinstance(long, str):
        assert short == long
        return None
    found = differing(numbered(short.trace), numbered(long.trace))
    found += differing(
        dataclasses.replace(short, trace=long.trace), dataclasses.replace(long, blocks_left_out=short.blocks_left_out)
    )
    return short.blocks_left_out, found


def differing(one: Any, other: Any) -> list[str]:
    """The fields in which two records differ."""
    return [field.name for field in dataclasses.fields(one) if getattr(one, field.name) != getattr(other, field.name)]


ROWS = [one for one in CONFIGURATIONS if one.subject in LAYERS]


@pytest.mark.parametrize(
    "configuration", ROWS if os.environ.get("WHOLE_MATRIX") else ROWS[::5], ids=lambda one: one.name
)
def test_short_recordings_give_the_whole_one(configuration: Configuration) -> None:
    for package in configuration.packages:
        pytest.importorskip(package)
    compared = shared_pool().call(both, configuration)
    if compared is None:
        pytest.skip("it cannot be simulated at this size, with fewer blocks or with all")
    left_out, differences = compared
    assert differences == []
    assert (left_out > 0) != any(part in configuration.name for part in WHOLE)


@pytest.mark.parametrize("added_up", ["as-is", "fp32"])
def test_many_microbatches_of_adapters_follow_too(added_up: str) -> None:
    """The stretch of a microbatch that stands for others begins or ends with an operator of the first block."""
    pytest.importorskip("peft")
    rows = [one for one in ROWS if one.subject == "llama_1b" and "adapter=lora" in one.name]
    configuration = next(one for one in rows if one.run("cpu").recipe.quantize == "none")
    left_out, differences = shared_pool().call(both, configuration, microbatch_size=1, accumulate_dtype=added_up)
    assert left_out > 0 and differences == []


@pytest.mark.parametrize(
    "changes",
    [
        {"shard": "full"},
        {"shard": "gradients", "step_in_backward": True},
        {"shard": "hybrid:2", "checkpoint": "all", "microbatch_size": 1},
        {"shard": "full", "offload_parameters": "all", "reduce_gradients": "batch", "microbatch_size": 1},
        {"shard": "full", "tensor_parallel": 2, "precision": "bf16-mixed"},
        {"shard": "full", "offload_optimizer": True, "checkpoint": "blocks:17"},
    ],
    ids=str,
)
def test_processes_that_share_the_weights_follow_too(changes: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    configuration = next(one for one in ROWS if one.subject == "llama_1b" and one.name.endswith(" plain"))
    left_out, differences = shared_pool().call(both, configuration, 4, **changes)
    assert left_out > 0 and differences == []
    assert shared_pool().call(both, configuration, 4)[0] == 0  # gradients are packed over several blocks


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16-true", "checkpoint": "blocks:17"}, {"microbatch_size": 1}], ids=str
)
def test_processes_whose_weights_fill_buckets_follow_too(changes: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    configuration = next(one for one in ROWS if one.subject == "llama_1b" and one.name.endswith(" plain"))
    wide = {"hidden_size": 1024, "intermediate_size": 2**14}
    left_out, differences = shared_pool().call(both, configuration, 4, wide, **changes)
    assert left_out > 0 and differences == []


@pytest.mark.parametrize(
    ("subject", "changes"),
    [("vit_b_16", {"checkpoint": "blocks:3", "microbatch_size": 1}), ("t5_small", {"checkpoint": "blocks:16"})],
    ids=str,
)
def test_the_first_blocks_or_the_others_are_a_row(subject: str, changes: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    configuration = next(one for one in ROWS if one.subject == subject and one.name.endswith(" plain"))
    left_out, differences = shared_pool().call(both, configuration, **changes)
    assert left_out > 0 and differences == []


def test_as_many_blocks_as_stand_beside_them_are_recorded_whole() -> None:
    configuration = next(one for one in ROWS if one.subject == "vit_b_16" and one.name.endswith(" plain"))
    assert shared_pool().call(both, configuration, checkpoint="blocks:10") == (0, [])
