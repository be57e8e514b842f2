"""Small models of all kinds, with a batch and the arguments of `snugfit.prepare`, for benchmarks of the whole path.

Each is built in a moment and trained in milliseconds: a plan depends on structure (blocks, heads, norms, dropout), not size.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and how it is trained."""

    build: Callable[[], nn.Module]
    """Builds the model; draws its values from torch's random state."""
    batch: Callable[[], Any]
    """Makes a batch."""
    arguments: Mapping[str, Any]
    """Arguments of `snugfit.prepare`, beside model and plan."""
    pins: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the plan is told to have."""


# Losses and batches ------------------------------------------------------------------------------------------------


def cross_entropy(output: Any, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1])


def own_loss_sum(output: Any, batch: Any) -> Tensor:
    """A VAE's: reconstruction and divergence, summed over samples."""
    image, mean, log_variance = output
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return F.mse_loss(image, batch[0].flatten(1), reduction="sum") + divergence


def pixels(output: Any, batch: Any) -> Tensor:
    return F.mse_loss(output, batch[0])


def words_ahead(output: Any, batch: Any) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def images(samples: int = 16, side: int = 32, classes: int = 10) -> Callable[[], Any]:
    return lambda: (torch.randn(samples, 3, side, side), torch.randint(0, classes, (samples,)))


def vectors(samples: int = 32, width: int = 48, tokens: int = 32) -> Callable[[], Any]:
    return lambda: (torch.randn(samples, tokens, width), torch.randint(0, 10, (samples,)))


def texts(samples: int = 8, length: int = 48, words: int = 384) -> Callable[[], Any]:
    return lambda: (torch.randint(0, words, (samples, length)), torch.randint(0, words, (samples, length)))


def language(samples: int = 8, length: int = 48, words: int = 384) -> Callable[[], Any]:
    def make() -> Any:
        ids = torch.randint(3, words, (samples, length))
        return {"input_ids": ids, "labels": ids.clone()}

    return make


def sentences(samples: int = 8, length: int = 48, words: int = 384) -> Callable[[], Any]:
    return lambda: {"input_ids": torch.randint(3, words, (samples, length)), "labels": torch.randint(0, 2, (samples,))}


IMAGE = {"loss": cross_entropy, "optimizer": "adamw", "lr": 1e-3}
TOKENS = {"optimizer": "adamw", "lr": 1e-3, "loss_weight": "tokens"}
PLAIN = {"optimizer": "adamw", "lr": 1e-3}

# Libraries ---------------------------------------------------------------------------------------------------------


def _torchvision(name: str, **arguments: Any) -> Subject:
    def build() -> nn.Module:
        import torchvision.models as models

        return getattr(models, name)(**{"num_classes": 10, **arguments})

    return Subject(build=build, batch=images(), arguments=IMAGE)


def _timm(name: str, **arguments: Any) -> Subject:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, **{"num_classes": 10, **arguments})

    return Subject(build=build, batch=images(), arguments=IMAGE)


