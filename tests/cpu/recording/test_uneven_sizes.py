"""Sizes that tensor cores cannot load whole: by hand, and of models as they are recorded."""

import dataclasses

import pytest
import torch
from torch import nn

import snugfit
from snugfit.devices import device_named
from snugfit.recipe import Recipe
from snugfit.recording.clock import clock
from snugfit.recording.operator_run import Convolution, OperatorRun
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.recording.uneven_sizes import padded_run, uneven_sizes

A100, T4 = device_named("a100-40gb"), device_named("t4-16gb")


def product(rows, columns, inner, uneven=(), dtype="bfloat16", module="head"):
    flops = 2 * rows * columns * inner
    read, written = 2 * (rows + columns) * inner, 2 * rows * columns
    return OperatorRun(
        "aten.mm.default", module, "forward", flops, read, written, dtype, 1, "device",
        product=(1, rows, columns, inner), uneven=uneven,
    )  # fmt: skip


def trace_of(*runs):
    builder = TraceBuilder()
    for run in runs:
        builder.run(run)
    return builder.build()


def seconds(trace, card=A100):
    return clock(trace, card).step_seconds


def test_the_loss_is_that_of_the_same_operators_at_the_padded_size():
    forward, backward = product(8192, 50257, 768), product(8192, 768, 50257, uneven=(50257,))
    (found,) = uneven_sizes(trace_of(forward, backward), A100)
    assert found.sizes == (50257,) and found.padded[0] in (50264, 50304) and found.dtype == "bfloat16"
    assert found.modules == ("head",) and found.operators == 1  # the forward product loads rows of 768
    to = {50257: found.padded[0]}
    padded = trace_of(padded_run(forward, to), padded_run(backward, to))
    assert found.lost_seconds == pytest.approx(seconds(trace_of(forward, backward)) - seconds(padded))


def test_a_padded_product_has_the_work_of_its_size():
    run = padded_run(product(64, 50257, 32, uneven=(50257,)), {50257: 50304})
    assert run == product(64, 50304, 32)


def test_what_is_whole_or_on_ordinary_cores_loses_nothing():
    assert not uneven_sizes(trace_of(product(8192, 50304, 768), product(8192, 768, 50304)), A100)
    assert not uneven_sizes(trace_of(product(8192, 768, 50257, uneven=(50257,), dtype="float32")), A100)
    assert "bfloat16" not in T4.flops  # computes them in float32
    assert not uneven_sizes(trace_of(product(8192, 768, 50257, uneven=(50257,))), T4)
    assert uneven_sizes(trace_of(product(8192, 768, 50257, uneven=(50257,), dtype="float16")), T4)


def test_a_step_that_waits_for_its_host_loses_nothing():
    small = product(8, 16, 10, uneven=(10,))
    assert not uneven_sizes(trace_of(*[small] * 50), A100)


def test_sizes_are_told_apart_and_the_dearest_comes_first():
    one, other = product(8192, 4096, 1001, uneven=(1001,), module="a"), product(8192, 768, 50257, uneven=(50257,))
    found = uneven_sizes(trace_of(one, other, other), A100)
    assert [row.sizes for row in found] == [(50257,), (1001,)] and [row.operators for row in found] == [2, 1]
    assert found[0].lost_seconds > found[1].lost_seconds > 0


def test_convolutions_want_channels_in_eights():
    shape = Convolution(64, 250, 250, 1, 9, 28 * 28, 28 * 28, 1, 0, True)
    run = product(1, 1, 1)._replace(product=(), convolution=shape, flops=10**9, module="conv")
    (found,) = uneven_sizes(trace_of(run), A100)
    assert found.sizes == (250,) and found.padded == (256,)
    grouped = run._replace(convolution=shape._replace(groups=2))
    assert not uneven_sizes(trace_of(grouped), A100)


class Odd(nn.Module):
    def __init__(self, hidden, classes):
        super().__init__()
        self.first, self.head = nn.Linear(1024, hidden), nn.Linear(hidden, classes)

    def forward(self, inputs):
        return self.head(self.first(inputs))


@pytest.mark.parametrize(
    "hidden, classes, precision, sizes",
    [
        (4096, 20001, "bf16-mixed", {20001}),
        (4097, 20000, "bf16-mixed", {4097}),
        (4096, 20000, "bf16-mixed", set()),
        (4097, 20001, "fp32", set()),
    ],
)
def test_an_estimate_names_them(hidden, classes, precision, sizes):
    batch = ((16384, 1024), torch.float32), ((16384,), torch.int64)
    found = snugfit.estimate(
        Odd(hidden, classes), batch, loss=lambda output, batch: nn.functional.cross_entropy(output, batch[1]),
        recipe=Recipe(precision=precision), device="a100-40gb",
    )  # fmt: skip
    assert {size for row in found.uneven_sizes for size in row.sizes} == sizes
    assert sum(row.lost_seconds for row in found.uneven_sizes) < found.step_seconds
    assert ("uneven sizes" in found.card()) == bool(sizes)
    assert [dataclasses.asdict(row)["lost_seconds"] for row in found.uneven_sizes] == [
        row["lost_seconds"] for row in found.to_mapping()["uneven_sizes"]
    ]
