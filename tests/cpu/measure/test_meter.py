"""The meter on real training runs, each in a fresh tuned process."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import patience
import pytest
import torch

from snugfit.errors import InputError
from snugfit.measure.fresh import TUNED_ENVIRONMENT
from snugfit.measure.meter import memory_reader, meter_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's peak is read from /proc")

RUN = """
import json, sys
import torch
from torch import nn
from snugfit.measure.meter import meter_for

width, depth, rows, steps = map(int, sys.argv[1:])
meter = meter_for("cpu")
meter.start()
torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps):
    loss = model(torch.ones(rows, width)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del loss
    if step + 1 == 10:
        ballast = bytearray(200_000_000)
    meter.after_step(step + 1)
meter.before_evaluation()
with torch.no_grad():
    model(torch.ones(40 * rows if steps == 4 else rows, width))
meter.after_evaluation()
result = meter.result(7)
result["parameters_bytes"] = sum(parameter.nbytes for parameter in model.parameters())
print(json.dumps(result))
"""


@functools.cache
def measure(*settings):
    return measure_anew(*settings)


def measure_anew(*settings):
    run = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, settings)],
        capture_output=True,
        text=True,
        timeout=patience.SECONDS,
        env={"OMP_NUM_THREADS": "1", **os.environ, **TUNED_ENVIRONMENT},
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return json.loads(run.stdout)


@linux
def test_tensor_bytes_and_process_peak_agree_within_two_percent():
    found = measure(1024, 12, 256, 3)
    assert found["peak_tensor_bytes"] >= 200_000_000
    assert found["peak_tensor_bytes"] > 4 * found["parameters_bytes"]  # weights, gradients and AdamW's two states
    assert abs(found["rss_bytes"] / found["peak_tensor_bytes"] - 1) < 0.02


def test_repeats_are_identical():
    first, second = measure(64, 3, 16, 10), measure_anew(64, 3, 16, 10)
    assert first["peak_tensor_bytes"] == second["peak_tensor_bytes"]
    assert first["host_tensor_bytes"] == 7
    assert set(first) == {"peak_tensor_bytes", "host_tensor_bytes", "rss_bytes", "parameters_bytes"}


def test_first_evaluation_is_seen_after_the_windows_of_the_steps():
    small, large = measure(64, 3, 16, 10), measure(64, 3, 16, 4)
    evaluation_bytes = 2 * 40 * 16 * 64 * 4  # input and output of one layer
    assert large["peak_tensor_bytes"] > small["peak_tensor_bytes"]
    assert large["peak_tensor_bytes"] >= evaluation_bytes + 3 * large["parameters_bytes"]


@linux
def test_the_process_is_read_over_building_and_the_first_steps_only():
    """After them freed memory may be kept, so what the process then holds is no longer what its tensors need."""
    assert measure(64, 3, 16, 10)["rss_bytes"] < 100_000_000


def test_unknown_device_and_window_are_refused():
    with pytest.raises(InputError, match="'meta' cannot be measured"):
        meter_for("meta")
    with pytest.raises(InputError, match="at least 1"):
        meter_for("cpu", window_steps=0)


@linux
def test_memory_counts_what_is_taken_after():
    read = memory_reader(torch.device("cpu"))
    before, _ = read()
    held = torch.ones(64 * 2**20, dtype=torch.uint8)
    now, peak = read()
    assert 60 * 2**20 < now - before < 80 * 2**20
    assert peak >= now
    del held
    assert memory_reader(torch.device("meta"))() is None