_FEW = {
    "vocab_size": 384, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
_GROUPED = {**_FEW, "num_key_value_heads": 2}
_OF_GPT = {"vocab_size": 384, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64}


def _transformers(kind: str, what: str, batch: Callable[[], Any], **config: Any) -> Subject:
    def build() -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()
        made = getattr(transformers, f"{kind}Config")(**{**config, "use_cache": False})
        return getattr(transformers, f"{kind}{what}")(made)

    return Subject(build=build, batch=batch, arguments=TOKENS if "LM" in what else PLAIN)


def _language(kind: str, **config: Any) -> Subject:
    return _transformers(kind, "ForCausalLM", language(), **config)


def _sentence(kind: str, **config: Any) -> Subject:
    return _transformers(kind, "ForSequenceClassification", sentences(), **config)


# Code as users write it --------------------------------------------------------------------------------------------


class Perceptron(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 16, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(one, two, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            for one, two in itertools.pairwise(widths)
        )
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.drop(x.flatten(1)))


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(x + self.norm2(self.conv2(y)))


class Residual(nn.Module):
    """Blocks with batch norm, activations as modules."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(12) for _ in range(4)))
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Autoencoder(nn.Module):
    """An image-to-image net with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        one = F.silu(self.down[0](x))
        two = F.silu(self.down[1](one))
        back = F.silu(self.up[0](two))
        return self.out(F.silu(self.up[1](torch.cat([back, one], 1))))


class Variational(nn.Module):
    """A VAE whose noise is drawn in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3 * 32 * 32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


class Recurrent(nn.Module):
    """A language model with an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(384, 48)
        self.lstm = nn.LSTM(48, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 384)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0])


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inside, self.outside = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inside(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(
            torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1), float("-inf")
        )
        return self.outside((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class DecoderBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):
    """A decoder written out by hand, its head tied to its words."""

    def __init__(self, words: int = 384, width: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(DecoderBlock(width) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """torch's own transformer layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class TowerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.0)
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.layers(self.norm(x)))


class Tower(nn.Module):
    """Many small equal layers, the activations of which are most of the memory."""

    def __init__(self, blocks: int = 8) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TowerBlock(48) for _ in range(blocks)))
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(1))


def own_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)


def _code(build: Callable[[], nn.Module], batch: Callable[[], Any], pins: Any = None, **arguments: Any) -> Subject:
    return Subject(build=build, batch=batch, arguments={**IMAGE, **arguments}, pins=pins or {})


_VIT = {"image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 48, "mlp_dim": 96}

SUBJECTS: dict[str, Subject] = {
    "torchvision resnet18": _torchvision("resnet18"),
    "torchvision mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "torchvision shufflenet_v2_x0_5": _torchvision("shufflenet_v2_x0_5"),
    "torchvision squeezenet1_1": _torchvision("squeezenet1_1"),
    "torchvision mnasnet0_5": _torchvision("mnasnet0_5"),
    "torchvision regnet_y_400mf": _torchvision("regnet_y_400mf"),
    "torchvision vision transformer": _torchvision("VisionTransformer", **_VIT),
    "torchvision densenet": _torchvision("DenseNet", growth_rate=8, block_config=(2, 3, 2), num_init_features=16),
    "torchvision swin": _torchvision(
        "SwinTransformer", patch_size=[2, 2], embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4],
        stochastic_depth_prob=0.0,
    ),
    "timm resnet10t": _timm("resnet10t"),
    "timm mobilenetv3_small_050": _timm("mobilenetv3_small_050"),
    "timm convnext_atto": _timm("convnext_atto", depths=(1, 1, 2, 1), dims=(16, 24, 32, 48)),
    "timm vit": _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, embed_dim=48, num_heads=4),
    "timm mobilenetv4_conv_small_050": _timm("mobilenetv4_conv_small_050"),
    "timm ghostnet_050": _timm("ghostnet_050"),
    "hf llama": _language("Llama", **_GROUPED),
    "hf mistral": _language("Mistral", **_GROUPED),
    "hf qwen2": _language("Qwen2", **_GROUPED),
    "hf gemma2": _language("Gemma2", **_GROUPED, head_dim=16),
    "hf phi": _language("Phi", **_FEW),
    "hf gpt2": _transformers("GPT2", "LMHeadModel", language(), **_OF_GPT),
    "hf gpt_neox": _language("GPTNeoX", **_FEW),
    "hf bloom": _language("Bloom", vocab_size=384, hidden_size=64, n_layer=3, n_head=4),
    "hf opt": _language(
        "OPT", vocab_size=384, hidden_size=64, ffn_dim=128, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=64,
    ),
    "hf bert": _sentence("Bert", **_FEW),
    "hf bert, eager attention": _sentence("Bert", **_FEW, attn_implementation="eager", hidden_dropout_prob=0.0,
                                           attention_probs_dropout_prob=0.0),
    "hf distilbert": _sentence("DistilBert", vocab_size=384, dim=64, hidden_dim=128, n_layers=3, n_heads=4),
    "hf roberta": _sentence("Roberta", **{**_FEW, "max_position_embeddings": 66}),
    "hf electra": _sentence("Electra", **_FEW, embedding_size=32),
    "hf masked bert": _transformers("Bert", "ForMaskedLM", language(), **_FEW),
    "code perceptron": _code(Perceptron, images()),
    "code convolutions with dropout": _code(Convolutions, images()),
    "code residual with batch norm": _code(Residual, images()),
    "code autoencoder": _code(Autoencoder, images(), loss=pixels),
    "code vae with a summed loss": _code(Variational, images(), loss=own_loss_sum, loss_weight="sum"),
    "code lstm": _code(Recurrent, texts(), loss=words_ahead),
    "code gpt": _code(SmallGPT, texts(), loss=words_ahead),
    "code gpt, clipped": _code(SmallGPT, texts(), loss=words_ahead, clip_norm=1.0),
    "code encoder of torch": _code(Encoder, vectors()),
    "code tower": _code(Tower, vectors()),
    "code tower, own optimizer": Subject(
        build=Tower, batch=vectors(), arguments={"loss": cross_entropy, "optimizer": own_optimizer}
    ),
    "code tower, checkpointing pinned": _code(Tower, vectors(), pins={"checkpoint": "none"}),
    "code tower, microbatch pinned": _code(Tower, vectors(), pins={"microbatch_size": 8}),
    "code tower, sgd": _code(Tower, vectors(), optimizer="sgd", lr=0.05, momentum=0.9),
}  # fmt: skip
"""Name -> model."""
