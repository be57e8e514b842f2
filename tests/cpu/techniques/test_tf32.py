"""TF32: no effect outside CUDA, said so; the caller's setting comes back."""

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, SnugfitWarning


def test_warns_on_cpu_and_trains_in_fp32():
    model, plain, batch = make_model("mlp"), make_model("mlp"), make_batches("mlp", 8, 1)[0]
    with pytest.warns(SnugfitWarning, match="no effect on cpu"):
        trainer = snugfit.prepare(model, Recipe(precision="tf32"), loss=cross_entropy, device="cpu")
    trainer.step(batch)
    snugfit.prepare(plain, loss=cross_entropy, device="cpu").step(batch)
    assert torch.equal(model.head.weight, plain.head.weight)


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize("fails", [False, True])
def test_allowed_inside_a_step_only(fails):
    def setting():
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision

    before, inside = setting(), []

    def loss(output, batch):
        inside.append(setting())
        if fails:
            raise KeyError("stop")
        return cross_entropy(output, batch)

    trainer = snugfit.prepare(make_model("mlp"), Recipe(precision="tf32"), loss=loss, device="cpu")
    if fails:
        with pytest.raises(KeyError):
            trainer.step(make_batches("mlp", 8, 1)[0])
    else:
        trainer.step(make_batches("mlp", 8, 1)[0])
    assert inside == [("tf32", "tf32")] and setting() == before
