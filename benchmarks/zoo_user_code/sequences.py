"""Sequences: a tagger, translation with teacher forcing, an encoder with masks, a small GPT written by hand."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo_user_code.case import Case

WORDS, TAGS = 800, 9


def tokens(samples: int, length: int, words: int = WORDS) -> Tensor:
    return (torch.arange(samples * length) * 37 % (words - 1)).view(samples, length) + 1


class Tagger(nn.Module):
    """Two directions of LSTM, a label for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64, padding_idx=0)
        self.lstm = nn.LSTM(64, 96, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.tags = nn.Linear(192, TAGS)

    def forward(self, x: Tensor) -> Tensor:
        return self.tags(self.lstm(self.words(x))[0])


def tagger() -> Case:
    def batch() -> tuple[Tensor, Tensor]:
        x = tokens(16, 40)
        y = x % TAGS
        y[:, 35:] = -100
        return x, y

    return Case(
        name="lstm tagger",
        style="a recurrent library kernel, ignored labels",
        build=Tagger,
        batch=batch,
        loss=lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch[1].flatten(), ignore_index=-100),
    )


class Seq2Seq(nn.Module):
    """GRU to GRU; the decoder runs token by token and is given the right token before."""

    def __init__(self, size: int = 64):
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, size), nn.Embedding(WORDS, size)
        self.encoder = nn.GRU(size, size, batch_first=True)
        self.decoder = nn.GRUCell(size, size)
        self.out = nn.Linear(size, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        state = self.encoder(self.source(source))[1][0]
        scores = []
        for at in range(target.shape[1] - 1):
            state = self.decoder(self.target(target[:, at]), state)
            scores.append(self.out(state))
        return torch.stack(scores, dim=1)


def seq2seq() -> Case:
    return Case(
        name="gru seq2seq",
        style="a Python loop over time with teacher forcing",
        build=Seq2Seq,
        batch=lambda: {"source": tokens(12, 15), "target": tokens(12, 11)},
        loss=lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch["target"][:, 1:].flatten()),
    )


class MaskedEncoder(nn.Module):
    """nn.TransformerEncoder under a causal mask and a padding mask."""

    def __init__(self, size: int = 64):
        super().__init__()
        self.words = nn.Embedding(WORDS, size)
        layer = nn.TransformerEncoderLayer(size, 4, 4 * size, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(size, TAGS)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        encoded = self.encoder(self.words(ids), mask=causal, src_key_padding_mask=padding)
        return self.out(encoded[:, 0])


def masked_encoder() -> Case:
    def batch() -> tuple[Tensor, Tensor, Tensor]:
        padding = torch.zeros(12, 24)
        padding[6:, 20:] = -math.inf
        return tokens(12, 24), padding, torch.arange(12) % TAGS

    return Case(
        name="transformer encoder",
        style="causal and padding masks of nn.TransformerEncoder",
        build=MaskedEncoder,
        batch=batch,
        forward=lambda model, batch: model(batch[0], batch[1]),
        loss=lambda output, batch: F.cross_entropy(output, batch[2]),
    )


class Block(nn.Module):
    """Attention and a feed-forward network, with norms before them."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, size))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Tied embeddings, blocks, and the loss computed in forward where targets are given."""

    def __init__(self, size: int = 96, blocks: int = 3, length: int = 64):
        super().__init__()
        self.length = length
        self.tokens, self.positions = nn.Embedding(WORDS, size), nn.Embedding(length, size)
        self.blocks = nn.ModuleList([Block(size, 4) for _ in range(blocks)])
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, WORDS, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        assert idx.shape[1] <= self.length, f"{idx.shape[1]} tokens, but the positions end at {self.length}"
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, WORDS), targets.reshape(-1))
        return logits, loss


def gpt() -> Case:
    return Case(
        name="nano gpt",
        style="own attention, tied weights, (logits, loss) returned",
        build=GPT,
        batch=lambda: {"idx": tokens(8, 48), "targets": tokens(8, 48).roll(-1, 1)},
        loss=lambda output, batch: output[1],
    )
