"""True low precision: everything in 16 bits, and the ways it goes wrong."""

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, SnugfitWarning, TrainingError


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize(("precision", "dtype"), [("bf16-true", torch.bfloat16), ("16-true", torch.float16)])
def test_weights_gradients_state_and_batch(precision, dtype):
    model, seen = make_model("cnn", torch.float32), set()
    trainer = snugfit.prepare(model, Recipe(precision=precision), loss=cross_entropy, device="cpu")
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: seen.add(weight.grad.dtype))
    model.stem.register_forward_pre_hook(lambda module, args: seen.add(args[0].dtype))
    trainer.step(make_batches("cnn", 8, 1, torch.float32)[0])
    assert seen == {dtype} == {weight.dtype for weight in model.parameters()}
    assert model.stages[0].layers[1].running_mean.dtype == dtype
    assert model.stages[0].layers[1].num_batches_tracked.dtype == torch.int64
    for state in trainer.state_dict()["optimizer"]["state"].values():
        assert state["exp_avg"].dtype == dtype


def test_fp16_warns_at_the_start_and_stops_on_overflow_with_the_cause():
    model = make_model("mlp", torch.float32)
    with pytest.warns(SnugfitWarning, match="overflows above 65504"):
        trainer = snugfit.prepare(model, Recipe(precision="16-true"), loss=cross_entropy, device="cpu")
    before = model.head.weight.clone()
    inputs, labels = make_batches("mlp", 8, 1, torch.float32)[0]
    with pytest.raises(TrainingError, match=r"the loss is nan.*fp16 overflows above 65504: use bf16-true"):
        trainer.step((inputs * 1e6, labels))
    assert torch.equal(before, model.head.weight)


def test_a_norm_beyond_fp16_is_clipped_and_not_called_an_overflow():
    model = torch.nn.Linear(400, 1, bias=False)
    with pytest.warns(SnugfitWarning):
        trainer = snugfit.prepare(
            model, Recipe(precision="16-true"), optimizer="sgd", lr=1.0, clip_norm=1.0, device="cpu",
            loss=lambda output, batch: output.float().sum(),
        )  # fmt: skip
    with torch.no_grad():
        model.weight.zero_()
    trainer.step(torch.full((1, 400), 10000.0))
    assert float(model.weight.detach().float().norm()) == pytest.approx(1.0, rel=1e-2)


def test_angles_of_rotary_positions_stay_in_float32():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    before = model.model.rotary_emb.inv_freq.clone()
    snugfit.prepare(model, Recipe(precision="bf16-true"), device="cpu")
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
