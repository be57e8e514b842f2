"""What other tools run is named where it is the natural next step, and nowhere else."""

from types import SimpleNamespace

import pytest

from snugfit.planner.elsewhere import CONTEXT, EXPERT, PIPELINE, ways_elsewhere


def estimate(*, ranks=("0-7",), activations=30, experts=None, attention=None):
    anatomy = {"weights": 60, "activations": activations, "temporaries": 10}
    return SimpleNamespace(
        ranks=ranks,
        anatomy_bytes=anatomy,
        peak_allocated_bytes=sum(anatomy.values()),
        experts_bytes=experts or {},
        attention_kernels={"flash": 32} if attention is None else attention,
    )


@pytest.mark.parametrize(
    ("given", "samples", "fits", "named"),
    [
        ({}, 1, True, ()),
        ({}, 1, False, (PIPELINE,)),
        ({"activations": 90}, 1, True, (CONTEXT,)),
        ({"activations": 90}, 2, True, ()),  # smaller microbatches, or more GPUs
        ({"activations": 90, "attention": {}}, 1, True, ()),
        ({"activations": 90}, 1, False, (PIPELINE, CONTEXT)),
        ({"experts": {"weights": 5}}, 4, True, (EXPERT,)),
        ({"ranks": (), "activations": 90, "experts": {"weights": 5}}, 1, False, ()),
    ],
)
def test_ways_elsewhere(given, samples, fits, named):
    assert ways_elsewhere(estimate(**given), samples=samples, fits=fits) == named


def test_a_way_names_its_tools():
    assert "torchtitan or Megatron-Core" in str(PIPELINE)
