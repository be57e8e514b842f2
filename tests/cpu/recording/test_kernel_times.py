"""One operator on the card: tiles and waves by hand, bytes, convolutions, and which arguments are read again."""

import pytest
import torch
from torch import nn

from snugfit.devices import device_named
from snugfit.fake_device.operator_costs import convolution_flops
from snugfit.fake_device.personality import Personality
from snugfit.recording import kernel_times as times
from snugfit.recording.kernel_times import product_share, run_seconds
from snugfit.recording.trace import Convolution, OperatorRun
from snugfit.simulator.session import simulate_step

A100, T4 = device_named("a100-40gb"), device_named("t4-16gb")
BANDWIDTH = 1555e9 * times.MEMORY_SHARE


def op(flops=0, read=0, written=0, dtype="float32", kernels=1, device="device", **more):
    return OperatorRun("aten.op", "m", "forward", flops, read, written, dtype, kernels, device, **more)


@pytest.mark.parametrize(
    "product, sms, share",
    [
        ((1, 256, 128, 64), 1, 1.0),
        ((1, 128, 128, 64), 1, 0.9),  # a smaller tile is a slower one
        ((1, 257, 128, 64), 1, 0.9 * 257 / 320),  # a row too much: five tiles of 64 rows waste least
        ((1, 2560, 1280, 64), 100, 1.0),  # a hundred tiles, one wave
        ((1, 2560, 1408, 64), 100, 0.9 * 880 / 900),  # ten tiles more: nine waves of the smallest ones
        ((1, 64, 64, 64), 100, 0.009),  # nothing to split
        ((1, 256, 128, 2048), 100, 0.9 * 0.64),  # eight small tiles, split in eight along the inner side
        ((16, 256, 128, 64), 16, 1.0),
    ],
)
def test_tiles_and_waves(product, sms, share):
    assert product_share(product, sms) == pytest.approx(share)


def test_a_large_product_runs_at_the_measured_share_of_the_peak():
    side = 8192
    run = op(flops=2 * side**3, dtype="bfloat16", product=(1, side, side, side))
    h200 = device_named("h200-141gb")
    tflops = run.flops / run_seconds(run, h200) / 1e12
    assert tflops == pytest.approx(788, rel=0.05)  # the measurement that the constant is from
    assert run_seconds(run, A100) > run_seconds(run, h200)


def test_a_card_that_cannot_hold_its_clock_is_slower_than_its_peak_says():
    run = op(flops=2 * 4096**3, product=(1, 4096, 4096, 4096))
    assert run.flops / run_seconds(run, T4) == pytest.approx(8.1e12 * 0.4, rel=0.1)


def test_elementwise_is_bound_by_bytes_and_views_are_free():
    assert run_seconds(op(read=10**9, written=10**9), A100) == pytest.approx(times.KERNEL_SECONDS + 2e9 / BANDWIDTH)
    assert run_seconds(op(read=10**9, kernels=0), A100) == 0
    once, twice = op(read=10**9, written=10**9), op(read=10**9, written=10**9, again_bytes=10**9)
    assert run_seconds(twice, A100) == pytest.approx(1.5 * run_seconds(once, A100), rel=0.01)


def test_error_correction_in_ordinary_memory_takes_bandwidth():
    assert run_seconds(op(written=10**9), T4) == pytest.approx(1e9 / (320e9 * times.CORRECTED_MEMORY_SHARE), rel=0.01)


def test_copies_take_the_link():
    assert run_seconds(op(read=10**9, written=10**9, device="link"), A100) == pytest.approx(
        times.KERNEL_SECONDS + 1e9 / (31.508e9 * times.LINK_SHARE)
    )


def convolution(inputs=256, outputs=256, groups=1, gradients=0, last=True):
    shape = Convolution(64, inputs, outputs, groups, 9, 28 * 28, 28 * 28, 1, gradients, last)
    return op(flops=convolution_flops(shape), dtype="float16", convolution=shape)


