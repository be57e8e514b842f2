"""One operator on the card: tiles and waves by hand, bytes, convolutions, and which arguments are read again."""

import pytest
import torch
from torch import nn

from snugfit.devices import device_named
from snugfit.fake_device.personality import Personality
from snugfit.operators.operator_costs import convolution_flops
from snugfit.recording import kernel_times as times
from snugfit.recording.kernel_times import run_seconds
from snugfit.recording.operator_run import Convolution, OperatorRun
from snugfit.simulator.own_step import simulate_step

A100, T4 = device_named("a100-40gb"), device_named("t4-16gb")
BANDWIDTH = 1555e9 * times.MEMORY_SHARE


def op(flops=0, read=0, written=0, dtype="float32", kernels=1, device="device", **more):
    return OperatorRun("aten.op", "m", "forward", flops, read, written, dtype, kernels, device, **more)


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


def convolution(dtype="float16", **more):
    shape = Convolution(64, 256, 256, 1, 9, 28 * 28, 28 * 28, 1, 3, True)
    return op(flops=convolution_flops(shape), dtype=dtype, convolution=shape, **more)


def test_a_convolution_is_timed_by_its_shape_and_copies_cost_their_bytes():
    plain, copied = run_seconds(convolution(), A100), run_seconds(convolution(again_bytes=10**9), A100)
    assert plain > 2 * times.KERNEL_SECONDS
    assert copied - plain == pytest.approx(1e9 / BANDWIDTH)


def test_tensor_cores_are_used_only_where_the_card_has_them_for_the_type():
    assert run_seconds(convolution("tf32"), T4) > 5 * run_seconds(convolution("float16"), A100)
    assert run_seconds(convolution("tf32"), T4) == pytest.approx(run_seconds(convolution("float32"), T4))


def test_a_block_of_batch_norm_moves_elements_at_the_cards_clock():
    clock = 19.5e12 / (2 * 64 * 108)
    for dtype, size in (("float32", 4), ("float16", 2)):
        few, many = op(read=10**9, blocks=16, dtype=dtype), op(read=10**9, blocks=10**4, dtype=dtype)
        rate = 16 * times.BLOCK_ELEMENTS * clock * size
        assert run_seconds(few, A100) == pytest.approx(1e9 / rate, rel=0.01)
        assert run_seconds(many, A100) == pytest.approx(1e9 / (BANDWIDTH * times.NORM_SHARE), rel=0.01)


def test_a_card_may_move_less_in_16_bits():
    h100 = device_named("h100-80gb")
    wide, narrow = (run_seconds(op(read=10**9, dtype=dtype), h100) for dtype in ("float32", "float16"))
    assert narrow / wide == pytest.approx(times.MEMORY_SHARE / h100.sustained["memory_in_16_bits"], rel=0.01)
    assert run_seconds(op(read=10**9, dtype="float16"), A100) == run_seconds(op(read=10**9), A100)


def test_rows_of_a_layer_norm_cost_time_besides_their_bytes():
    run = op(read=10**6, rows=108 * 10**6)
    assert run_seconds(run, A100) - run_seconds(run._replace(rows=0), A100) == pytest.approx(1e6 * times.ROW_SECONDS)


def test_rows_that_begin_anywhere_halve_a_product_on_tensor_cores():
    run = op(flops=2 * 4096**3, dtype="float16", product=(1, 4096, 4096, 4096))
    slow = run._replace(uneven=(4100,))
    assert run_seconds(slow, A100) == pytest.approx(2 * run_seconds(run, A100), rel=0.01)
    assert run_seconds(slow._replace(dtype="float32"), A100) == run_seconds(run._replace(dtype="float32"), A100)


def test_tensor_cores_and_ordinary_ones_reach_other_shares_of_their_peaks():
    card = device_named("rtx-3090")
    large = {"flops": 2 * 8192**3, "product": (1, 8192, 8192, 8192)}
    rates = {
        kind: large["flops"] / run_seconds(op(dtype=kind, **large), card) / 1e12 for kind in ("float32", "float16")
    }
    assert rates == pytest.approx({"float32": 24.6, "float16": 76}, rel=0.05)  # as measured on three such cards


def step(model, optimizer, batch):
    model(batch).mean().backward()


def recorded(*layers, last=False, batch=None):
    layout = torch.channels_last if last else torch.contiguous_format
    if batch is None:
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


