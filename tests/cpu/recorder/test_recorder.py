"""The recorder against toys whose allocations can be counted by hand. Recordings run in a worker, as they always do."""

import pytest
import torch
import torch.nn.functional as F

from snugfit.errors import CannotSimulateError, InputError
from snugfit.fake_device.personality import Personality
from snugfit.recorder.record import record
from snugfit.recording.trace import ALLOC, FREE, RESIZE, WORKSPACE
from snugfit.simulator.own_step import simulate_step

KIB = 1024


def recorded(pool, run, kind="cuda"):
    return pool.call(record, run, Personality(kind=kind)).trace


def alive_at_peak(trace):
    now = peak = 0
    alive, best = {}, {}
    for kind, subject, value in zip(trace.kinds, trace.subjects, trace.values, strict=True):
        row = trace.storages[subject] if kind in (ALLOC, FREE, RESIZE) else None
        if row is None or row.place != "device":
            continue
        if kind == ALLOC:
            alive[subject] = row.nbytes
        elif kind == FREE:
            del alive[subject]
        else:
            alive[subject] = value
        now = sum(alive.values())
        if now > peak:
            peak, best = now, dict(alive)
    by_category = {}
    for subject, size in best.items():
        category = trace.storages[subject].category
        by_category[category] = by_category.get(category, 0) + size
    return peak, by_category


def test_views_count_once_and_frees_are_in_order(pool):
    def run(recorder):
        import torch

        a = torch.empty(1024, device="sim")
        b = a.view(32, 32).t()[3:]
        del a
        c = torch.empty(512, device="sim")
        del b
        d = torch.empty(256, device="sim")
        del c, d

    trace = recorded(pool, run)
    sizes = [trace.storages[i].nbytes for i in trace.subjects]
    assert list(trace.kinds) == [ALLOC, ALLOC, FREE, ALLOC, FREE, FREE]
    assert sizes == [4 * KIB, 2 * KIB, 4 * KIB, KIB, 2 * KIB, KIB]


def test_autograd_frees_saved_tensors_at_their_node(pool):
    """exp saves its result: three of them die one by one in backward, each right after its own node."""

    def run(recorder):
        import torch

        x = torch.empty(1024, device="sim", requires_grad=True)
        y = x.exp().exp().exp()
        y.backward(torch.empty(1024, device="sim"))

    trace = recorded(pool, run)
    exps = [row.id for row in trace.storages if row.operator == "aten.exp.default"]
    assert [trace.storages[i].category for i in exps] == ["activations"] * 3
    deaths = [s for k, s in zip(trace.kinds, trace.subjects, strict=True) if k == FREE and s in exps]
    assert deaths == [exps[1], exps[0], exps[2]]  # the last result is also held by `y`
    products = [row.id for row in trace.storages if row.operator == "aten.mul.Tensor"]
    assert len(products) == 3
    events = list(zip(trace.kinds, trace.subjects, strict=True))
    assert events.index((FREE, exps[1])) < events.index((ALLOC, products[2]))


def test_resized_storage_is_seen(pool):
    def run(recorder):
        import torch

        a = torch.empty(1024, device="sim")
        a.untyped_storage().resize_(0)
        a.untyped_storage().resize_(4096)

    trace = recorded(pool, run)
    assert [(k, v) for k, v in zip(trace.kinds, trace.values, strict=True) if k == RESIZE] == [
        (RESIZE, 0),
        (RESIZE, 4096),
    ]


def test_host_and_device_are_told_apart(pool):
    def run(recorder):
        import torch

        a = torch.empty(1024, device="sim")
        b = a.to("cpu")
        del a, b

    trace = recorded(pool, run)
    assert [row.place for row in trace.storages] == ["device", "host"]
    assert trace.runs[0].device == "link" and trace.runs[0].blocking


