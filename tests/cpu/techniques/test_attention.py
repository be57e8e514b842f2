"""Attention kernels: the same numbers, fewer bytes, said so where there is nothing to switch."""

import pytest
import torch
import torch.nn.functional as F
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import InputError, Recipe, SnugfitWarning


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, mask=None):
        return self.attention(x, x, x, need_weights=False, attn_mask=mask)[0]


def saved_bytes(kernels):
    torch.manual_seed(0)
    trainer = snugfit.prepare(
        Attending(), Recipe(attention=kernels, offload_activations="all"), loss=lambda output, batch: output.square().mean(),
        device="cpu", optimizer="sgd",
    )  # fmt: skip
    return float(trainer.step(torch.randn(2, 128, 8))), trainer.peak_host_bytes


def test_eager_holds_the_scores_and_sdpa_does_not():
    eager_loss, eager_bytes = saved_bytes("eager")
    sdpa_loss, sdpa_bytes = saved_bytes("sdpa")
    assert eager_loss == pytest.approx(sdpa_loss, rel=1e-5)
    scores_bytes = 2 * 2 * 128 * 128 * 4
    assert eager_bytes > scores_bytes > sdpa_bytes


def test_timm_and_transformers_are_switched_by_what_they_offer():
    import timm
    from transformers import BertConfig, BertModel

    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=2, num_classes=5
    )
    bert = BertModel(
        BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=9)
    )
    for choice, fused in (("eager", False), ("sdpa", True)):
        snugfit.prepare(vit, Recipe(attention=choice), device="cpu")
        assert [block.attn.fused_attn for block in vit.blocks] == [fused, fused]
        snugfit.prepare(bert, Recipe(attention=choice), device="cpu")
        assert bert.config._attn_implementation == choice


def test_no_attention_warns():
    with pytest.warns(SnugfitWarning, match="no attention in the modules of MLP: it has no effect"):
        snugfit.prepare(make_model("mlp"), Recipe(attention="sdpa"), device="cpu")


def test_flash_says_why_it_cannot_run():
    class Masked(Attending):
        def forward(self, x):
            query = x.view(2, 6, 2, 4).transpose(1, 2)
            return (
                F.scaled_dot_product_attention(query, query, query, attn_mask=torch.zeros(6, 6), dropout_p=0.3)
                + self.attention.in_proj_bias.sum()
            )

    trainer = snugfit.prepare(
        Masked(), Recipe(attention="flash"), loss=lambda output, batch: output.sum(), device="cpu"
    )
    with pytest.raises(InputError, match=r"attention='flash': the flash kernel cannot run here.*attention='sdpa'"):
        trainer.step(torch.randn(2, 6, 8))
    model = make_model("vit", torch.float32)  # with dropout in its attention, which the CPU's kernel does not take
    with pytest.raises(InputError, match="flash kernel cannot run"):
        snugfit.prepare(model, Recipe(attention="flash"), loss=cross_entropy, device="cpu").step(
            make_batches("vit", 2, 1, torch.float32)[0]
        )


def test_flash_runs_where_it_can():
    trainer = snugfit.prepare(
        Attending(), Recipe(attention="flash"), loss=lambda output, batch: output.square().mean(), device="cpu"
    )
    assert trainer.step(torch.randn(2, 6, 8)).isfinite()
    assert torch.backends.cuda.math_sdp_enabled(), "the caller's choice of kernels is back"


def attending_model(name):
    import timm
    import transformers as t

    t.logging.set_verbosity_error()
    few = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    text = {**few, "vocab_size": 97, "max_position_embeddings": 64}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    makers = {
        "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**text, **still)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**text, num_key_value_heads=2, use_cache=False)),
        "vit": lambda: t.ViTForImageClassification(
            t.ViTConfig(**few, **still, image_size=16, patch_size=4, num_labels=5)
        ),
        "timm": lambda: timm.create_model(
            "vit_tiny_patch16_224", img_size=16, patch_size=4, depth=2, embed_dim=32, num_heads=4, num_classes=5
        ),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return makers[name]()


def attending_batch(name):
    generator = torch.Generator().manual_seed(1)
    if name in ("vit", "timm"):
        images = torch.randn(3, 3, 16, 16, generator=generator)
        labels = torch.randint(0, 5, (3,), generator=generator)
        return (images, labels) if name == "timm" else {"pixel_values": images, "labels": labels}
    ids = torch.randint(0, 97, (3, 20), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    labels = torch.randint(0, 2, (3,), generator=generator) if name == "bert" else ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16-true", 0.04)])
@pytest.mark.parametrize("name", ["bert", "llama", "vit", "timm"])
def test_attention_matches_plain_training(name, precision, tolerance):
    """SDPA against eager: loss and gradients within the dtype's own error."""
    batch = attending_batch(name)

    def gradients(choice):
        model, found = attending_model(name), {}
        for key, weight in model.named_parameters():
            weight.register_post_accumulate_grad_hook(
                lambda weight, key=key: found.__setitem__(key, weight.grad.double())
            )
        trainer = snugfit.prepare(
            model, Recipe(attention=choice, precision=precision), device="cpu", optimizer="sgd", lr=0.0,
            loss=cross_entropy if name == "timm" else None,
        )  # fmt: skip
        return float(trainer.step(batch)), found

    (eager_loss, eager), (sdpa_loss, sdpa) = gradients("eager"), gradients("sdpa")
    assert sdpa_loss == pytest.approx(eager_loss, rel=tolerance)
    largest = max(float(gradient.norm()) for gradient in eager.values())
    assert largest > 0 and eager.keys() == sdpa.keys()
    for key, gradient in eager.items():
        assert (sdpa[key] - gradient).norm() <= tolerance * (gradient.norm() + 0.05 * largest), key


def test_attention_of_its_own_is_refused():
    from transformers import BigBirdConfig, BigBirdModel

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BigBirdModel(BigBirdConfig(**shape, vocab_size=9, block_size=16))
    with pytest.raises(InputError, match=r"BigBirdModel is its own \(eager\) and cannot be switched to sdpa"):
        snugfit.prepare(model, Recipe(attention="sdpa"), device="cpu")
    snugfit.prepare(model, Recipe(attention="eager"), device="cpu")


def test_another_prepare_brings_the_models_own_attention_back():
    bert, vit = attending_model("bert"), attending_model("timm")
    for model in (bert, vit):
        snugfit.prepare(model, Recipe(attention="eager"), device="cpu")
        snugfit.prepare(model, Recipe(), device="cpu")
    assert bert.config._attn_implementation == "sdpa"
    assert all(block.attn.fused_attn for block in vit.blocks)
