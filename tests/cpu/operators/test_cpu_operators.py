"""What is said of an operator on this processor is what the allocator sees when it is called, whichever processor it is."""

import operator as python
import os
import resource
import subprocess
import sys
import warnings

import patience
import pytest
import torch
from torch._subclasses import FakeTensorMode

from snugfit import SnugfitWarning
from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.measure.fresh import TUNED_ENVIRONMENT
from snugfit.operators import cpu_operators, operator_shrink, operator_truth
from snugfit.operators.cpu_operators import CpuOperators
from snugfit.operators.operator_costs import cost_of
from snugfit.operators.operator_truth import results_of

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.fixture
def machine(tmp_path):
    return CpuOperators(tmp_path)


def rand(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def measured(call):
    """Bytes at the highest point of a call, its results included; the second of two calls."""
    call()
    events = AllocatorEvents()
    events.start()
    result = call()
    events.stop()
    del result
    return events.peak_bytes


def ask(machine, operator, args, kwargs):
    """Returns what is said, and the most bytes of it, results included."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        to_fake = mode.from_tensor
        fake_args = [to_fake(a) if isinstance(a, torch.Tensor) else
                     [to_fake(b) for b in a] if isinstance(a, list) and a and isinstance(a[0], torch.Tensor) else a
                     for a in args]  # fmt: skip
        result = operator(*fake_args, **kwargs)
    known = {t.untyped_storage()._cdata for t in operator_truth.tensors_in(fake_args)}
    fresh = operator_truth.new_tensors(result, known)
    inner = machine.ask(operator, fake_args, kwargs, fresh, cost_of(operator, fake_args, kwargs, result, fresh))
    sizes = [one.nbytes for one in results_of(fresh)]
    for number, real in inner.corrected:
        sizes[number] = real.nbytes
    ordered = [sizes[number] for number in inner.order] if inner.order else sizes
    return inner, max([sum(sizes), *(sum(ordered[: space.results]) + space.nbytes for space in inner.spaces)])


def convolution(source, outputs, size, *, stride=1, padding=0, dilation=1, transposed=False, groups=1, dims=2):
    channels = source.shape[1]
    shape = (channels, outputs // groups) if transposed else (outputs, channels // groups)
    weight = rand(*shape, *[size] * dims, dtype=source.dtype)
    settings = ([stride] * dims, [padding] * dims, [dilation] * dims, transposed, [0] * dims, groups)
    return aten.convolution.default, (source, weight, None, *settings)


def convolution_backward(*args, bias=True, **settings):
    forward, given = convolution(*args, **settings)
    sizes = [given[1].shape[0]] if bias else None
    return aten.convolution_backward.default, (
        torch.ones_like(forward(*given)), given[0], given[1], sizes, *given[3:], [True, True, bias],
    )  # fmt: skip


def attention(*shape, dtype=torch.float32, backward=False):
    query, key, value = (rand(*shape, dtype=dtype).transpose(1, 2) for _ in range(3))
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    if not backward:
        return forward, (query, key, value)
    output, sums = forward(query, key, value)
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return back, (torch.ones_like(output), query, key, value, output, sums, 0.0, False)


BF16 = torch.bfloat16
LAST = torch.channels_last
OPERATORS = {
    "3x3": lambda: convolution(rand(2, 17, 13, 11), 23, 3, padding=1),
    "5x5": lambda: convolution(rand(2, 16, 21, 19), 24, 5, padding=2),
    "5x5 of images, backward": lambda: convolution_backward(rand(2, 3, 21, 19), 24, 5, padding=2),
    "dilated": lambda: convolution(rand(2, 24, 17, 15), 16, 3, padding=4, dilation=4),
    "dilated, backward": lambda: convolution_backward(rand(2, 24, 17, 15), 16, 3, padding=4, dilation=4),
    "strided, channels last": lambda: convolution(rand(2, 12, 15, 15).to(memory_format=LAST), 20, 3, stride=2),
    "channels last, backward": lambda: convolution_backward(rand(2, 12, 15, 15).to(memory_format=LAST), 20, 3),
    "bf16, backward": lambda: convolution_backward(rand(2, 12, 15, 15, dtype=BF16), 20, 3, padding=1),
    "depthwise 7x7, backward": lambda: convolution_backward(rand(2, 24, 14, 14), 24, 7, padding=3, groups=24),
    "grouped": lambda: convolution(rand(2, 24, 14, 14), 36, 3, groups=4),
    "transposed": lambda: convolution(rand(2, 24, 9, 9), 15, 3, stride=2, transposed=True),
    "transposed, backward": lambda: convolution_backward(
        rand(2, 24, 9, 9), 15, 3, stride=2, transposed=True, bias=False
    ),
    "3-D": lambda: convolution(rand(2, 3, 5, 13, 13), 8, 3, padding=1, dims=3),
    "3-D, backward": lambda: convolution_backward(rand(2, 6, 5, 13, 13), 8, 3, padding=1, dims=3),
    "1-D": lambda: convolution(rand(3, 10, 101), 7, 9, padding=4, dims=1),
    "not contiguous": lambda: convolution(rand(2, 13, 16, 11).transpose(1, 2), 12, 3),
    "max pool": lambda: (aten.max_pool2d_with_indices.default, (rand(2, 5, 33, 31), [3, 3], [2, 2], [1, 1])),
    "3-D max pool": lambda: (aten.max_pool3d_with_indices.default, (rand(2, 5, 9, 17, 15), [3, 3, 3], [2, 2, 2])),
    "upsampled": lambda: (aten.upsample_bilinear2d.vec, (rand(2, 5, 9, 7), None, False, [2.0, 2.0])),
    "batch norm": lambda: (
        aten.native_batch_norm.default, (rand(5, 7, 9, 9), rand(7), rand(7), rand(7), rand(7), True, 0.1, 1e-5),
    ),
    "layer norm": lambda: (
        aten.native_layer_norm.default, (rand(5, 33, 17).transpose(1, 2), [33], rand(33), rand(33), 1e-5),
    ),
    "mm": lambda: (aten.mm.default, (rand(130, 70), rand(70, 90))),
    "bf16 mm": lambda: (aten.mm.default, (rand(130, 70, dtype=BF16), rand(70, 90, dtype=BF16))),
    "bf16 addmm": lambda: (
        aten.addmm.default, (rand(90, dtype=BF16), rand(130, 70, dtype=BF16), rand(90, 70, dtype=BF16).t()),
    ),
    "bf16 bmm": lambda: (aten.bmm.default, (rand(9, 33, 21, dtype=BF16), rand(9, 21, 40, dtype=BF16))),
    "bmm of an expanded weight": lambda: (
        aten.bmm.default, (rand(9, 33, 21, dtype=BF16), rand(21, 40, dtype=BF16).expand(9, 21, 40)),
    ),
    "attention": lambda: attention(2, 197, 3, 24),
    "attention, backward": lambda: attention(2, 197, 3, 24, backward=True),
    "bf16 attention, backward": lambda: attention(2, 50, 3, 24, dtype=BF16, backward=True),
    "embedding, backward": lambda: (
        aten.embedding_dense_backward.default,
        (rand(4, 9, 12).transpose(0, 1), torch.randint(0, 50, (9, 4)), 50, -1, False),
    ),
    "softmax": lambda: (aten._softmax.default, (rand(7, 11, 13).transpose(0, 2), 1, False)),
    "norms in another type": lambda: (
        aten._foreach_norm.Scalar, ([rand(999, dtype=BF16), rand(70, 3, dtype=BF16)], 2.0, torch.float32),
    ),
    "norms of a list": lambda: (aten._foreach_norm.Scalar, ([rand(9, 9), rand(1000), rand(0)], 2.0)),
    "sort": lambda: (aten.sort.default, (rand(37, 51), 0)),
    "topk": lambda: (aten.topk.default, (rand(37, 51), 5)),
    "index_put": lambda: (
        aten._index_put_impl_.default, (rand(9, 7), [torch.tensor([1, 3, 1])], rand(3, 7), True),
    ),
    "scatter_add": lambda: (aten.scatter_add.default, (rand(9, 7), 0, torch.randint(0, 9, (5, 7)), rand(5, 7))),
    "dropout": lambda: (aten.native_dropout.default, (rand(33, 17), 0.1, True)),
    "permutation": lambda: (aten.randperm.default, (1000,)),
    "whole numbers divided": lambda: (
        aten.floor_divide.default, (torch.randint(1, 9, (100,)), torch.randint(1, 9, (100,))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_bytes_are_those_that_the_allocator_gives(machine, name):
    operator, args = OPERATORS[name]()
    _, predicted = ask(machine, operator, args, {})
    assert predicted == measured(lambda: operator(*args))


SINGLE, HALF = torch.ones(10_000), torch.ones(10_000, dtype=BF16)
WHOLE, DOUBLE = torch.ones(10_000, dtype=torch.long), torch.ones(10_000, dtype=torch.float64)
KINDS = {"single": SINGLE, "half": HALF, "whole": WHOLE, "double": DOUBLE, "number": torch.tensor(2.0)}


@pytest.mark.parametrize("left", ["single", "half", "whole", "double"])
@pytest.mark.parametrize("right", KINDS)
@pytest.mark.parametrize("name", ["add", "div", "mul_"])
def test_operands_of_two_types(machine, left, right, name):
    """Elementwise kernels of the CPU convert operands of another type first."""
    left, right = KINDS[left].clone(), KINDS[right]
    if name == "mul_" and not torch.can_cast(torch.result_type(left, right), left.dtype):
        with pytest.raises(RuntimeError):
            left.mul_(right)
        return
    operator = getattr(aten, name).Tensor
    _, predicted = ask(machine, operator, (left, right), {})
    assert predicted == pytest.approx(measured(lambda: operator(left, right)), abs=8)  # a number of Python's own


def lstm(steps, samples, inputs, hidden, dtype):
    """Arguments of one layer as torch gives them to oneDNN."""
    sizes = [(4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,), (samples, hidden)]
    weights = [torch.zeros(size, dtype=dtype) for size in (*sizes, (samples, hidden))]
    source = torch.zeros(steps, samples, inputs, dtype=dtype)
    return (source, *weights, False, [], 2, hidden, 1, True, False, False, True)


@pytest.mark.parametrize(
    "shape",
    [
        (32, 8, 64, 64, torch.float32),
        (7, 3, 16, 16, torch.float32),
        (5, 160, 37, 53, torch.float32),
        (32, 8, 64, 64, torch.bfloat16),
        (5, 3, 37, 53, torch.bfloat16),
    ],
)
def test_lstm_layers_have_the_workspace_that_they_really_keep(machine, shape):
    args = lstm(*shape)
    forward, backward = aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default
    try:
        results = forward(*args)
    except RuntimeError as error:
        pytest.skip(f"oneDNN has no such layer with the instructions that it may use here: {error}")
    inner, predicted = ask(machine, forward, args, {})
    assert predicted == measured(lambda: forward(*args))
    assert dict(inner.corrected)[3].nbytes == results[3].untyped_storage().nbytes() > results[0].nbytes
    with torch.no_grad():
        quiet, predicted = ask(machine, forward, args, {})
        assert predicted == measured(lambda: forward(*args))
    assert all(real.nbytes == 0 for number, real in quiet.corrected if number == 3), "nothing is kept without gradients"
    for gradient in (torch.zeros_like(results[0]), results[0][:1].expand(results[0].shape)):
        settings = (None, None, False, 2, shape[3], 1, True, True, False, [], False, results[3])
        given = (*args[:7], *results[:3], gradient, *settings)
        inner, predicted = ask(machine, backward, given, {})
        assert predicted == measured(lambda given=given: backward(*given))
        real = [one.nbytes for one in results_of(backward(*given))]
        assert all(result.nbytes == real[number] for number, result in inner.corrected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_get_the_same_share_of_rows(machine, dtype):
    grouped = getattr(aten, "_grouped_mm", None)
    if grouped is None:
        pytest.skip("this torch has no grouped products")
    offsets = torch.tensor([16, 32, 48, 64], dtype=torch.int32)
    args = (rand(64, 32, dtype=dtype), rand(4, 32, 48, dtype=dtype), offsets)
    try:
        real = measured(lambda: grouped(*args))
    except RuntimeError as error:
        pytest.skip(f"this torch has no grouped products in {dtype} on cpu: {error}")
    from snugfit.operators.operator_call import describe
    from snugfit.operators.operator_truth import run

    truth = run(describe(grouped.default, args, {}, None))
    assert truth.results[0].shape == (64, 48)
    assert max(peak + 64 * 48 * args[0].element_size() * number for number, peak in enumerate(truth.peaks)) == real


@pytest.mark.parametrize(
    "labels", [torch.ones(24, dtype=torch.long), torch.ones(4, 6, dtype=torch.long)], ids=["row", "table"]
)
def test_a_ctc_loss_has_all_labels(labels):
    from snugfit.operators.operator_call import describe
    from snugfit.operators.operator_truth import run

    probabilities, lengths = rand(50, 4, 32).log_softmax(2), torch.full((4,), 50)
    args = (probabilities, labels, lengths, torch.full((4,), 6), 0, False)
    losses, alpha = aten._ctc_loss.Tensor(*args)
    assert [one.shape for one in run(describe(aten._ctc_loss.Tensor, args, {}, None)).results] == [(4,), alpha.shape]
    backward = (losses, *args[:4], losses, alpha, 0, False)
    assert run(describe(aten._ctc_loss_backward.Tensor, backward, {}, None)).results[0].shape == (50, 4, 32)


def test_the_quantiser(machine):
    pytest.importorskip("bitsandbytes", reason="nf4 needs bitsandbytes")
    operator = torch.ops.bitsandbytes.quantize_4bit.default
    args = (rand(64 * 1000, dtype=BF16), 64, "nf4", torch.uint8)
    assert ask(machine, operator, args, {})[1] == measured(lambda: operator(*args))


def test_an_answer_is_asked_for_once_and_the_same_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_operators, "processors_are_short", lambda: False)
    operator, args = OPERATORS["bf16, backward"]()
    first = CpuOperators(tmp_path)
    answers = [ask(first, operator, args, {}) for _ in range(2)]
    again = CpuOperators(tmp_path)
    answers.append(ask(again, operator, args, {}))
    answers.append(ask(CpuOperators(tmp_path / "empty"), operator, args, {}))
    assert (first.asked, again.asked) == (1, 0)
    assert answers[1] == answers[2] == answers[0]
    assert all(0 < answer[0].seconds < 10 for answer in answers)
    bytes_alone = [(answer[0]._replace(seconds=None), *answer[1:]) for answer in answers]
    assert all(answer == bytes_alone[0] for answer in bytes_alone)


def test_what_was_timed_on_a_busy_machine_is_timed_again_on_a_quiet_one(tmp_path, monkeypatch):
    operator, args = OPERATORS["attention"]()
    seconds = []
    for busy, takes in ((True, 9.0), (True, 8.0), (False, 0.001), (False, 7.0)):
        monkeypatch.setattr(cpu_operators, "processors_are_short", lambda busy=busy: busy)
        monkeypatch.setattr(operator_truth, "best_seconds", lambda _, takes=takes: takes)
        machine = CpuOperators(tmp_path)
        seconds += [ask(machine, operator, args, {})[0].seconds for _ in range(2)]
    assert seconds == [9.0] * 4 + [0.001] * 4


def test_threads_have_answers_of_their_own(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = CpuOperators(tmp_path)
        torch.set_num_threads(2)
        two = CpuOperators(tmp_path)
    finally:
        torch.set_num_threads(before)
    assert one.processor.in_words().endswith("1 thread") and two.processor.in_words().endswith("2 threads")
    operator, args = OPERATORS["attention"]()
    ask(one, operator, args, {})
    ask(two, operator, args, {})
    assert two.asked == 1


def test_random_numbers_stay_as_they_were(machine):
    state = torch.get_rng_state()
    operator, args = OPERATORS["permutation"]()
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        machine.ask(operator, args, {}, [torch.empty(1000, dtype=torch.long)], cost_of(operator, args, {}, (), ()))
        assert torch.equal(torch.get_rng_state(), state)
    assert machine.asked == 1


def test_what_reaches_beyond_the_process_is_not_run(machine):
    c10d = pytest.importorskip("torch.distributed", reason="no distributed torch")
    if not c10d.is_available():
        pytest.skip("no distributed torch")
    operator = torch.ops._c10d_functional.all_reduce.default
    inner = machine.ask(operator, (rand(3), "sum", "0"), {}, [rand(3)], cost_of(operator, (), {}, (), ()))
    assert inner.spaces == () and machine.asked == 0


def test_what_refuses_to_run_is_said(machine):
    args = (rand(3, 4), rand(5, 6))
    with pytest.warns(SnugfitWarning, match="aten.mm.default could not be run by itself"):
        inner = machine.ask(aten.mm.default, args, {}, [rand(3, 6)], cost_of(aten.relu.default, args, {}, (), ()))
    assert inner.spaces == ()


def test_what_is_not_proved_is_said_each_time(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(operator_shrink, "AS_IT_IS", operator_shrink.Size(0, 0))
    monkeypatch.setattr(operator_shrink, "free_host_bytes", lambda: 0)
    operator, args = aten.relu.default, (rand(7, 7),)
    for _ in range(2):
        with pytest.warns(SnugfitWarning, match="on 7x7 is too large to be run on this machine"):
            ask(machine, operator, args, {})
    assert machine.asked == 1


def test_nothing_is_said_of_ordinary_operators(machine):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnugfitWarning)
        for name in ("mm", "dropout", "sort"):
            ask(machine, *OPERATORS[name](), {})


def test_results_take_memory_in_the_order_that_is_said(machine):
    """Sizes in the order of allocation, read off the events themselves."""
    from snugfit.private_torch.allocators import watched

    operator, args = OPERATORS["5x5 of images, backward"]()
    inner, _ = ask(machine, operator, args, {})
    results, blocks = watched(lambda: operator(*args))
    owners = {one.untyped_storage().data_ptr(): number for number, one in enumerate(results)}
    last = {address: i for i, (nbytes, address) in enumerate(blocks) if nbytes > 0}
    order = tuple(owners[address] for address, _ in sorted(last.items(), key=python.itemgetter(1)) if address in owners)
    assert (inner.order or (0, 1, 2)) == order


_PAGES_OF_TIMED_RUNS = """
import resource
import torch
from snugfit.operators import operator_truth
from snugfit.operators.operator_call import describe

values = torch.zeros(2**17)
operator_truth.run(describe(torch.ops.aten.mul.Tensor, (values, values), {}, None))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    values * values
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the settings are glibc's")
def test_timed_operators_keep_their_memory_also_in_what_a_measured_process_starts():
    done = subprocess.run(
        [sys.executable, "-c", _PAGES_OF_TIMED_RUNS], env={**os.environ, **TUNED_ENVIRONMENT},
        capture_output=True, text=True, timeout=patience.SECONDS, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 4 * 2**19 // resource.getpagesize()  # of 20 runs of 512 KiB each
