"""A bad step stops the run with its cause and leaves no trace, whether the host waits for the flag or reads it late."""

import copy

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import Recipe, TrainingError
from snugfit.training.health import DEPTH, LateValues, Statistics, first_bad, global_norm

GOOD = make_batches("mlp", 6, 6, torch.float32)
NAN_LOSS = (torch.full((6, 12), float("nan")), GOOD[0][1])

KINDS = {
    "fused": {},
    "foreach": {"optimizer_impl": "foreach"},
    "for-loop": {"optimizer_impl": "for-loop"},
    "host state": {"offload_optimizer": True},
    "rounded": {"precision": "bf16-true", "stochastic_rounding": True},
    "in backward": {"step_in_backward": True},
    "in backward, for-loop": {"step_in_backward": True, "optimizer_impl": "for-loop"},
    "in backward, rounded": {"step_in_backward": True, "precision": "bf16-true", "stochastic_rounding": True},
    "in backward, host state": {"step_in_backward": True, "offload_optimizer": True},
    "fp32 sums": {"precision": "bf16-true", "accumulate_dtype": "fp32", "microbatch_size": 2},
}


class Root(nn.Module):
    """An MLP whose loss can have a gradient that is not finite though it is finite itself: the root at 0."""

    def __init__(self):
        super().__init__()
        self.inner = make_model("mlp", torch.float32)
        self.extra = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inner(x)


def root_loss(output, batch):
    return cross_entropy(output, batch) + (output.sum() * (0.0 if len(batch) > 2 else 1e-9)).abs().sqrt()


def snapshot(trainer):
    return copy.deepcopy({key: trainer.state_dict()[key] for key in ("model", "optimizer", "rounding", "steps_done")})


def assert_same(one, other, path=""):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}.{number}")
    else:
        assert one == other, path


def trained(kind, waits, loss=cross_entropy, model=None, **settings):
    trainer = snugfit.prepare(
        model or make_model("mlp", torch.float32), Recipe(**KINDS[kind]), loss=loss, device="cpu", lr=1e-2, **settings
    )
    trainer.update.health.waits = waits
    return trainer


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "masked"])
@pytest.mark.parametrize("good_steps", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_loss_leaves_no_trace(kind, good_steps, waits):
    trainer = trained(kind, waits)
    for batch in GOOD[:good_steps]:
        trainer.step(batch)
    before = snapshot(trainer)
    with pytest.raises(
        TrainingError, match=rf"step {good_steps + 1}: the loss is nan\. Its update was not taken"
    ) as error:
        trainer.step(NAN_LOSS)
        trainer.finish()
    assert f"those of step {good_steps}." in str(error.value) and trainer.steps_done == good_steps
    after = snapshot(trainer)
    if not waits:  # random bits were drawn, and a first masked step leaves state of zeros, which is that of no step
        before["rounding"] = after["rounding"] = None
        for number, state in after["optimizer"]["state"].items():
            if number not in before["optimizer"]["state"]:
                assert all(not value.any() for value in state.values() if isinstance(value, torch.Tensor)), number
        after["optimizer"]["state"] = {
            n: s for n, s in after["optimizer"]["state"].items() if n in before["optimizer"]["state"]
        }
    assert_same(before, after)
    assert all(weight.grad is None for weight in trainer.model.parameters())
    trainer.step(GOOD[3])  # a caller who knows better may go on
    trainer.finish()
    assert trainer.steps_done == good_steps + 1
    assert not torch.equal(trainer.state_dict()["model"]["head.weight"], before["model"]["head.weight"])


@pytest.mark.parametrize("kind", ["fused", "foreach", "for-loop", "host state"])
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "masked"])
def test_a_gradient_that_is_not_finite_behind_a_finite_loss(kind, waits):
    trainer = trained(kind, waits, root_loss)
    trainer.step(GOOD[0])
    before = snapshot(trainer)
    late = not waits and kind in ("fused",)
    name = "a gradient is not" if late else "the gradient of 'stem.weight' is not"
    with pytest.raises(TrainingError, match=rf"step 2: the loss is finite \(.*\), but {name}"):
        trainer.step((*GOOD[1], "root of zero"))
        trainer.finish()
    assert_same(before, snapshot(trainer))


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "masked"])
def test_in_backward_the_error_says_what_was_updated(waits):
    trainer = trained("in backward", waits, root_loss)
    with pytest.raises(TrainingError, match="came before it in this backward pass were updated") as error:
        trainer.step((*GOOD[1], "root of zero"))
        trainer.finish()
    assert "Its update was not taken" not in str(error.value)
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "masked"])
def test_a_loss_that_is_not_finite_though_its_gradient_is(waits):
    trainer = trained("fused", waits, lambda output, batch: cross_entropy(output, batch) + float("inf"))
    before = snapshot(trainer)["model"]
    with pytest.raises(TrainingError, match="step 1: the loss is inf"):
        trainer.step(GOOD[0])
        trainer.finish()
    assert_same(before, snapshot(trainer)["model"])


class _LateEvent:
    """An event of a device that is far behind: done only when the host waits for it."""

    waited = 0

    def record(self, stream):
        self.done = False

    def query(self):
        return self.done

    def synchronize(self):
        _LateEvent.waited += 1
        self.done = True


class _LateDevice:
    Event = _LateEvent

    @staticmethod
    def current_stream():
        return None


