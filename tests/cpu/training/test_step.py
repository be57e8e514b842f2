"""The step: how batches and losses may look, what it returns, phases, state."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.phases import listen

BATCH = make_batches("mlp", 8, 1)[0]


def trainer_of(model=None, loss=cross_entropy, **arguments):
    return snugfit.prepare(model or make_model("mlp"), loss=loss, device="cpu", **arguments)


def test_the_loss_is_that_before_the_update():
    plain = cross_entropy(make_model("mlp")(BATCH[0]), BATCH)
    loss = trainer_of().step(BATCH)
    assert loss.dim() == 0 and not loss.requires_grad and loss.grad_fn is None and torch.equal(loss, plain.detach())


@pytest.mark.parametrize(
    ("loss", "batch", "message"),
    [
        (lambda output, batch: output, BATCH, r"loss= returns shape \(8, 5\)"),
        (lambda output, batch: 3.0, BATCH, "loss= returns a float"),
        (None, BATCH, r"no loss= was given, and the model returns shape \(8, 5\)"),
        (lambda output, batch: output.detach().sum(), BATCH, "does not depend on any trained parameter"),
        (cross_entropy, "text", "the batch is a str; give a tensor"),
        (cross_entropy, None, "the batch is a NoneType"),
        (cross_entropy, (BATCH[0][:0], BATCH[1][:0]), "holds no sample"),
    ],
)
def test_what_a_step_refuses(loss, batch, message):
    trainer = trainer_of(loss=loss)
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(InputError, match=message):
        trainer.step(batch)
    assert trainer.steps_done == 0
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_dict_without_a_loss():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return {"logits": self.linear(x)}

    with pytest.raises(InputError, match="the model returns a NoneType"):
        trainer_of(Model(), None).step({"x": torch.ones(3, 2)})


def test_evaluation_mode_is_left_and_frozen_parts_keep_theirs():
    trainer = trainer_of(make_model("cnn"))
    trainer.model.eval()
    trainer.step(make_batches("cnn", 4, 1)[0])
    assert all(module.training for module in trainer.model.modules())
    trainer.model.stages[0].eval()
    trainer.step(make_batches("cnn", 4, 1)[0])
    assert not trainer.model.stages[0].training and trainer.model.stages[1].training


def test_phases_in_order():
    seen = []
    trainer = trainer_of(recipe=Recipe(microbatch_size=4))
    with listen(lambda name, entered: seen.append(name) if entered else None):
        trainer.step(BATCH)
    assert seen == ["data", "forward", "backward", "data", "forward", "backward", "optimizer"]


@pytest.mark.parametrize("precision", ["fp32", "bf16-true", "16-mixed"])
def test_resuming_is_bitwise(precision):
    batches = make_batches("mlp", 8, 6, torch.float32)
    settings = {
        "recipe": Recipe(precision=precision),
        "lr_schedule": "cosine",
        "max_steps": 6,
        "warmup_steps": 1,
        "lr": 1e-2,
    }

    def new():
        return trainer_of(make_model("mlp", torch.float32), **settings)

    whole, first, second = new(), new(), new()
    for batch in batches:
        whole.step(batch)
    for batch in batches[:3]:
        first.step(batch)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.steps_done == 3 and second.lr_factor == first.lr_factor
    for batch in batches[3:]:
        second.step(batch)
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_evaluate_batch():
    trainer = trainer_of()
    trainer.model.eval()
    output = trainer.evaluate_batch(BATCH)
    assert (
        torch.equal(output, trainer.model(BATCH[0]).detach())
        and not output.requires_grad
        and not trainer.model.training
    )
    keyed = trainer_of(
        forward=lambda model, batch: model(batch["x"]), loss=lambda output, batch: F.mse_loss(output, output * 0)
    )
    assert keyed.evaluate_batch({"x": BATCH[0]}).shape == (8, 5)


def test_a_plain_recipe_keeps_nothing_on_the_host():
    trainer = trainer_of()
    trainer.step(BATCH)
    assert trainer.host_bytes == trainer.peak_host_bytes == 0
