"""A large operator is answered from smaller ones only where a line is proved."""

import pytest
import torch

from snugfit.operators import operator_shrink, operator_truth
from snugfit.operators.operator_call import describe
from snugfit.operators.operator_shrink import Size, find, together, with_size
from snugfit.operators.operator_truth import Result, Truth

aten = torch.ops.aten
LARGE = Size(1e10, 1e8)


def meta(*shape, dtype=torch.float32):
    """A tensor of a large shape that takes no memory to speak of: pages of zeros are never touched."""
    return torch.empty(shape, dtype=dtype)


def relu(rows=4096, columns=1000):
    return describe(aten.relu.default, (meta(rows, columns),), {}, None)


def asked(takes):
    """A machine on which a call takes what a function of its first size says; remembers the sizes."""
    sizes = []

    def run(call):
        rows, columns = call.layouts()[0].shape
        sizes.append(rows)
        inner, results = takes(rows)
        result = Result((rows, columns), (columns, 1), torch.float32, rows * columns * 4)
        return Truth((inner, *([0] * results)), tuple(range(results)), (result,) * results)

    return run, sizes


@pytest.mark.parametrize(
    ("takes", "inner"),
    [
        (lambda rows: (0, 1), 0),
        (lambda rows: (777, 1), 777),
        (lambda rows: (rows * 4000 + 512, 1), 4096 * 4000 + 512),
        (lambda rows: (-(-rows // 64) * 64 * 4000, 1), 4096 * 4000),  # whole blocks: the remainder is kept
    ],
)
def test_a_line_is_followed(takes, inner):
    run, sizes = asked(takes)
    found = find(relu(), LARGE, run, free_bytes=0)
    assert found.proved and found.truth.peaks == (inner, 0)
    assert found.truth.results[0].shape == (4096, 1000) and found.truth.results[0].nbytes == 4096 * 1000 * 4
    assert len(sizes) == 4 and max(sizes) < 1000


@pytest.mark.parametrize(
    "takes",
    [
        lambda rows: (rows * rows * 100, 1),  # a square
        lambda rows: (rows * 4000 if rows < 200 else 10_000_000, 1),  # another kernel for many rows
        lambda rows: (2 ** (rows.bit_length()) * 4000, 1),  # powers of two
        lambda rows: (0, 1 if rows < 200 else 2),  # another number of results
    ],
)
def test_what_is_no_line_is_not_proved(takes):
    run, sizes = asked(takes)
    columns = relu(4096, 4)  # no other size to try
    found = find(columns, LARGE, run, free_bytes=0)
    assert not found.proved and max(sizes) < 4096
    sizes.clear()
    found = find(columns, LARGE, run, free_bytes=2**40)
    assert found.proved and sizes[-1] == 4096, "with memory for it, it is run as it is"


def test_a_small_call_is_run_as_it_is():
    run, sizes = asked(lambda rows: (rows, 1))
    assert find(relu(96), Size(1e6, 1e6), run, free_bytes=0).truth.peaks == (96, 0) and sizes == [96]


def test_a_call_with_a_workspace_is_never_made_smaller():
    steps, samples, hidden = 4096, 16, 96
    states = [meta(samples, hidden) for _ in range(2)]
    weights = (meta(4 * hidden, 8), meta(4 * hidden, hidden), meta(4 * hidden), meta(4 * hidden))
    output = meta(steps, samples, hidden)
    arguments = (meta(steps, samples, 8), *weights, *states, output, *states, output, *states)
    settings = (False, 2, hidden, 1, True, True, False, [], False, meta(1_000_000, dtype=torch.uint8))
    call = describe(aten.mkldnn_rnn_layer_backward.default, (*arguments, *settings), {}, None)
    asked_for = []

    def run(one):
        asked_for.append(one)
        return Truth((0,), (), ())

    assert find(call, LARGE, run, free_bytes=2**40).proved and asked_for == [call]
    assert not find(call, LARGE, run, free_bytes=0).proved and asked_for == [call]


def test_a_size_is_changed_wherever_it_occurs():
    x = meta(4, 300, 24).transpose(1, 2)
    call = describe(aten.slice_backward.default, (x, [4, 24, 600], 2, 0, 300, 1), {}, None)
    smaller = with_size(call, 300, 60)
    assert smaller.layouts()[0].shape == (4, 24, 60) and smaller.layouts()[0].stride == (1440, 1, 24)
    assert smaller.arguments[4] == 60
    sliced = describe(aten.relu.default, (meta(4, 300, 24)[:, :200],), {}, None)
    assert with_size(sliced, 200, 50) is None, "the stride between samples says nothing of 200"
    square = describe(aten.mm.default, (meta(64, 64), meta(64, 64)), {}, None)
    assert [one.stride for one in with_size(square, 64, 16).layouts()] == [(16, 1), (16, 1)]


def test_lists_are_asked_one_by_one():
    tensors = [meta(size) for size in (3000, 5, 3000, 7)]
    call = describe(aten._foreach_add.List, (tensors, tensors), {}, None)
    asked_of = []

    def run(part):
        (layout, _) = part.layouts()
        asked_of.append(layout.shape)
        return Truth((layout.shape[0], 1), (0,), (Result(layout.shape, (1,), torch.float32, layout.nbytes),))

    found = find(call, Size(0, 64 * 2**20), run, free_bytes=0)
    assert found.proved and sorted(asked_of) == [(5,), (7,), (3000,)]
    assert found.truth.peaks == (3000, 5, 3000, 7, 1) and found.truth.order == (0, 1, 2, 3)


def test_together():
    one, other = Truth((5, 0), (0,), ()), Truth((9, 2, 1), (1, 0), ())
    result = Result((1,), (1,), torch.float32, 4)
    one, other = one._replace(results=(result,)), other._replace(results=(result, result._replace(nbytes=0, shares=0)))
    both = together([one, other])
    assert both.peaks == (5, 9, 2, 1) and both.order == (0, 2, 1)
    assert both.results[2].shares == 1


def convolution(size=3, dilation=1, groups=1, samples=24):
    source, weight = meta(samples, 16, 20, 20), meta(24 if groups == 1 else 16, 16 // groups, size, size)
    pad = dilation * (size - 1) // 2
    return aten.convolution.default, (source, weight, None, [1, 1], [pad, pad], [dilation] * 2, False, [0, 0], groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "make",
    [
        convolution,
        lambda: convolution(3, dilation=2),
        lambda: convolution(7, groups=16),
        lambda: (aten.mm.default, (meta(1100, 96), meta(96, 160))),
        lambda: (aten.native_layer_norm.default, (meta(900, 24, 40).transpose(1, 2), [24], meta(24), meta(24), 1e-5)),
        lambda: (aten._softmax.default, (meta(800, 100), -1, False)),
        lambda: (aten._scaled_dot_product_flash_attention_for_cpu.default, (meta(24, 2, 50, 16),) * 3),
        lambda: (aten.embedding_dense_backward.default, (meta(1024, 64), torch.zeros(1024).long(), 500, -1, False)),
    ],
)
def test_what_smaller_sizes_say_is_what_the_operator_takes(make, dtype, monkeypatch):
    operator, args = make()
    args = tuple(one.to(dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in args)
    call = describe(operator, args, {}, None)
    truth = operator_truth.run(call)
    monkeypatch.setattr(operator_shrink, "AS_IT_IS", Size(0.6, 0.6))
    monkeypatch.setattr(operator_shrink, "SMALL", Size(0.5, 0.5))
    found = operator_shrink._proved(call, Size(1, 1), operator_truth.run, first_only=True)
    if found is None:
        return  # allowed: it is then run as it is
    assert found.results == truth.results and found.order == truth.order
    assert found.peaks == pytest.approx(truth.peaks, rel=0.002, abs=4096)
