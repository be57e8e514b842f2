"""Optimizer state on the host: torch's own update bit for bit, in the host pool, in torch's own state_dict."""

import copy

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from test_offload_activations import fake_streams

import snugfit
from snugfit import Recipe, TrainingError

BATCHES = make_batches("mlp", 8, 5, torch.float32)


def trainer_of(model, optimizer="adamw", recipe=None, **settings):
    return snugfit.prepare(
        model,
        Recipe(**{"offload_optimizer": True, **(recipe or {})}),
        loss=cross_entropy,
        optimizer=optimizer,
        device="cpu",
        **settings,
    )


def plain_training(optimizer_of, steps=5):
    model = make_model("mlp", torch.float32)
    optimizer = optimizer_of(model.parameters())
    for batch in BATCHES[:steps]:
        cross_entropy(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def assert_equal_weights(one, other):
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


CASES = {
    "adamw": ({"lr": 1e-2}, lambda weights: torch.optim.AdamW(weights, lr=1e-2, fused=True)),
    "adam": (
        {"lr": 1e-2, "weight_decay": 0.1},
        lambda weights: torch.optim.Adam(weights, lr=1e-2, weight_decay=0.1, fused=True),
    ),
    "sgd": ({"lr": 0.1, "momentum": 0.9}, lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, fused=True)),
}


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_bitwise_equal_to_torch(name, in_backward):
    settings, optimizer_of = CASES[name]
    model = make_model("mlp", torch.float32)
    trainer = trainer_of(model, name, {"step_in_backward": in_backward}, **settings)
    for batch in BATCHES:
        trainer.step(batch)
    trainer.finish()
    assert_equal_weights(model, plain_training(optimizer_of)[0])


@pytest.mark.parametrize(("name", "copies"), [("adamw", 4), ("sgd", 2)])
def test_state_is_in_the_host_pool(name, copies):
    model = make_model("mlp", torch.float32)
    weights_bytes = sum(weight.nbytes for weight in model.parameters())
    trainer = trainer_of(model, name)
    sums_bytes = 2 * 8 * len(list(model.parameters()))
    assert trainer.host_bytes == 2 * weights_bytes + sums_bytes, "master copy, gradient buffer, and sums of bits"
    for batch in BATCHES[:2]:
        trainer.step(batch)
    assert trainer.host_bytes == trainer.peak_host_bytes == copies * weights_bytes + sums_bytes
    for state in trainer.state_dict()["optimizer"]["state"].values():
        assert all(value.dim() == 0 or value.device.type == "cpu" for value in state.values() if value is not None)


@pytest.mark.parametrize("name", CASES)
def test_state_goes_to_an_ordinary_optimizer_and_back(name):
    settings, optimizer_of = CASES[name]
    model = make_model("mlp", torch.float32)
    trainer = trainer_of(model, name, **settings)
    for batch in BATCHES[:2]:
        trainer.step(batch)
    ordinary = optimizer_of(model.parameters())
    ordinary.load_state_dict(copy.deepcopy(trainer.state_dict()["optimizer"]))
    cross_entropy(model(BATCHES[2][0]), BATCHES[2]).backward()
    ordinary.step()
    ordinary.zero_grad()
    other = make_model("mlp", torch.float32)
    back = trainer_of(other, name, **settings)
    back.load_state_dict(
        copy.deepcopy(
            {
                "model": model.state_dict(),
                "optimizer": ordinary.state_dict(),
                "scaler": None,
                "rounding": None,
                "steps_done": 3,
            }
        )
    )
    for batch in BATCHES[3:]:
        back.step(batch)
    assert_equal_weights(other, plain_training(optimizer_of)[0])
    assert back.steps_done == 5


def test_with_loss_scaling():
    results = []
    for offload in (False, True):
        model = make_model("mlp", torch.float32)
        trainer = trainer_of(model, recipe={"precision": "16-mixed", "offload_optimizer": offload}, clip_norm=0.5)
        for batch in BATCHES:
            trainer.step(batch)
        trainer.finish()
        results.append(model)
        assert trainer.state_dict()["scaler"]["scale"] == 65536.0
    assert_equal_weights(*results)
    assert not torch.equal(results[0].head.weight, make_model("mlp", torch.float32).head.weight)


