"""The clock: host against card, streams, and the published order of the ViT-L/16 ladder."""

import pytest

from snugfit.devices import DEVICES, device_named
from snugfit.recording.clock import (
    HOST_LAUNCH_SECONDS,
    HOST_OPERATOR_SECONDS,
    Timing,
    clock,
)
from snugfit.recording.kernel_times import run_seconds
from snugfit.recording.operator_run import Collective, OperatorRun
from snugfit.recording.trace_builder import TraceBuilder

A100 = device_named("a100-40gb")
ISSUE = HOST_OPERATOR_SECONDS + HOST_LAUNCH_SECONDS


def op(flops=0, read=0, written=0, dtype="float32", kernels=1, device="device", **more):
    return OperatorRun("aten.op", "m", "forward", flops, read, written, dtype, kernels, device, **more)


def timing(*runs, device=A100):
    build = TraceBuilder()
    for run in runs:
        build.run(run)
    return clock(build.build(), device)


def test_small_operators_are_bound_by_the_host_and_large_ones_by_the_card():
    small = timing(*[op(written=512)] * 100)
    assert small.bound == "host"
    assert small.step_seconds == pytest.approx(100 * ISSUE, rel=0.02)
    large = timing(*[op(written=10**9)] * 100)
    assert large.bound == "device"
    assert large.step_seconds == pytest.approx(large.device_seconds, rel=0.01)


def test_copies_on_a_side_stream_overlap_and_waits_are_kept():
    work, copy = op(written=10**9), op(read=10**7, device="link")
    alone = timing(work, work).step_seconds
    assert timing(work, copy._replace(stream=1), work).step_seconds == pytest.approx(alone, rel=0.03)
    assert timing(work, copy, work).step_seconds == pytest.approx(alone + run_seconds(copy, A100), rel=0.03)
    waiting = timing(copy._replace(stream=1), work._replace(after=(0,)))
    assert waiting.step_seconds == pytest.approx(ISSUE + waiting.link_seconds + waiting.device_seconds, rel=0.001)


def test_a_blocking_operator_stops_the_host():
    work = op(written=10**9)
    free = timing(work, *[op(written=512)] * 50)
    held = timing(work._replace(blocking=True), *[op(written=512)] * 50)
    assert held.step_seconds == pytest.approx(work_seconds(work) + 50 * ISSUE, rel=0.05)
    assert held.step_seconds > free.step_seconds
    assert held.host_seconds == free.host_seconds


def work_seconds(run):
    return run_seconds(run, A100)


def test_only_the_asked_step_counts():
    build = TraceBuilder()
    for step, size in enumerate((10**9, 10**8, 2 * 10**8)):
        build.mark("data", True, step)
        build.mark("data", False, step)
        build.run(op(written=size))
    trace = build.build()
    assert clock(trace, A100) == clock(trace, A100, step=2)
    assert [clock(trace, A100, step=i).device_seconds for i in range(3)] == [
        pytest.approx(work_seconds(op(written=size))) for size in (10**9, 10**8, 2 * 10**8)
    ]


def test_no_time_where_a_number_is_missing():
    assert timing(op(), device=device_named("cpu")) is None
    assert timing(op(), device=device_named("mi300x")) is None
    assert timing(op(flops=1, dtype="float64")) is None
    v100 = device_named("v100-16gb")
    assert timing(op(flops=10**12, dtype="bfloat16"), device=v100) == timing(op(flops=10**12), device=v100)


# The published ladder, as operators written by hand ------------------------------------------------------------------


