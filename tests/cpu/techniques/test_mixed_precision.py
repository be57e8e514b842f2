"""Mixed precision: 16-bit compute, fp32 weights, evaluation alike."""

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import InputError, Recipe


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_computes_in_16_bits_and_keeps_fp32(precision, dtype):
    model, seen = make_model("mlp", torch.float32), {}
    trainer = snugfit.prepare(model, Recipe(precision=precision), loss=cross_entropy, device="cpu")
    model.stem.register_forward_hook(lambda module, args, output: seen.update(hidden=output.dtype))
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: seen.update(gradient=weight.grad.dtype))
    batch = make_batches("mlp", 8, 1, torch.float32)[0]
    trainer.step(batch)
    trainer.finish()
    assert seen == {"hidden": dtype, "gradient": torch.float32}
    assert all(weight.dtype == torch.float32 for weight in model.parameters())
    state = trainer.state_dict()["optimizer"]["state"]
    assert all(value.dtype == torch.float32 for one in state.values() for value in one.values())
    assert trainer.evaluate_batch(batch).dtype == dtype
    assert (trainer.state_dict()["scaler"] is not None) == (precision == "16-mixed")


def test_the_scale_survives_a_resume():
    batches = make_batches("mlp", 8, 3, torch.float32)
    first = snugfit.prepare(
        make_model("mlp", torch.float32), Recipe(precision="16-mixed"), loss=cross_entropy, device="cpu"
    )
    first.step(batches[0])
    first.step((batches[1][0] * 1e38, batches[1][1]))
    state = first.state_dict()
    second = snugfit.prepare(
        make_model("mlp", torch.float32), Recipe(precision="16-mixed"), loss=cross_entropy, device="cpu"
    )
    second.load_state_dict(state)
    assert second._scaler.get_scale() == first._scaler.get_scale() == 2.0**15


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_weights_of_16_bits_are_refused(precision):
    with pytest.raises(InputError, match=r"'stem.weight' holds 16 bits already"):
        snugfit.prepare(make_model("mlp", torch.bfloat16), Recipe(precision=precision), device="cpu")