@pytest.mark.parametrize("in_backward", [False, True])
def test_a_bad_loss_changes_nothing(in_backward):
    model = make_model("mlp", torch.float32)
    trainer = trainer_of(model, recipe={"step_in_backward": in_backward})
    trainer.step(BATCHES[0])
    before, state = copy.deepcopy(model), copy.deepcopy(trainer.state_dict()["optimizer"])
    trainer.update.health.waits = False  # as on a device: the loss is judged when the first gradient has arrived
    with pytest.raises(TrainingError, match="step 2: the loss is nan"):
        trainer.step((BATCHES[0][0] * float("nan"), BATCHES[0][1]))
    assert_equal_weights(model, before)
    for number, values in trainer.state_dict()["optimizer"]["state"].items():
        assert all(torch.equal(value, state["state"][number][key]) for key, value in values.items())


def test_order_of_events_on_a_device_with_streams():
    model = make_model("mlp", torch.float32)
    trainer = trainer_of(model, recipe={"step_in_backward": True})
    device = fake_streams(trainer.update.parts[0]._copies)
    for batch in BATCHES[:2]:
        trainer.step(batch)
    host = [entry for entry in device.log if entry[0] == "host"]
    copied = [entry[3] for entry in device.log if entry[:2] == ("copy", "marks")]
    count = len(list(model.parameters()))
    assert len(host) == 2 * count and len(copied) == 4 * count, "the host waits for gradients alone"
    first_out, _, third_out, fourth = copied[:4]
    assert host[0][3] == first_out
    assert device.log.index(("copy", "marks", "copy", third_out)) < device.log.index(host[0]), (
        "two more are on their way"
    )
    assert device.log.index(host[0]) < device.log.index(("copy", "marks", "copy", fourth)), (
        "and the weight goes back after"
    )
    waited = {entry[3] for entry in device.log if entry[:2] == ("compute", "waits for")}
    assert waited == set(copied), "compute waits for every copy before its memory is used again"
    assert_equal_weights(model, plain_training(_default_adamw, 2)[0])


def _default_adamw(weights):
    return torch.optim.AdamW(weights, fused=True)


def test_a_scalar_parameter():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return (x * self.scale).sum()

    model = Scaled()
    snugfit.prepare(model, Recipe(offload_optimizer=True), optimizer="sgd", lr=0.5, device="cpu").step(torch.ones(3))
    assert model.scale.item() == 0.5


WRITES = {
    "no_grad": lambda weight: torch.no_grad()(weight.clamp_)(-0.05, 0.05),
    "data": lambda weight: weight.data.clamp_(-0.05, 0.05),
    "data, another tensor": lambda weight: setattr(weight, "data", weight.data.clamp(-0.05, 0.05)),
    "numpy": lambda weight: weight.detach().numpy().clip(-0.05, 0.05, out=weight.detach().numpy()),
}


@pytest.mark.parametrize("before_the_first", [False, True])
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_between_steps_counts(write, dtype, in_backward, before_the_first):
    """As WGANs clip their critic: torch does not count writes by `data`."""
    trained = []
    for offload in (False, True):
        model = make_model("mlp", dtype)
        recipe = {"offload_optimizer": offload, "step_in_backward": in_backward}
        trainer = trainer_of(model, "adamw", recipe, lr=1e-2)
        for number, batch in enumerate(make_batches("mlp", 8, 4, dtype)):
            if number or before_the_first:
                for weight in model.parameters():
                    WRITES[write](weight)
            trainer.step(batch)
        trainer.finish()
        trained.append(model)
    assert max(weight.abs().max() for weight in trained[0].parameters()) > 0.05  # a step behind the last write
    for one, other in zip(*(model.parameters() for model in trained), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9 if dtype == torch.float64 else 1e-6)
