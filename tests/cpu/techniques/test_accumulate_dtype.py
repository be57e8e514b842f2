"""fp32 sums of 16-bit gradients: nearer to fp32 than bf16 sums, clipped and judged like any gradient."""

import copy

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, SnugfitWarning, TrainingError


def gradient_of(precision, accumulate, model, batch, **settings):
    """The update of SGD at lr 1 is the gradient, read before the weights round it."""
    model = copy.deepcopy(model)
    trainer = snugfit.prepare(
        model, Recipe(precision=precision, microbatch_size=1, accumulate_dtype=accumulate),
        loss=cross_entropy, optimizer="sgd", lr=1.0, device="cpu", **settings,
    )  # fmt: skip
    gradients = {}
    step = trainer.update.optimizer.step

    def watched():
        gradients.update({name: weight.grad.float().clone() for name, weight in model.named_parameters()})
        step()

    trainer.update.optimizer.step = watched
    trainer.step(batch)
    trainer.finish()
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
def test_many_bf16_microbatches_add_up_better_in_fp32():
    """One sample 300 times: each gradient is small beside the sum, which is where bf16 loses it."""
    model, (batch,) = make_model("mlp", torch.float32), make_batches("mlp", 1, 1, torch.float32)
    model.to(torch.bfloat16).float()  # the same weights in both precisions
    batch = (batch[0].bfloat16().float().expand(300, -1), batch[1].expand(300))
    exact = gradient_of("fp32", "as-is", model, batch)
    as_is = (gradient_of("bf16-true", "as-is", model, batch) - exact).norm() / exact.norm()
    in_fp32 = (gradient_of("bf16-true", "fp32", model, batch) - exact).norm() / exact.norm()
    assert in_fp32 < 0.02
    assert as_is > max(0.05, 3 * in_fp32)


def test_clipping_sees_the_fp32_sums():
    model, (batch,) = make_model("mlp", torch.float32), make_batches("mlp", 16, 1, torch.float32)
    model.to(torch.bfloat16).float()
    free = gradient_of("bf16-true", "fp32", model, batch)
    clipped = gradient_of("bf16-true", "fp32", model, batch, clip_norm=0.01)
    assert free.norm() > 0.1
    assert clipped.norm() == pytest.approx(0.01, rel=0.01)
    assert torch.nn.functional.cosine_similarity(free, clipped, dim=0) > 0.999


def test_gradients_move_to_the_sums_and_are_gone_after_the_step():
    model = make_model("mlp", torch.float32)
    trainer = snugfit.prepare(
        model,
        Recipe(precision="bf16-true", microbatch_size=2, accumulate_dtype="fp32"),
        loss=cross_entropy,
        device="cpu",
    )
    alive = []
    for weight in model.parameters():  # behind ours: by then the gradient has moved into the sum
        weight.register_post_accumulate_grad_hook(lambda weight: alive.append(weight.grad is not None))
    trainer.step(make_batches("mlp", 4, 1, torch.float32)[0])
    assert alive and not any(alive)
    assert all(weight.grad is None for weight in model.parameters()) and not trainer.update.gradients._sums


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
def test_a_sum_that_overflows_fp16_is_not_taken():
    model = torch.nn.Linear(4, 1, bias=False)
    trainer = snugfit.prepare(
        model, Recipe(precision="16-true", microbatch_size=1, accumulate_dtype="fp32"), optimizer="sgd", lr=1.0,
        loss=lambda output, batch: output.sum(), loss_weight="sum", device="cpu",
    )  # fmt: skip
    with torch.no_grad():
        model.weight.zero_()
    before = model.weight.detach().clone()
    with pytest.raises(TrainingError, match=r"gradient of 'weight' is not"):
        trainer.step(torch.full((4, 4), 30000.0))
    assert torch.equal(model.weight, before) and before.isfinite().all()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"precision": "bf16-true"}, "there are no microbatches"),
        ({"precision": "fp32", "microbatch_size": 2}, "no weight is held in 16 bits"),
    ],
)
def test_no_effect_warns(fields, reason):
    with pytest.warns(SnugfitWarning, match=reason):
        snugfit.prepare(
            make_model("mlp", torch.float32),
            Recipe(accumulate_dtype="fp32", **fields),
            loss=cross_entropy,
            device="cpu",
        )