def vit_large(batch, *, dtype, bytes_each, microbatches=1, moments=2, mixed=False, parameters=303_300_000):
    """Forward and backward of ViT-L/16 (24 blocks of width 1024, 197 tokens) and a foreach update, as operators.

    A recording of torchvision's has 933 operators that compute, forward and backward; this has 816.
    """
    build = TraceBuilder()
    tokens, width = batch * 197, 1024
    math = dtype

    def product(rows, columns, inner, count=1):
        size = count * (rows * inner + inner * columns) * bytes_each
        flops = 2 * count * rows * columns * inner
        written = count * rows * columns * bytes_each
        build.run(op(flops, size, written, math, product=(count, rows, columns, inner)))

    def elementwise(values, *, reads=1, writes=1, each=bytes_each):
        build.run(op(read=reads * values * each, written=writes * values * each))

    for _ in range(microbatches):
        for _ in range(24):
            for inner, outer in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)):
                if mixed:  # weights and activations are cast to 16 bits and back
                    elementwise(inner * outer, each=3)
                    elementwise(tokens * inner, each=3)
                product(tokens, outer, inner)
                product(tokens, inner, outer)  # gradient of the input
                product(inner, outer, tokens)  # gradient of the weight
                elementwise(tokens * outer, writes=0)  # gradient of the bias
                elementwise(inner * outer, reads=2)  # added to the gradient that is there
            for _ in range(7):
                product(197, 197, 64, batch * 16)  # attention, forward and backward
            for _ in range(6):  # two norms, two sums, GELU, and their backward
                elementwise(tokens * width, reads=2)
            elementwise(tokens * 4 * width, reads=2)
    for _ in range(4 + 3 * moments):  # a few groups of tensors, each a few kernels
        build.run(op(read=2 * parameters * bytes_each, written=parameters * bytes_each, kernels=20))
    return build.build()


def seconds_per_image(batch, *, microbatches=1, device=A100, **settings):
    trace = vit_large(batch, microbatches=microbatches, **settings)
    return clock(trace, device).step_seconds / (batch * microbatches)


BF16 = {"dtype": "bfloat16", "bytes_each": 2}


def test_the_published_ladder_comes_out_in_the_published_order():
    rungs = {
        "bf16": seconds_per_image(64, **BF16),  # 2.88 minutes
        "mixed": seconds_per_image(64, dtype="float16", bytes_each=2, mixed=True),  # 3.45
        "batch 16": seconds_per_image(16, **BF16),  # 3.96
        "4 x 4, SGD": seconds_per_image(4, microbatches=4, moments=0, **BF16),  # 12.89
        "4 x 4": seconds_per_image(4, microbatches=4, **BF16),  # 12.91
        "fp32": seconds_per_image(64, dtype="float32", bytes_each=4),  # 17.94
    }
    assert list(rungs) == sorted(rungs, key=rungs.get), rungs


@pytest.mark.parametrize("device", ["a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-192gb"])
def test_accumulation_is_slower_than_the_batch_it_stands_for(device):
    card = device_named(device)
    whole = seconds_per_image(16, device=card, **BF16)
    parts = seconds_per_image(4, microbatches=4, device=card, **BF16)
    assert 1.5 < parts / whole < 4.5  # published: 3.3