def linear_step(model, optimizer, batch):
    x, y = batch
    loss = F.cross_entropy(model(x.cuda()), y.to("cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def small_model():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def small_batch(size=32):
    return torch.zeros(size, 64), torch.zeros(size, dtype=torch.long)


def adamw(parameters):
    return torch.optim.AdamW(parameters)


def test_categories_of_a_step(pool):
    trace = simulate_step(linear_step, small_model(), adamw, small_batch(), pool=pool).trace
    weights = (64 * 256 + 256 + 256 * 10 + 10) * 4

    def total(category, alive_only=False):
        return sum(row.nbytes for row in trace.storages if row.category == category and row.place == "device")

    assert total("weights") == weights
    owners = {row.module for row in trace.storages if row.category in ("weights", "optimizer_state") and row.nbytes > 8}
    assert owners == {"0", "2"}
    assert total("optimizer_state") == 2 * weights
    assert total("gradients") == 2 * weights  # two steps
    assert total("inputs") == 2 * (32 * 64 * 4 + 32 * 8)
    relu = [row for row in trace.storages if row.operator == "aten.relu.default"]
    assert [(row.category, row.module, row.phase) for row in relu] == [("activations", "1", "forward")] * 2
    assert total("other") == 0
    backward = {run.module for run in trace.runs if run.phase == "backward" and run.operator == "aten.mm.default"}
    assert backward == {"0", "2"}


def test_second_recording_is_the_same(pool):
    """Results are remembered between recordings; the trace must not depend on it."""
    first, second = (
        simulate_step(linear_step, small_model(), adamw, small_batch(31), pool=pool).trace for _ in range(2)
    )
    assert first == second


def test_foreach_is_the_default_on_cuda_and_not_on_cpu(pool):
    def operators(kind):
        recording = simulate_step(
            plain_step, small_model(), adamw, small_batch(), personality=Personality(kind=kind), pool=pool
        )
        return {run.operator for run in recording.trace.runs}

    assert any(name.startswith("aten._foreach_") for name in operators("cuda"))
    assert not any(name.startswith("aten._foreach_addcdiv") for name in operators("cpu"))


def plain_step(model, optimizer, batch):
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    optimizer.zero_grad()


def scaled_step(model, optimizer, batch):
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(batch[0])
        assert out.dtype == torch.float16 and out.is_cuda
        loss = F.cross_entropy(out, batch[1])
        assert loss.dtype == torch.float32
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def test_autocast_casts_weights_once_and_the_scaler_runs(pool):
    recording = simulate_step(scaled_step, small_model(), adamw, small_batch(), steps=1, pool=pool)
    assert recording.answered == ("the loss scaler was told that all gradients are finite",)
    casts = [
        row for row in recording.trace.storages if row.operator == "aten._to_copy.default" and row.phase == "forward"
    ]
    assert 64 * 256 * 2 in [row.nbytes for row in casts]
    assert any(run.operator.startswith("aten._amp_foreach") for run in recording.trace.runs)


def test_attention_takes_the_kernels_of_cuda(pool):
    def used(dtype, mask=False, capability=(8, 0)):
        def step(model, optimizer, batch):
            q = batch.requires_grad_()
            bias = torch.empty(1, 1, 17, 17, device="cuda", dtype=q.dtype) if mask else None
            F.scaled_dot_product_attention(q, q, q, bias).sum().backward()

        batch = torch.empty(2, 4, 17, 32, dtype=dtype, device="meta")
        personality = Personality(capability=capability)
        model = torch.nn.Linear(1, 1)
        return simulate_step(step, model, None, batch, steps=1, personality=personality, pool=pool).trace

    flash = used(torch.bfloat16)
    assert "aten._scaled_dot_product_flash_attention.default" in {run.operator for run in flash.runs}
    backward = [row for row in flash.workspaces if "flash_attention_backward" in row.operator]
    assert [row.nbytes for row in backward][-1] >= 2 * 4 * 128 * 4 + 2 * 4 * 128 * 32 * 4
    efficient = "aten._scaled_dot_product_efficient_attention.default"
    assert efficient in {run.operator for run in used(torch.float32).runs}
    assert efficient in {run.operator for run in used(torch.bfloat16, mask=True).runs}
    assert efficient in {run.operator for run in used(torch.float16, capability=(7, 5)).runs}


def test_checkpointing_keeps_only_inputs(pool):
    def step(use):
        def run(model, optimizer, batch):
            from torch.utils.checkpoint import checkpoint

            x = batch.requires_grad_()
            for block in model:
                x = checkpoint(block, x, use_reentrant=False) if use else block(x)
            x.sum().backward()

        return run

    model = torch.nn.Sequential(
        *[
            torch.nn.Sequential(
                torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.GELU(), torch.nn.Linear(64, 64)
            )
            for _ in range(6)
        ]
    )
    batch = torch.zeros(1024, 64)
    plain, checkpointed = (
        alive_at_peak(simulate_step(step(use), model, None, batch, steps=1, pool=pool).trace) for use in (False, True)
    )
    assert checkpointed[1]["activations"] < 0.5 * plain[1]["activations"]
    assert checkpointed[1]["weights"] == plain[1]["weights"]


def test_values_are_refused_with_operator_module_and_line(pool):
    class Picky(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.long().sum().item() > 0 else x

    def step(model, optimizer, batch):
        model(batch)

    with pytest.raises(
        CannotSimulateError, match=r"\.item\(\).*in module 'inner' at .*test_recorder\.py:\d+"
    ) as caught:
        model = torch.nn.Module()
        model.inner = Picky()
        model.forward = lambda x: model.inner(x)
        simulate_step(lambda m, o, b: m.inner(b), model, None, torch.zeros(8), pool=pool)
    assert caught.value.exit_code == 5

    with pytest.raises(CannotSimulateError, match="nonzero"):
        simulate_step(lambda m, o, b: b.long().nonzero(), torch.nn.Linear(1, 1), None, torch.zeros(8), pool=pool)


def test_batch_that_does_not_match_is_a_user_error(pool):
    with pytest.raises(InputError, match=r"test_recorder\.py:\d+.*RuntimeError") as caught:
        simulate_step(
            linear_step, small_model(), adamw, (torch.zeros(4, 63), torch.zeros(4, dtype=torch.long)), pool=pool
        )
    assert caught.value.exit_code == 2


def test_cublas_workspace_by_capability(pool):
    for capability, size in (((8, 0), 8519680), ((9, 0), 32 * 2**20)):
        personality = Personality(capability=capability)
        trace = simulate_step(
            linear_step, small_model(), adamw, small_batch(), personality=personality, pool=pool
        ).trace
        found = [row.nbytes for row in trace.storages if row.operator == "cublas workspace"]
        assert found == [size, size]  # the thread of forward, and autograd's


def test_efficient_attention_backward_takes_workspace(pool):
    def step(model, optimizer, batch):
        q = batch.requires_grad_()
        F.scaled_dot_product_attention(q, q, q).sum().backward()

    trace = simulate_step(step, torch.nn.Linear(1, 1), None, torch.zeros(2, 4, 100, 64), steps=1, pool=pool).trace
    assert WORKSPACE in trace.kinds
    staged = 2 * 4 * 2 * (16 + 64 * 64 * 4)
    delta = 2 * 4 * 100 * 4
    assert [row.nbytes - staged - delta for row in trace.workspaces if "backward" in row.operator][-1] in (
        0,
        2 * 4 * 100 * 64 * 4,
    )


def test_values_on_the_device_and_small_host_tensors(pool):
    """torch.tensor(..., device=...) works, and small host tensors keep their values."""

    def run(recorder):
        import torch

        a = torch.tensor([1.0, 2.0], device="sim")
        b = torch.tensor([3, 4]).to("sim")
        index = torch.tensor([5, 6]) + 1
        assert a.device.type == b.device.type == "sim" and index.tolist() == [6, 7]
        assert (a * 2).device.type == "sim"

    trace = recorded(pool, run)
    assert sum(row.place == "device" for row in trace.storages) == 3


class Scaled(torch.nn.Module):
    """Computes with numbers that its code makes on the device, with each other and with what is trained."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        ratio = torch.tensor(4.0, device=x.device) / torch.tensor(2.0, device=x.device)
        rows = torch.as_tensor([0.1, 0.2, 0.3], device=x.device)[:, None] * torch.tensor([2.0, 1.0], device=x.device)
        return self.layer(x * ratio) @ rows


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_numbers_that_code_makes_on_the_device_are_computed_with(device):
    import snugfit

    estimate = snugfit.estimate(Scaled(), torch.zeros(4, 3), loss=lambda output, batch: output.mean(), device=device)
    assert estimate.peak_allocated_bytes > 0


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_inference_mode_inside_a_step(kind):
    """Tensors for inference count no writes, and views of ordinary ones do, the second time (from a plan) as well."""

    class Teacher(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("table", torch.ones(2, 6, 4))

        def forward(self, x):
            for _ in range(2):
                cos, sin = self.table[:, :3, :].unbind(0)
                made = torch.zeros(3, 4, device=x.device)
                made[1:].add_(1)
                first, second = (self.layer(x) * made[0]).chunk(2)
                x = torch.cat([first + cos, second + sin]).contiguous()
            return x

    def step(model, optimizer, batch):
        with torch.inference_mode():
            soft = model(batch[0])
        (model.layer(batch[0]) * soft.clone()).sum().backward()
        optimizer.step()

    trace = simulate_step(
        step, Teacher, lambda parameters: torch.optim.SGD(parameters, lr=0.1), (torch.ones(6, 4),),
        personality=Personality(kind=kind),
    ).trace  # fmt: skip
    assert sum(run.operator == "aten.cat.default" for run in trace.runs) % 2 == 0


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_tensors_made_of_values_take_memory(kind):
    def step(model, optimizer, batch):
        tables = [torch.tensor([1.0] * 256, device=batch[0].device) for _ in range(3)]
        (model(batch[0]) * tables[0][0]).sum().backward()
        optimizer.step()

    trace = simulate_step(
        step, lambda: torch.nn.Linear(4, 4), lambda parameters: torch.optim.SGD(parameters, lr=0.1), (torch.ones(6, 4),),
        personality=Personality(kind=kind), steps=2,
    ).trace  # fmt: skip
    assert sum(storage.nbytes == 1024 and storage.place == "device" for storage in trace.storages) == 2 * 3
