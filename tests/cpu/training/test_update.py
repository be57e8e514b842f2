"""The update: clipping as torch does it, and gradients gone afterwards."""

import gc
import weakref

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe

BATCHES = make_batches("mlp", 8, 4)


def trainer_of(model, optimizer="adamw", recipe=None, **settings):
    return snugfit.prepare(
        model, Recipe(**(recipe or {})), loss=cross_entropy, optimizer=optimizer, device="cpu", **settings
    )


@pytest.mark.parametrize("fields", [{}, {"offload_optimizer": True}, {"microbatch_size": 3}], ids=str)
@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
def test_clipping_is_that_of_torch(clip_norm, fields):
    model, plain = make_model("mlp"), make_model("mlp")
    trainer = trainer_of(model, "sgd", fields, lr=0.5, clip_norm=clip_norm)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for batch in BATCHES:
        trainer.step(batch)
        cross_entropy(plain(batch[0]), batch).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "fields", [{}, {"offload_optimizer": True}, {"step_in_backward": True}, {"precision": "16-mixed"}], ids=str
)
def test_no_gradient_is_alive_in_the_next_forward_pass(fields):
    model, alive = make_model("mlp", torch.float32), []
    trainer = trainer_of(model, recipe=fields)
    model.register_forward_pre_hook(
        lambda *_: alive.append(sum(weight.grad is not None for weight in model.parameters()))
    )
    for batch in make_batches("mlp", 8, 2, torch.float32):
        trainer.step(batch)
    assert len(alive) >= 2 and not any(alive)


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"microbatch_size": 3}, {"offload_optimizer": True}, {"step_in_backward": True},
        {"step_in_backward": True, "offload_optimizer": True},
        {"precision": "bf16-true", "microbatch_size": 3, "accumulate_dtype": "fp32"},
        {"precision": "bf16-true", "stochastic_rounding": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_backward_pass_of_anybody_else_changes_nothing(fields):
    """Gradients that another loss leaves on the parameters, or tries to: before, between and after steps."""

    def run(disturbed):
        model = make_model("mlp", torch.float32)
        trainer = trainer_of(model, "sgd", fields, lr=0.1, coupled_samples=False)
        for batch in make_batches("mlp", 8, 3, torch.float32):
            if disturbed:
                before = [weight.detach().clone() for weight in model.parameters()]
                inputs = batch[0].to(next(model.parameters()).dtype)
                (100 * model(inputs).square().sum()).backward()
                assert all(torch.equal(one, weight) for one, weight in zip(before, model.parameters(), strict=True))
                assert all(weight.grad is not None for weight in model.parameters())
            trainer.step(batch)
            assert all(weight.grad is None for weight in model.parameters())
        return model

    for one, other in zip(run(True).parameters(), run(False).parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "fields",
    [{}, {"microbatch_size": 3}, {"offload_optimizer": True}, {"precision": "bf16-mixed"}, {"precision": "16-mixed"}],
    ids=str,
)
def test_gradients_stay_on_request(fields):
    model, plain = make_model("mlp", torch.float32), make_model("mlp", torch.float32)
    trainer = trainer_of(model, "sgd", fields, lr=0.1, keep_gradients=True, clip_norm=0.5, coupled_samples=False)
    alive = []
    model.register_forward_pre_hook(lambda *_: alive.append(any(one.grad is not None for one in model.parameters())))
    rough = 0.05 if "precision" in fields else 1e-5
    for batch in make_batches("mlp", 8, 2, torch.float32):
        plain.load_state_dict(model.state_dict())
        plain.zero_grad()
        cross_entropy(plain(batch[0]), batch).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        alive.clear()
        trainer.step(batch)
        assert alive[0] is False  # the step began clean
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert (one.grad - other.grad).norm() <= rough * other.grad.norm() + 1e-6


def test_gradients_cannot_stay_where_each_is_freed_at_once():
    with pytest.raises(snugfit.RecipeError, match="step_in_backward contradicts keep_gradients"):
        trainer_of(make_model("mlp"), recipe={"step_in_backward": True}, keep_gradients=True)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adafactor"])
@pytest.mark.parametrize("impl", [None, "foreach", "for-loop"])
def test_every_optimizer_is_that_of_torch(name, impl):
    model, plain = make_model("mlp"), make_model("mlp")
    trainer = trainer_of(model, name, {"optimizer_impl": impl})
    cls = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "adafactor": torch.optim.Adafactor,
    }[name]
    optimizer = cls(plain.parameters())
    for batch in BATCHES:
        trainer.step(batch)
        cross_entropy(plain(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"optimizer_impl": "foreach"}, {"offload_optimizer": True}, {"precision": "16-mixed"},
        {"precision": "bf16-true", "stochastic_rounding": True}, {"step_in_backward": True},
    ],
    ids=str,
)  # fmt: skip
def test_the_memory_of_a_run_that_is_over_is_free_at_once(fields):
    """Without waiting for the garbage collector."""
    trainer = trainer_of(make_model("mlp", torch.float32), recipe=fields)
    trainer.step(make_batches("mlp", 8, 1, torch.float32)[0])
    gc.collect()
    gc.disable()
    try:
        update = weakref.ref(trainer.update)
        del trainer
        assert update() is None
    finally:
        gc.enable()