@pytest.mark.parametrize(
    "device", [device for device in DEVICES if not device.bytes_only], ids=lambda device: device.name
)
def test_a_smaller_microbatch_is_never_faster(device):
    times = [seconds_per_image(64 // n, microbatches=n, device=device, **BF16) for n in (1, 4, 16)]
    assert times == sorted(times)


# Collectives -----------------------------------------------------------------------------------------------------------

COMPUTE, RANKS = 0, 1
WORK = op(written=10**9)


def gather(nbytes, *, ranks=8, machines=1, stream=RANKS, **more):
    collective = Collective("all_gather", nbytes, ranks, machines)
    return op(device="ranks", stream=stream, collective=collective)._replace(operator="c10d::_allgather_base_", **more)


def test_a_collective_that_nobody_waits_for_is_hidden():
    alone = timing(WORK, WORK, WORK)
    hidden = timing(gather(10**6), WORK, WORK, WORK)
    assert hidden.communication_seconds == run_seconds(gather(10**6), A100) > 0
    assert hidden.exposed_communication_seconds == pytest.approx(0, abs=1e-9)
    assert hidden.step_seconds == pytest.approx(alone.step_seconds + ISSUE, rel=1e-6)
    assert alone.communication_seconds == alone.exposed_communication_seconds == 0


def test_a_collective_that_computation_waits_for_is_exposed():
    waiting = timing(gather(10**9), WORK._replace(after=(0,)))
    assert waiting.exposed_communication_seconds == pytest.approx(waiting.communication_seconds - ISSUE)
    assert waiting.step_seconds == pytest.approx(ISSUE + waiting.communication_seconds + waiting.device_seconds)


def test_prefetched_gathers_are_hidden_as_far_as_computation_reaches():
    """Each layer waits for its own gather; the next one is issued before: what is longer decides, but for the first."""

    def layers(nbytes, prefetch, count=6):
        build, gathers, before = TraceBuilder(), [], ()
        for layer in range(count):
            while len(gathers) < min(count, layer + 1 + prefetch):
                gathers.append(build.run(gather(nbytes, after=() if prefetch else before)))
            before = (build.run(WORK._replace(after=(gathers[layer],))),)
        return clock(build.build(), A100)

    work, short, long = run_seconds(WORK, A100), run_seconds(gather(10**8), A100), run_seconds(gather(10**9), A100)
    assert short < work < long
    assert layers(10**8, 1).exposed_communication_seconds == pytest.approx(short, rel=0.2)
    partly = layers(10**9, 1)
    assert partly.exposed_communication_seconds == pytest.approx(6 * long - 5 * work, rel=0.05)
    never = layers(10**9, 0)
    assert never.exposed_communication_seconds == pytest.approx(never.communication_seconds, rel=0.05)


def test_a_kernel_that_waits_for_a_collective_holds_up_no_other_stream():
    """As FSDP2 reduces gradients: a kernel after the reduction, while the backward pass goes on."""
    small = op(written=10**6)
    before, after = small._replace(stream=RANKS), small._replace(stream=RANKS)
    step = timing(WORK, before._replace(after=(0,)), gather(10**9), after, *[WORK] * 20)
    assert step.step_seconds == pytest.approx(step.device_seconds, rel=0.1)
    assert step.exposed_communication_seconds == pytest.approx(0, abs=1e-4)
    assert step.step_seconds >= step.device_seconds


def test_gap_filling_keeps_the_work():
    late = op(written=10**6)._replace(stream=RANKS)
    runs = [gather(10**9), late, WORK, late, *[WORK] * 3]
    step = timing(*runs)
    assert step.step_seconds >= step.device_seconds + ISSUE
    assert step.step_seconds < step.device_seconds + step.communication_seconds


def test_links_inside_and_between_machines_work_at_once():
    inside, between = gather(10**9), gather(10**9, ranks=2, machines=2, stream=2)
    both = timing(inside, between)
    assert both.communication_seconds == pytest.approx(run_seconds(inside, A100) + run_seconds(between, A100))
    assert both.step_seconds == pytest.approx(2 * ISSUE + run_seconds(between, A100), rel=0.001)
    same = timing(inside, inside._replace(stream=2))
    assert same.step_seconds == pytest.approx(ISSUE + 2 * run_seconds(inside, A100), rel=0.001)


def test_no_step_time_without_a_known_link():
    assert timing(gather(10**6, machines=2), device=device_named("rtx-4090")) is None
    assert timing(gather(10**6), device=device_named("rtx-4090")).communication_seconds > 0


def test_the_mean_of_steps_has_communication_too():
    one, two = timing(gather(10**9), WORK._replace(after=(0,))), timing(WORK)
    mean = Timing.mean([one, two])
    assert mean.communication_seconds == one.communication_seconds / 2
    assert mean.exposed_communication_seconds == one.exposed_communication_seconds / 2
    assert one.bound == "ranks"
