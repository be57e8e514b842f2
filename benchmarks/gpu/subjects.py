"""The models that are measured, each in a size for a card and in one of the same structure for a CPU. Imports no torch.

They are built without weights; the text models from configs, so nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Kind = str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and its data."""

    family: str
    """What kind of model it is, for the report."""
    build: Callable[[Kind], torch.nn.Module]
    """Builds it in the size for `cuda` or `cpu`."""
    batch: Callable[[Kind, int], Any]
    """Makes a batch of so many samples."""
    samples: Mapping[Kind, int]
    """Samples of a batch, where nothing else is asked for."""
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    """The loss; None where the model returns it."""
    loss_weight: str = "samples"
    """How losses of microbatches combine."""
    packages: tuple[str, ...] = ()
    """Packages it comes from."""
    trained: bool = True
    """Whether `snugfit train` reads data of its kind."""

    def train_options(self, kind: Kind) -> dict[str, Any] | None:
        """Returns the options of `snugfit train` for its task and the shape of its data; None where it reads no such data.

        Args:
            kind: `cuda` or `cpu`.
        """
        made_by = getattr(self.batch, "keywords", {})
        if self.loss is image_loss:
            return {"task": "image-classification", "image_size": made_by["side"][kind]}
        if not self.trained:
            return None
        task = "causal-lm" if made_by["labels"] == "next" else "text-classification"
        return {"task": task, "seq_len": made_by["length"][kind]}


def image_loss(output: Any, batch: Any) -> torch.Tensor:
    """Cross entropy of scores `[B, classes]`."""
    import torch.nn.functional as F

    return F.cross_entropy(output, batch[1])


def pixel_loss(output: Any, batch: Any) -> torch.Tensor:
    """Cross entropy of scores `[B, classes, H, W]` under `out`."""
    import torch.nn.functional as F

    return F.cross_entropy(output["out"], batch[1])


def images(kind: Kind, samples: int, *, side: Mapping[Kind, int], pixels: bool = False) -> Any:
    """Random images `[B, 3, S, S]` and labels `[B]`, or `[B, S, S]` for `pixels`."""
    import torch

    size = side[kind]
    labels = (samples, size, size) if pixels else (samples,)
    return torch.randn(samples, 3, size, size), torch.randint(0, 10, labels)


