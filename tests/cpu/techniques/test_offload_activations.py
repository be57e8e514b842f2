"""Activation offload: what moves, what stays, what comes back, in which order on a device with streams."""

import gc
from contextlib import contextmanager

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.techniques.base import Setup
from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.offload_activations.apply import DEPTH, MIN_BYTES, ActivationOffload
from snugfit.techniques.streams import CopyStream

CPU = torch.device("cpu")


def offload(model, **fields):
    setup = Setup(
        recipe=Recipe(**{"offload_activations": "all", **fields}), workload=snugfit.Workload(), device=CPU,
        pool=HostPool(CPU), copies=CopyStream(CPU),
    )  # fmt: skip
    technique = ActivationOffload(setup)
    technique.watch(model)
    return technique


def forward(technique, model, x):
    with technique.around_training_forward():
        return model(x).square().sum()


def test_bytes_go_to_the_pool_and_come_back():
    batch = make_batches("mlp", 128, 1)[0]
    model = make_model("mlp")
    trainer = snugfit.prepare(model, Recipe(offload_activations="all"), loss=cross_entropy, device="cpu")
    seen = []
    model.head.register_full_backward_pre_hook(lambda *_: seen.append(trainer.host_bytes))
    trainer.step(batch)
    width = 128 * 24 * 8
    assert seen[0] > 9 * width, "norm outputs, relu outputs and inputs of three blocks"
    assert trainer.peak_host_bytes >= seen[0]
    assert trainer.host_bytes == 0


