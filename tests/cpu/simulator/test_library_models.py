"""Models of libraries that were refused although they train: experts in float32, masks, layers without a shape."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit.fake_device.fake_versions import grouped_product
from snugfit.measure.allocator_events import AllocatorEvents

WORDS = 120


def config(name, **settings):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    common = {**sizes, **heads, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    found = getattr(transformers, f"{name}Config", None)
    if found is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return getattr(transformers, f"{name}ForCausalLM")(found(**{**common, **settings}))


MIXTURES = {
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2Moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    },
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "moe_intermediate_size": 16},
    "GptOss": {"num_local_experts": 4, "head_dim": 8},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {
        "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 12,
        "qk_rope_head_dim": 4, "v_head_dim": 8, "qk_nope_head_dim": 8,
    },
    "Jamba": {
        "num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4,
    },
}  # fmt: skip


def words():
    ids = torch.arange(2 * 12).view(2, 12) * 7 % WORDS
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_experts_in_float32_are_estimated(pool, name, device):
    model = config(name, **MIXTURES[name])
    found = snugfit.estimate(model, words(), device=device, pool=pool)
    assert found.anatomy_bytes["weights"] >= 4 * sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [5, 8])
def test_a_grouped_product_has_the_layout_of_the_real_one(dtype, columns):
    if not hasattr(F, "grouped_mm"):
        pytest.skip("this torch has no grouped_mm")
    rows, size, ends = 10, 16, torch.tensor([2, 5, 10], dtype=torch.int32)
    first = torch.randn(rows, size, dtype=dtype)
    weight = torch.randn(3, size, 8 if columns == 8 else 16, dtype=dtype)[:, :, :columns]
    try:
        real = F.grouped_mm(first, weight, offs=ends)
    except RuntimeError as error:
        pytest.skip(f"this torch does not multiply {dtype} in groups here: {error}")
    found = grouped_product(first, weight, ends)
    assert (found.shape, found.stride(), found.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_hidden_states_are_found_in_a_model_that_was_built_elsewhere(pool, device):
    transformers = pytest.importorskip("transformers")
    model = transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(
            hidden_sizes=[8, 16], depths=[1, 1], num_attention_heads=[1, 2], num_encoder_blocks=2, sr_ratios=[2, 1],
            patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=3,
        )
    )  # fmt: skip
    batch = {"pixel_values": torch.rand(2, 3, 32, 32), "labels": torch.zeros(2, 32, 32, dtype=torch.long)}
    assert snugfit.estimate(model, batch, device=device, pool=pool).peak_allocated_bytes > 0


class Encoder(nn.Module):
    def __init__(self, masks, size=32):
        super().__init__()
        self.masks = masks
        self.inside = nn.Linear(8, size)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(size, 4, 64, 0.0, batch_first=True), 2)
        self.out = nn.Linear(size, 3)

    def forward(self, x):
        return self.out(self.encoder(self.inside(x), **self.masks(x))).mean(1)


def causal(x):
    return {"mask": nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)}


def causal_by_hand(x):
    length = x.shape[1]
    return {"mask": torch.triu(torch.ones(length, length, dtype=torch.bool, device=x.device), diagonal=1)}


def padding(x):
    return {"src_key_padding_mask": torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)}


def padding_of_the_data(x):
    return {"src_key_padding_mask": x[..., 0] > 5}


def both(x):
    return {**causal_by_hand(x), **padding(x)}


def none(x):
    return {}


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize("masks", [none, causal, causal_by_hand, padding, padding_of_the_data, both])
def test_masks_of_transformer_encoders(pool, masks, device):
    batch = torch.randn(4, 10, 8), torch.arange(4) % 3
    found = snugfit.estimate(
        Encoder(masks), batch, device=device, pool=pool, loss=lambda output, given: F.cross_entropy(output, given[1])
    )  # an evaluation that could not be simulated would warn, which is an error here
    assert found.anatomy_bytes["activations"] > 0


@pytest.mark.parametrize("masks", [causal, padding_of_the_data])
def test_masked_encoders_take_what_is_measured(pool, masks):
    def batch():
        return torch.randn(16, 24, 8), torch.arange(16) % 3

    def loss(output, given):
        return F.cross_entropy(output, given[1])

    def real():
        events = AllocatorEvents()
        events.start()
        trainer = snugfit.prepare(Encoder(masks), loss=loss, device="cpu")
        for _ in range(2):
            given = batch()
            trainer.step(given)
        events.stop()
        return events.peak_bytes

    real()
    found = snugfit.estimate(lambda: Encoder(masks), batch(), device="cpu", pool=pool, loss=loss)
    assert found.peak_allocated_bytes == pytest.approx(real(), rel=0.01)


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize(
    "layers, batch",
    [
        (lambda: [nn.LazyLinear(6), nn.LazyLinear(3)], torch.zeros(4, 8)),
        (lambda: [nn.Flatten(), nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.LazyLinear(3)], torch.zeros(4, 8)),
        (lambda: [nn.LazyConv2d(4, 3, padding="valid"), nn.Flatten(), nn.LazyLinear(3)], torch.zeros(4, 3, 6, 6)),
    ],
)
def test_lazy_layers_get_their_shapes(pool, layers, batch, device):
    model, other = nn.Sequential(*layers()), nn.Sequential(*layers())
    other(batch)
    loss = lambda output, given: output.square().mean()  # noqa: E731
    peaks = [
        snugfit.estimate(one, batch, device=device, pool=pool, loss=loss).peak_allocated_bytes
        for one in (model, lambda: nn.Sequential(*layers()), other)
    ]
    assert max(peaks) - min(peaks) <= 512  # a counter of a norm is built without memory, or travels with its value
    assert model[-1].has_uninitialized_params()  # the caller's model was left alone


def test_lazy_layers_that_nobody_can_look_at_are_said(pool):
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.lazy = nn.LazyLinear(3)

        def forward(self, x):
            return self.lazy(x) if x.sum() > 0 else x

    with pytest.raises(snugfit.InputError, match=r"'lazy\.\w+' is lazy.*Call the model on one batch"):
        snugfit.estimate(Looks(), torch.zeros(4, 8), device="cpu", pool=pool, loss=lambda output, given: output.mean())


@pytest.mark.parametrize("padding_word", ["valid", "same"])
def test_padding_in_words(pool, padding_word):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=padding_word), nn.Flatten())
    found = snugfit.estimate(
        model, torch.zeros(4, 3, 8, 8), device="cpu", pool=pool, loss=lambda output, given: output.square().mean()
    )
    number = nn.Sequential(nn.Conv2d(3, 8, 3, padding=0 if padding_word == "valid" else 1), nn.Flatten())
    other = snugfit.estimate(
        number, torch.zeros(4, 3, 8, 8), device="cpu", pool=pool, loss=lambda output, given: output.square().mean()
    )
    assert found.peak_allocated_bytes == other.peak_allocated_bytes


# Backward keeps the gates of the input and of the state before, the kernel's workspace, and the states.
@pytest.mark.parametrize("cell, kept", [(nn.LSTMCell, 4 + 4 + 4 + 2), (nn.GRUCell, 3 + 3 + 5 + 1)])
def test_recurrent_cells_called_step_by_step(pool, cell, kept):
    samples, size = 256, 128

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell(8, size)

        def forward(self, x):
            state = None
            for at in range(x.shape[1]):
                state = self.cell(x[:, at], state)
            return state[0] if isinstance(state, tuple) else state

    def peak(length):
        batch = torch.zeros(samples, length, 8)
        loss = lambda output, given: output.square().mean()  # noqa: E731
        return snugfit.estimate(Loop(), batch, device="rtx-4090", pool=pool, loss=loss).peak_allocated_bytes

    assert peak(12) - peak(10) == pytest.approx(2 * samples * size * 4 * kept, rel=0.01)
