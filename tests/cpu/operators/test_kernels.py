"""What kernels are said to take inside themselves, beside what an H100 took (`benchmarks/gpu/kernel_probe.py`)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch

from snugfit.operators.convolution_layout import result_shape
from snugfit.operators.kernels import workspaces

MEASURED = Path(__file__).parents[3] / "benchmarks/results/nvidia-h100-80gb-hbm3-torch2.11.0/kernels.jsonl"
ROWS = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
H100 = (9, 0)


def meta(*shape, dtype, turned=False):
    made = torch.empty(shape[::-1] if turned else shape, dtype=dtype, device="meta")
    return made.t() if turned else made


def dtype_of(row):
    return getattr(torch, row["dtype"].removeprefix("torch."))


def inside(operator, *args):
    return max((one.nbytes for one in workspaces(f"aten.{operator}", args, {}, H100)), default=0)


def _norm(name, row):
    words = name.split()
    kinds = {"": (False, False), "turned": (True, True), "grad turned": (True, False)}
    gradient, given = kinds[" ".join(words[1:])]
    shape, dtype = (row["rows"], row["width"]), dtype_of(row)
    return meta(*shape, dtype=dtype, turned=gradient), meta(*shape, dtype=dtype, turned=given)


def _predicted(row):
    call = row["call"]
    first = call.split()[0]
    if first in ("softmax", "log_softmax"):
        return inside(f"_{first}.default", _norm(call, row)[0], -1)
    if first in ("softmax_backward", "log_softmax_backward"):
        gradient, _ = _norm(call, row)
        return inside(f"_{first}_data.default", gradient, meta(*gradient.shape, dtype=gradient.dtype), -1)
    if first == "layer_norm":
        return inside("native_layer_norm.default", _norm(call, row)[0])
    if first == "layer_norm_backward":
        return inside("native_layer_norm_backward.default", *_norm(call, row))
    if first == "roll":
        dimensions = [1, 2] if row["dims"] == 2 else [1]
        return inside("roll.default", meta(32, 56, 56, 96, dtype=dtype_of(row)), [3] * len(dimensions), dimensions)
    if first == "sum":
        return inside("sum.dim_IntList", meta(row["rows"], row["width"], dtype=dtype_of(row)), [0])
    if first == "embedding_dense_backward":
        indices = meta(row["indices"], dtype=torch.long)
        return inside(call + ".default", meta(row["indices"], row["width"], dtype=dtype_of(row)), indices, row["words"])
    return None


SMALL = 4096
"""Bytes below which nothing is counted: numbers that blocks of threads count by."""
NARROW = 128
"""Columns under which the gradients of a norm's weights are added up in parts whose number no source gives."""


def test_kernels_take_what_an_h100_took():
    compared = 0
    for row in ROWS:
        predicted = _predicted(row)
        if predicted is None or (row["call"].startswith("layer_norm_backward") and row["width"] < NARROW):
            continue
        assert predicted == pytest.approx(row["inside"], abs=SMALL), row
        compared += 1
    assert compared > 100


def convolution(row):
    """What is said of a convolution or its gradients, and what was measured."""
    dtype, last = dtype_of(row), row["channels_last"]
    layout = torch.channels_last if last else torch.contiguous_format
    x, w = (meta(*row[name], dtype=dtype).to(memory_format=layout) for name in ("x", "w"))
    how = (row["stride"], row["padding"], row["dilation"], False, [0, 0], row["groups"])
    if row["call"] == "convolution":
        return inside("convolution.default", x, w, None, *how)
    gradient = meta(*result_shape(x, w, *how[:3]), dtype=dtype).to(memory_format=layout)
    return inside("convolution_backward.default", gradient, x, w, None, *how, row["mask"])


def test_convolutions_convert_as_on_an_h100():
    """Half of all to 1 MiB, and all together within a tenth; single channels and images apart are left to heuristics."""
    rows = [row for row in ROWS if row["call"].startswith("convolution") and row["x"][1] % 8 == 0]
    errors = [convolution(row) - row["inside"] for row in rows]
    assert len(rows) > 1000
    assert statistics.median(abs(one) for one in errors) < 2**20
    assert abs(sum(errors)) < 0.1 * sum(row["inside"] for row in rows)
    large = [(error, row) for error, row in zip(errors, rows, strict=True) if row["w"][2] > 1 and row["inside"] > 2**24]
    close = [abs(error) <= 0.15 * row["inside"] for error, row in large]
    assert sum(close) > 0.8 * len(close)