def test_parameters_buffers_and_small_tensors_stay():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, 64))
            self.register_buffer("mask", torch.ones(64, 64))

        def forward(self, x):
            return (x * self.weight) * self.mask @ self.weight.t()[:, :3].reshape(3, 64).t()

    model = Scaled()
    technique = offload(model)
    x = torch.randn(64, 64, requires_grad=True)
    forward(technique, model, x)
    moved = technique.setup.pool.peak_bytes
    # x, the masked product; the reshape of the weight is a copy of 3 x 64; the small output stays
    assert moved <= 2 * 64 * 64 * 4 + 3 * 64 * 4 + 64 * 3 * 4
    small = nn.Linear(4, 4)
    technique = offload(small)
    forward(technique, small, torch.randn(MIN_BYTES // 16 - 1, 4, requires_grad=True))
    assert technique.setup.pool.peak_bytes == 0
    forward(technique, small, torch.randn(MIN_BYTES // 16, 4, requires_grad=True))
    assert technique.setup.pool.peak_bytes == 2 * MIN_BYTES


def test_what_is_saved_twice_moves_once():
    class Square(nn.Module):
        def forward(self, x):
            return x * x + x * x.detach().sin()

    technique = offload(Square())
    x = torch.randn(512, requires_grad=True)
    with technique.around_training_forward():
        y = Square()(x)
        assert technique.setup.pool.nbytes == 2 * 512 * 4, "x once for all three products, and its sine"
    y.sum().backward()
    assert torch.allclose(x.grad, 2 * x + x.detach().sin())


def test_expanded_views_do_not_grow():
    technique = offload(nn.Identity())
    bias = torch.randn(1, 256, requires_grad=True)
    with technique.around_training_forward():
        y = bias.expand(1000, 256).exp() * bias.detach().expand(1000, 256)
        assert technique.setup.pool.nbytes == 1000 * 256 * 4, "the result of exp alone"
    y.sum().backward()
    assert torch.allclose(bias.grad, 1000 * (bias * bias.exp()).detach(), rtol=1e-4)


def test_channels_last_strides_come_back():
    strides = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            strides.append(ctx.saved_tensors[0].stride())
            return gradient * 2

    technique = offload(nn.Identity())
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    sliced = torch.randn(64, 64)[:, ::2].requires_grad_()
    with technique.around_training_forward():
        y = Watched.apply(x).sum() + Watched.apply(sliced).sum()
    y.backward()
    assert x.stride() in strides and (32, 1) in strides


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_every_dtype_survives(dtype):
    technique = offload(nn.Identity())
    value = torch.randn(2000).to(dtype)
    with technique.new_pass():
        stashed = technique._pack(value)
    assert not isinstance(stashed, torch.Tensor)
    assert torch.equal(stashed._offload.fetch(stashed), value)


def test_conjugates_of_what_is_saved_are_saved_themselves():
    """They lie where it lies, and are told from it by a bit."""

    class Power(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32, dtype=torch.complex128)

        def forward(self, x):
            z = self.layer(torch.complex(x, x.flip(1)))
            return (z * z.conj()).real + z.imag * z.conj().imag

    torch.manual_seed(0)
    model, x = Power(), torch.randn(64, 32, dtype=torch.double)
    model(x).square().sum().backward()
    plain = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    forward(offload(model), model, x).backward()
    assert all(torch.equal(weight.grad, other) for weight, other in zip(model.parameters(), plain, strict=True))


def test_what_stays_is_still_checked_for_changes():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    total = forward(offload(model), model, torch.randn(32, 64))
    with torch.no_grad():
        model[1].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_sparse_tensors_stay():
    model = nn.Linear(64, 8)
    weight = model.weight
    batch = torch.eye(64).to_sparse()
    technique = offload(model)
    with technique.around_training_forward():
        total = torch.sparse.mm(batch, weight.t()).sum()
    total.backward()
    assert torch.equal(weight.grad, torch.ones(8, 64))


def test_retained_graphs_unpack_again():
    model = make_model("mlp")
    technique = offload(model)
    x = make_batches("mlp", 128, 1)[0][0].requires_grad_()
    loss = forward(technique, model, x)
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x)
    (plain,) = torch.autograd.grad(model(x).square().sum(), x)
    assert torch.equal(first, second) and torch.equal(first, plain)
    del loss
    assert technique.setup.pool.nbytes == 0


def test_a_saved_output_leaves_no_cycle():
    """The model's output is itself saved for backward (exp, softmax); memory must go without the collector."""
    model = nn.Sequential(nn.Linear(8, 256), nn.Softmax(-1))
    technique = offload(model)
    gc.collect()
    gc.disable()
    try:
        with technique.around_training_forward():
            output = model(torch.randn(64, 8))
        assert technique.setup.pool.nbytes > 0
        del output
        assert technique.setup.pool.nbytes == 0
        with technique.around_training_forward():
            output = model(torch.randn(64, 8))
        output.sum().backward()
        assert technique.setup.pool.nbytes == 0
    finally:
        gc.enable()


def test_named_modules_and_unknown_names():
    batch = make_batches("mlp", 128, 1)[0]
    peaks = {}
    for choice in ("blocks.0", "blocks.0,blocks.1", "blocks:2", "all"):
        trainer = snugfit.prepare(
            make_model("mlp"), Recipe(offload_activations=choice), loss=cross_entropy, device="cpu"
        )
        trainer.step(batch)
        peaks[choice] = trainer.peak_host_bytes
    assert 0 < peaks["blocks.0"] < peaks["blocks.0,blocks.1"] == peaks["blocks:2"] < peaks["all"]
    with pytest.raises(InputError, match=r"no module named 'bloks.0'; did you mean 'blocks.0'"):
        snugfit.prepare(make_model("mlp"), Recipe(offload_activations="bloks.0"), loss=cross_entropy, device="cpu")


def test_with_checkpointing_only_block_inputs_move():
    trainer = snugfit.prepare(
        make_model("mlp"), Recipe(offload_activations="checkpoints", checkpoint="all"), loss=cross_entropy, device="cpu"
    )
    trainer.step(make_batches("mlp", 128, 1)[0])
    assert trainer.peak_host_bytes == 3 * 128 * 24 * 8
    assert trainer.host_bytes == 0


def test_evaluation_moves_nothing():
    trainer = snugfit.prepare(make_model("mlp"), Recipe(offload_activations="all"), loss=cross_entropy, device="cpu")
    trainer.evaluate_batch(make_batches("mlp", 128, 1)[0])
    assert trainer.peak_host_bytes == 0


class FakeStreams:
    """Stands in for a device module: events and streams that write down who waits for whom."""

    def __init__(self):
        self.log, self.now, self.compute, self.events = [], None, FakeStream(self, "compute"), 0
        self.now = self.compute

    def Event(self):
        self.events += 1
        return FakeEvent(self, self.events)

    def current_stream(self):
        return self.now

    @contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before


class FakeStream:
    def __init__(self, device, name):
        self.device, self.name = device, name

    def wait_event(self, event):
        assert event.stream is not None, "waited for an event that was never recorded"
        self.device.log.append((self.name, "waits for", event.stream, event.number))


class FakeEvent:
    def __init__(self, device, number):
        self.device, self.number, self.stream = device, number, None

    def record(self, stream):
        self.stream = stream.name
        self.device.log.append((stream.name, "marks", stream.name, self.number))

    def synchronize(self):
        self.device.log.append(("host", "waits for", self.stream, self.number))


def fake_streams(copies):
    device = FakeStreams()
    copies._module, copies._stream = device, FakeStream(device, "copy")
    return device


def test_order_of_events_on_a_device_with_streams():
    model = make_model("mlp")
    technique = offload(model)
    device = fake_streams(technique.setup.copies)
    x = make_batches("mlp", 128, 1)[0][0].requires_grad_()
    waiting, pack = [], technique._pack

    def watched(tensor):
        packed = pack(tensor)
        waiting.append(len(technique._leaving))
        return packed

    technique._pack = watched
    loss = forward(technique, model, x)
    assert max(waiting) == DEPTH and not technique._leaving, "a fixed depth, and all left at the end of the pass"

    def marked(stream, log):
        return [number for who, what, _, number in log if (who, what) == (stream, "marks")]

    def waited(stream, log):
        return [number for who, what, _, number in log if (who, what) == (stream, "waits for")]

    out = list(device.log)
    assert len(marked("copy", out)) > 8
    assert waited("copy", out) == marked("compute", out), "each copy waits for the compute before it"
    assert waited("compute", out) == marked("copy", out), (
        "compute waits for each copy out, in order, before memory is free"
    )
    assert not any(who == "host" for who, *_ in out), "the host never waits"

    device.log.clear()
    (gradient,) = torch.autograd.grad(loss, x)
    back = list(device.log)
    assert waited("copy", back) == marked("compute", back)
    assert sorted(waited("compute", back)) == sorted(marked("copy", back)), "every copy back was waited for"
    assert not any(who == "host" for who, *_ in back)
    copies = marked("copy", back)
    first_wait = next(at for at, entry in enumerate(back) if entry[:2] == ("compute", "waits for"))
    assert back[first_wait][3] == copies[0]
    third = next(at for at, entry in enumerate(back) if entry == ("copy", "marks", "copy", copies[2]))
    second_wait = back.index(("compute", "waits for", "copy", copies[1]))
    assert third > second_wait or copies[1] in waited("compute", back[:third]), "one tensor ahead, not more"
    assert back.index(("copy", "marks", "copy", copies[1])) < second_wait, "and that one before it is needed"
    (plain,) = torch.autograd.grad(model(x).square().sum(), x)
    assert torch.equal(gradient, plain)


def test_a_copy_that_nobody_takes_is_waited_for_before_its_memory_is_free():
    technique = offload(nn.Identity())
    device = fake_streams(technique.setup.copies)
    with technique.new_pass():
        stashed = technique._pack(torch.randn(1000))
    device.log.clear()
    stashed.start()
    (copy,) = [number for who, what, _, number in device.log if (who, what) == ("copy", "marks")]
    assert ("compute", "waits for", "copy", copy) not in device.log
    del stashed
    assert device.log[-1] == ("compute", "waits for", "copy", copy)