def test_a_dense_convolution_is_the_product_of_unfolded_images():
    product = (1, 64 * 28 * 28, 256, 256 * 9)
    same = op(flops=2 * 64 * 784 * 256 * 256 * 9, dtype="float16", product=product)
    assert run_seconds(convolution(), A100) == pytest.approx(run_seconds(same, A100))
    assert run_seconds(convolution(gradients=3), A100) == pytest.approx(2 * run_seconds(convolution(), A100), rel=0.2)


def test_a_depthwise_convolution_is_bound_by_its_bytes():
    images = 2 * 64 * 256 * 784 * 2
    assert run_seconds(convolution(groups=256), A100) == pytest.approx(images / BANDWIDTH, rel=0.05)
    both = run_seconds(convolution(groups=256, gradients=3), A100)
    assert both == pytest.approx(2 * images / BANDWIDTH, rel=0.05)


def test_channels_first_is_turned_over_in_16_bits_only():
    images = 2 * 64 * 256 * 784 * 2
    first, last = convolution(last=False), convolution()
    assert run_seconds(first, A100) - run_seconds(last, A100) == pytest.approx(2 * images / BANDWIDTH, rel=0.05)
    single = [run_seconds(one._replace(dtype="float32"), A100) for one in (first, last)]
    assert single[0] == single[1]


def test_few_channels_a_group_do_not_pay_for_empty_tiles():
    dense, grouped = convolution(), convolution(groups=64)
    assert grouped.flops * 64 == dense.flops
    assert run_seconds(grouped, A100) < run_seconds(dense, A100)


def step(model, optimizer, batch):
    model(batch).mean().backward()


def recorded(*layers, last=False):
    layout = torch.channels_last if last else torch.contiguous_format
    batch = torch.empty(4, 32, 16, 16, device="meta").to(memory_format=layout)
    build = lambda: nn.Sequential(*layers).to(memory_format=layout)  # noqa: E731
    return simulate_step(step, build, None, batch, personality=Personality(capability=(8, 0)), steps=1).trace.runs


def test_what_is_recorded_of_a_grouped_convolution():
    runs = [run for run in recorded(nn.Conv2d(32, 64, 3, stride=2, padding=1, groups=8)) if run.convolution]
    assert [run.operator for run in runs] == ["aten.convolution.default", "aten.convolution_backward.default"]
    assert runs[0].convolution == Convolution(4, 32, 64, 8, 9, 256, 64, 4, 0, False)
    assert runs[1].convolution == runs[0].convolution._replace(gradients=2)  # nobody wants the batch's gradient
    assert [run.flops for run in runs] == [2 * 4 * 64 * 64 * 4 * 9] * 2


@pytest.mark.parametrize("last", [False, True])
def test_layout_goes_through_convolutions_as_on_a_card(last):
    layers = nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.Conv2d(32, 16, 1)
    runs = [run for run in recorded(*layers, last=last) if run.convolution]
    assert [run.convolution.channels_last for run in runs] == [last] * 6


@pytest.mark.parametrize("last", [False, True])
def test_batch_norm_reads_again_where_cudnn_does_not_keep_its_input(last):
    runs = {run.operator: run for run in recorded(nn.Conv2d(32, 32, 1), nn.BatchNorm2d(32), last=last)}
    norm = next(run for name, run in runs.items() if "batch_norm" in name and "backward" not in name)
    assert (norm.again_bytes >= 4 * 32 * 256 * 4) is not last and (norm.again_bytes == 0) is last


def test_layer_norm_and_long_softmax_read_again():
    runs = {run.operator: run for run in recorded(nn.LayerNorm(16), nn.Softmax(-1))}
    assert runs["aten.native_layer_norm.default"].again_bytes >= 4 * 32 * 256 * 4
    assert runs["aten._softmax.default"].again_bytes == 0
    long = {run.operator: run for run in recorded(nn.Flatten(), nn.Linear(8192, 2048), nn.Softmax(-1))}
    assert long["aten._softmax.default"].again_bytes == 4 * 2048 * 4


def test_shares_are_shares():
    shares = (times.MEMORY_SHARE, times.CORRECTED_MEMORY_SHARE, times.PRODUCT_SHARE, times.LINK_SHARE)
    assert all(0 < share < 1 for share in shares)
    assert len(times.TILES) == len(times.TILE_SHARES) and max(times.TILE_SHARES) == 1