def tokens(kind: Kind, samples: int, *, length: Mapping[Kind, int], labels: str) -> dict[str, Any]:
    """Random tokens `[B, T]`: with padding and a label a sequence, or with every next token as its label."""
    import torch

    size = length[kind]
    ids = torch.randint(0, 900, (samples, size))
    if labels == "next":
        return {"input_ids": ids, "labels": ids.clone()}
    mask = torch.ones(samples, size, dtype=torch.long)
    mask[0, size // 2 :] = 0  # transformers leaves out a mask whose values are all 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (samples,))}


# -- torchvision


def _torchvision(kind: Kind, *, name: str, cpu: Mapping[str, Any]) -> torch.nn.Module:
    """A builder of torchvision on a card; on a CPU the class behind it, smaller."""
    import torchvision.models as zoo

    if kind == "cuda" or not cpu:
        return getattr(zoo, name)(weights=None, num_classes=10)
    return _small(zoo, **cpu)


def _small(zoo: Any, *, of: str, **arguments: Any) -> torch.nn.Module:
    from torchvision.models.convnext import CNBlockConfig
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    if of == "ConvNeXt":
        widths = arguments.pop("widths")
        following = [*widths[1:], None]
        arguments["block_setting"] = [
            CNBlockConfig(one, other, 1) for one, other in zip(widths, following, strict=True)
        ]
    elif of == "SwinV2":
        of = "SwinTransformer"
        arguments |= {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    return getattr(zoo, of)(num_classes=10, **arguments)


def _segmentation(kind: Kind) -> torch.nn.Module:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    return lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=10)


_VIT = {"of": "VisionTransformer", "image_size": 32, "patch_size": 8, "num_heads": 4, "hidden_dim": 96, "mlp_dim": 384}
_SWIN = {"patch_size": [4, 4], "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
_SIDES = {"cuda": 224, "cpu": 64}


def _image_model(
    family: str, name: str, samples: int, cpu: Mapping[str, Any], *, side: Mapping[Kind, int] = _SIDES, few: int = 4
) -> Subject:
    return Subject(
        family=family,
        build=functools.partial(_torchvision, name=name, cpu=cpu),
        batch=functools.partial(images, side=side),
        samples={"cuda": samples, "cpu": few},
        loss=image_loss,
        packages=("torchvision",),
    )


# -- timm


def _timm(kind: Kind, *, name: str, cpu: Mapping[str, Any]) -> torch.nn.Module:
    import timm

    return timm.create_model(name, num_classes=10, **(cpu if kind == "cpu" else {}))


def _timm_model(family: str, name: str, samples: int, cpu: Mapping[str, Any], side: Mapping[Kind, int]) -> Subject:
    return Subject(
        family=family,
        build=functools.partial(_timm, name=name, cpu=cpu),
        batch=functools.partial(images, side=side),
        samples={"cuda": samples, "cpu": 4},
        loss=image_loss,
        packages=("timm",),
    )


# -- transformers


def _transformers(kind: Kind, *, model: str, config: str, common: Mapping[str, Any], sizes: Mapping[Kind, Any]) -> Any:
    """Builds a class of transformers from a config."""
    import transformers

    made = getattr(transformers, config)(**common, **sizes[kind])
    made.use_cache = False
    return getattr(transformers, model)(made)


def _text_model(
    family: str,
    model: str,
    config: str,
    samples: int,
    length: int,
    sizes: Mapping[Kind, Any],
    common: Mapping[str, Any] | None = None,
) -> Subject:
    classifier = model.endswith("ForSequenceClassification")
    return Subject(
        family=family,
        trained=family != "encoder-decoder",
        build=functools.partial(_transformers, model=model, config=config, common=common or {}, sizes=sizes),
        batch=functools.partial(tokens, length={"cuda": length, "cpu": 32}, labels="class" if classifier else "next"),
        samples={"cuda": samples, "cpu": 4},
        loss_weight="samples" if classifier else "tokens",
        packages=("transformers",),
    )


def _encoder(layers: int, width: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width,
        **more,
    }  # fmt: skip


def _decoder(
    layers: int, width: int, heads: int, groups: int, inner: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": groups,
        "intermediate_size": inner, "vocab_size": vocabulary, **more,
    }  # fmt: skip


# -- plain torch


def _lstm(kind: Kind) -> torch.nn.Module:
    from torch import nn

    class Tagger(nn.Module):
        """Embedding, two recurrent layers, a class for each sequence."""

        def __init__(self, words: int, width: int) -> None:
            super().__init__()
            self.embedding = nn.Embedding(words, width)
            self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
            self.head = nn.Linear(width, 2)

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
        ) -> dict[str, torch.Tensor]:
            states, _ = self.layers(self.embedding(input_ids))
            return {"loss": nn.functional.cross_entropy(self.head(states[:, -1]), labels)}

    return Tagger(30_000, 1024) if kind == "cuda" else Tagger(1000, 64)


SUBJECTS: dict[str, Subject] = {
    "resnet50": _timm_model(
        "CNN", "resnet50", 64, {"layers": (1, 1, 1, 1), "channels": (16, 32, 64, 128)}, {"cuda": 224, "cpu": 48}
    ),
    "regnet_y_400mf": _image_model("CNN", "regnet_y_400mf", 128, {}),
    "convnext_tiny": _image_model("CNN", "convnext_tiny", 32, {"of": "ConvNeXt", "widths": (24, 48, 96, 192)}),
    "efficientnet_b0": _image_model("CNN", "efficientnet_b0", 64, {}),
    "densenet121": _image_model(
        "CNN", "densenet121", 32,
        {"of": "DenseNet", "growth_rate": 8, "block_config": (2, 3, 3, 2), "num_init_features": 16},
    ),
    "mobilenetv3": _timm_model("CNN", "mobilenetv3_small_100", 256, {}, _SIDES),
    "lraspp": Subject(
        family="segmentation", trained=False, build=_segmentation, loss=pixel_loss, samples={"cuda": 16, "cpu": 4},
        batch=functools.partial(images, side={"cuda": 512, "cpu": 64}, pixels=True), packages=("torchvision",),
    ),
    "vit_b_16": _image_model(
        "ViT", "vit_b_16", 64, {**_VIT, "num_layers": 3}, side={"cuda": 224, "cpu": 32}, few=8
    ),
    "vit_l_16": _image_model(
        "ViT", "vit_l_16", 32, {**_VIT, "num_layers": 6}, side={"cuda": 224, "cpu": 32}, few=8
    ),
    "deit_small": _timm_model(
        "ViT", "deit_small_patch16_224", 64,
        {"img_size": 32, "patch_size": 8, "embed_dim": 96, "depth": 3, "num_heads": 4}, {"cuda": 224, "cpu": 32},
    ),
    "swin_t": _image_model("Swin", "swin_t", 32, {"of": "SwinTransformer", **_SWIN}, side={"cuda": 224, "cpu": 32}),
    "swin_v2_t": _image_model("Swin", "swin_v2_t", 32, {"of": "SwinV2", **_SWIN}, side={"cuda": 256, "cpu": 32}),
    "bert_base": _text_model(
        "encoder", "BertForSequenceClassification", "BertConfig", 32, 128,
        {"cuda": {}, "cpu": _encoder(3, 64, 4, vocab_size=1000, max_position_embeddings=64)},
    ),
    "bert_large": _text_model(
        "encoder", "BertForSequenceClassification", "BertConfig", 4, 512,
        {"cuda": _encoder(24, 1024, 16), "cpu": _encoder(4, 128, 4, vocab_size=1000, max_position_embeddings=64)},
    ),
    "distilbert": _text_model(
        "encoder", "DistilBertForSequenceClassification", "DistilBertConfig", 32, 256,
        {"cuda": {}, "cpu": {"n_layers": 2, "dim": 64, "n_heads": 4, "hidden_dim": 256, "vocab_size": 1000}},
    ),
    "deberta": _text_model(
        "encoder", "DebertaV2ForSequenceClassification", "DebertaV2Config", 16, 128,
        {
            "cuda": _encoder(12, 768, 12, vocab_size=32_000),
            "cpu": _encoder(2, 64, 4, vocab_size=1000, max_position_embeddings=64),
        },
        # without problem_type its loss selects labels by their values
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "problem_type": "single_label_classification"},
    ),
    "gpt2": _text_model(
        "decoder", "GPT2LMHeadModel", "GPT2Config", 8, 512,
        {"cuda": {}, "cpu": {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 1000, "n_positions": 64}},
    ),
    "llama_1b": _text_model(
        "decoder", "LlamaForCausalLM", "LlamaConfig", 4, 1024,
        {"cuda": _decoder(16, 2048, 32, 8, 8192, 32_000), "cpu": _decoder(3, 64, 4, 2, 192, 1000)},
    ),
    "qwen3_0.6b": _text_model(
        "decoder", "Qwen3ForCausalLM", "Qwen3Config", 2, 1024,
        {
            "cuda": _decoder(28, 1024, 16, 8, 3072, 151_936, head_dim=128),
            "cpu": _decoder(3, 64, 4, 2, 192, 4000, head_dim=16),
        },
        {"tie_word_embeddings": True},
    ),
    "mixtral": _text_model(
        "mixture of experts", "MixtralForCausalLM", "MixtralConfig", 4, 512,
        {"cuda": _decoder(4, 1024, 16, 4, 2048, 32_000), "cpu": _decoder(2, 64, 4, 2, 96, 1000)},
        {"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "t5_small": _text_model(
        "encoder-decoder", "T5ForConditionalGeneration", "T5Config", 16, 256,
        {
            "cuda": {},
            "cpu": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000},
        },
        {"decoder_start_token_id": 0, "pad_token_id": 0},
    ),
    "lstm": Subject(
        family="recurrent", trained=False, build=_lstm, samples={"cuda": 64, "cpu": 8},
        batch=functools.partial(tokens, length={"cuda": 256, "cpu": 32}, labels="class"),
    ),
}  # fmt: skip
"""Name -> subject."""

STAND_INS = {
    "resnet50": 518_282,
    "convnext_tiny": 513_538,
    "densenet121": 37_474,
    "vit_b_16": 356_938,
    "vit_l_16": 692_458,
    "deit_small": 356_938,
    "swin_t": 78_190,
    "swin_v2_t": 89_806,
    "bert_base": 222_594,
    "bert_large": 946_562,
    "distilbert": 201_154,
    "deberta": 197_314,
    "gpt2": 218_176,
    "llama_1b": 275_904,
    "qwen3_0.6b": 404_000,
    "mixtral": 448_832,
    "t5_small": 228_864,
    "lstm": 130_690,
}
"""Subjects that are a small model of the same structure on a CPU -> its parameters; the others are of full size there."""


def described(name: str, kind: Kind) -> str:
    """Returns what a subject's name does not say of it; nothing where it is what it is called.

    Args:
        name: A key of `SUBJECTS`.
        kind: `cuda` or `cpu`.
    """
    if kind != "cpu" or name not in STAND_INS:
        return ""
    return f"stand-in of {STAND_INS[name] / 1e6:.2g} M parameters"