@pytest.mark.parametrize("kind", ["fused", "in backward", "rounded"])
def test_steps_behind_a_bad_one_are_masked_until_the_host_knows(kind):
    """The flag of step 2 arrives when step 5 begins; steps 3 and 4 must not have moved anything meanwhile."""
    trainer = trained(kind, False)
    trainer.update.health._late._module = _LateDevice
    trainer.step(GOOD[0])
    before = snapshot(trainer)
    trainer.step(NAN_LOSS)
    trainer.step(GOOD[1])
    trainer.step(GOOD[2])
    with pytest.raises(TrainingError, match=r"step 2: the loss is nan\..*those of step 1\."):
        trainer.step(GOOD[3])
    after = snapshot(trainer)
    before["rounding"] = after["rounding"] = None
    assert_same(before, after)
    trainer.finish()


def test_values_wait_at_most_a_fixed_depth():
    late = LateValues(torch.device("cpu"))
    late._module, _LateEvent.waited = _LateDevice, 0
    for step in range(1, DEPTH + 1):
        late.put(step, torch.tensor([float(step)]))
        assert late.arrived() == []
    assert _LateEvent.waited == 0
    late.put(DEPTH + 1, torch.tensor([9.0]))
    assert late.arrived() == [(1, [1.0])] and _LateEvent.waited == 1
    assert [step for step, _ in late.arrived(wait=True)] == [2, 3]


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "masked"])
def test_running_statistics_go_back(waits):
    batches = make_batches("cnn", 6, 3, torch.float32)
    trainer = snugfit.prepare(make_model("cnn", torch.float32), Recipe(), loss=cross_entropy, device="cpu")
    trainer.update.health.waits = waits
    trainer._step.statistics = Statistics(trainer.model, 1 if waits else DEPTH + 2)
    if not waits:
        trainer.update.health._late._module = _LateDevice
    trainer.step(batches[0])
    before = snapshot(trainer)
    with pytest.raises(TrainingError, match="step 2"):
        trainer.step((batches[1][0] * float("nan"), batches[1][1]))
        trainer.step(batches[2])
        trainer.step(batches[2])
        trainer.step(batches[2])
    assert_same(before, snapshot(trainer))
    assert int(before["model"]["stages.0.layers.1.num_batches_tracked"]) == 1


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (self.weight * x).sum()


@pytest.mark.parametrize("fields", [{}, {"offload_optimizer": True}, {"optimizer_impl": "foreach"}])
def test_fp16_overflow_is_skipped_and_the_scale_lowered(fields):
    model = Scaled()
    trainer = snugfit.prepare(model, Recipe(precision="16-mixed", **fields), optimizer="sgd", lr=1.0, device="cpu")
    trainer._scaler.scale(torch.ones(()))
    trainer.step(torch.full((4,), 1e35))
    assert torch.equal(model.weight, torch.ones(4)) and trainer._scaler.get_scale() == 2.0**15
    trainer.step(torch.full((4,), 0.25))
    trainer.finish()
    assert torch.equal(model.weight, torch.full((4,), 0.75)) and trainer.steps_done == 2


def test_overflow_at_every_scale_stops():
    model = Scaled()
    trainer = snugfit.prepare(model, Recipe(precision="16-mixed"), optimizer="sgd", lr=1.0, device="cpu")
    with pytest.raises(TrainingError, match="gradients overflow fp16 at every loss scale"):
        for _ in range(40):
            trainer.step(torch.full((4,), float("inf")))
    assert 20 <= trainer.steps_done <= 22 and torch.equal(model.weight, torch.ones(4))


def test_unused_and_frozen_parameters():
    model = Root()
    model.inner.stem.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    for fields in ({}, {"step_in_backward": True}, {"offload_optimizer": True}):
        trainer = snugfit.prepare(model, Recipe(**fields), loss=cross_entropy, device="cpu")
        seen = []
        handle = model.inner.head.weight.register_hook(lambda _, seen=seen: seen.append(model.inner.stem.weight.grad))
        trainer.step(GOOD[0])
        handle.remove()
        assert set(seen) == {None}
        names = [name for name, weight in model.named_parameters() if weight.requires_grad]
        state = trainer.state_dict()["optimizer"]["state"]
        assert len(state) == len(names) - 1, "none for the unused one, none for frozen ones"
    assert torch.equal(before["inner.stem.weight"], model.inner.stem.weight)
    assert torch.equal(before["extra"], model.extra)


def test_a_step_that_raises_leaves_no_gradient_behind():
    def run(stumble):
        model = make_model("mlp", torch.float32)
        trainer = snugfit.prepare(model, Recipe(microbatch_size=2), loss=cross_entropy, optimizer="sgd", device="cpu")
        if stumble:
            labels = GOOD[0][1].clone()
            labels[5] = 77
            with pytest.raises(IndexError):
                trainer.step((GOOD[0][0], labels))
            assert all(weight.grad is None for weight in model.parameters()) and trainer.steps_done == 0
        trainer.step(GOOD[1])
        return model

    assert_same(run(True).state_dict(), run(False).state_dict())


def test_norms():
    odd = [torch.tensor([3.0]), torch.zeros(0), torch.tensor([-4.0])]
    assert float(global_norm(odd)) == 5.0
    assert float(global_norm([torch.zeros(0)])) == 0.0
    assert global_norm([torch.tensor([1.0]), torch.tensor([float("nan")])]).isnan()
    halves = [torch.full((100,), 60000.0, dtype=torch.float16), torch.tensor([1.0])]
    assert float(global_norm(halves)) == pytest.approx(600000.0, rel=1e-3)
    assert first_bad({"a": torch.ones(1), "b": torch.tensor([float("inf")])}) == "b"