def norm_of(runs):
    return next(run for run in runs if "batch_norm" in run.operator and "backward" not in run.operator)


def test_batch_norm_with_channels_first_reads_again_and_has_a_block_for_each_channel():
    norm = norm_of(recorded(nn.Conv2d(32, 128, 1), nn.BatchNorm2d(128)))
    assert norm.again_bytes >= 4 * 128 * 256 * 4 and norm.blocks == 128


@pytest.mark.parametrize("channels, wasted", [(128, 1), (96, 128 / 96), (16, 2)])
def test_batch_norm_with_channels_last_stays_on_the_chip_and_works_off_64_channels_at_once(channels, wasted):
    norm = norm_of(recorded(nn.Conv2d(32, channels, 1), nn.BatchNorm2d(channels), last=True))
    moved = norm.read_bytes + norm.written_bytes
    assert norm.blocks == 0 and norm.again_bytes == pytest.approx((wasted - 1) * moved, abs=1)


def test_batch_norm_with_channels_last_reads_again_what_the_chip_cannot_hold():
    images = torch.empty(64, 64, 112, 112, device="meta").to(memory_format=torch.channels_last)
    norm = norm_of(recorded(nn.BatchNorm2d(64), last=True, batch=images))
    assert norm.again_bytes == pytest.approx(norm.read_bytes, rel=0.01)


def frozen(channels, *, weighted):
    norm = nn.BatchNorm2d(channels).eval()
    return norm if weighted else norm.requires_grad_(False)


@pytest.mark.parametrize("last", [False, True])
def test_batch_norm_in_evaluation_mode_is_elementwise(last):
    layers = nn.Conv2d(32, 128, 1), frozen(128, weighted=False)
    norms = [run for run in recorded(*layers, last=last) if "batch_norm" in run.operator]
    assert len(norms) == 2 and {(run.again_bytes, run.blocks) for run in norms} == {(0, 0)}


@pytest.mark.parametrize("last, blocks", [(False, 128), (True, 0)])
def test_batch_norm_in_evaluation_mode_reads_gradients_again_for_those_of_its_weights(last, blocks):
    layers = nn.Conv2d(32, 128, 1), frozen(128, weighted=True)
    forward, backward = (run for run in recorded(*layers, last=last) if "batch_norm" in run.operator)
    assert (forward.again_bytes, forward.blocks) == (0, 0)
    assert (backward.again_bytes, backward.blocks) == (4 * 128 * 256 * 4, blocks)


def test_what_is_read_across_takes_more_of_the_bus_and_what_is_broadcast_a_little():
    class Odd(nn.Module):
        def forward(self, images):
            across = images.half().transpose(2, 3).contiguous()
            return across + across.mean((2, 3), keepdim=True) + images.half()

    runs = recorded(nn.Conv2d(32, 32, 1), Odd())
    clone = next(run for run in runs if run.operator == "aten.clone.default")
    assert clone.again_bytes == clone.read_bytes // 2 * 10  # 12 bytes for each element instead of 2
    added = [run for run in runs if run.operator == "aten.add.Tensor"]
    assert added[0].again_bytes == (added[0].read_bytes + added[0].written_bytes) // 3 and added[1].again_bytes == 0


def test_attention_over_197_tokens_is_not_aligned():
    class Scores(nn.Module):
        def forward(self, images):
            tokens = images.half().flatten(1)[:, : 197 * 32].reshape(-1, 197, 32)
            return (tokens @ tokens.transpose(1, 2)) @ tokens

    products = [run for run in recorded(nn.Conv2d(32, 32, 1), Scores()) if run.operator == "aten.bmm.default"]
    assert [run.aligned for run in products[:2]] == [True, False]


def test_layer_norm_and_long_softmax_read_again():
    runs = {run.operator: run for run in recorded(nn.LayerNorm(16), nn.Softmax(-1))}
    assert runs["aten.native_layer_norm.default"].again_bytes >= 4 * 32 * 256 * 4
    assert runs["aten._softmax.default"].again_bytes == 0
    long = {run.operator: run for run in recorded(nn.Flatten(), nn.Linear(8192, 2048), nn.Softmax(-1))}
    assert long["aten._softmax.default"].again_bytes == 4 * 2048 * 4


def test_shares_are_shares():
    shares = (times.MEMORY_SHARE, times.CORRECTED_MEMORY_SHARE, times.PRODUCT_SHARE, times.LINK_SHARE)
    assert all(0 < share < 1 for share in shares)
