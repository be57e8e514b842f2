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
    with pytest.warns(SnugfitWarning, match="MLP has no attention"):
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
