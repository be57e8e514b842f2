"""Models of text."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.stranger_cases.adopted import Adopted, adopts


def tokens(samples=8, length=64, words=256):
    """A batch of token numbers and of those that come next."""
    return torch.randint(words, (samples, length)), torch.randint(words, (samples, length))


def next_words(output, batch):
    """Cross-entropy of the logits of every position."""
    return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())


@adopts("karpathy/nanoGPT", kind="language model")
def nano_gpt() -> Adopted:
    from model import GPT, GPTConfig

    config = GPTConfig(block_size=64, vocab_size=256, n_layer=4, n_head=4, n_embd=128)
    return Adopted(model=lambda: GPT(config), batch=tokens, forward=lambda model, batch: model(*batch)[1])


@adopts("karpathy/minGPT", kind="language model")
def min_gpt() -> Adopted:
    from mingpt.model import GPT

    def build():
        config = GPT.get_default_config()
        config.model_type, config.vocab_size, config.block_size = "gpt-nano", 256, 64
        return GPT(config)

    return Adopted(model=build, batch=tokens, forward=lambda model, batch: model(*batch)[1])


@adopts("karpathy/nanochat", kind="language model")
def nanochat() -> Adopted:
    from nanochat.gpt import GPT, GPTConfig

    def build():
        model = GPT(GPTConfig(sequence_len=64, vocab_size=256, n_layer=4, n_head=4, n_kv_head=2, n_embd=128))
        model.init_weights()
        return model

    return Adopted(model=build, batch=tokens, forward=lambda model, batch: model(*batch))


@adopts("codertimo/BERT-pytorch", kind="language model")
def bert_pytorch() -> Adopted:
    from bert_pytorch.model import BERT, BERTLM

    def loss(output, batch):  # as its trainer's
        labels = F.nll_loss(output[1].transpose(1, 2), batch["bert_label"], ignore_index=0)
        return labels + F.nll_loss(output[0], batch["is_next"], ignore_index=0)

    words = lambda n, *shape: torch.randint(1, n, shape)  # noqa: E731
    keys = lambda: {"bert_input": words(256, 8, 64), "segment_label": words(3, 8, 64), "bert_label": words(256, 8, 64)}  # noqa: E731
    run = lambda model, batch: model(batch["bert_input"], batch["segment_label"])  # noqa: E731
    batch = lambda: {**keys(), "is_next": torch.ones(8, dtype=torch.long)}  # noqa: E731
    return Adopted(model=lambda: BERTLM(BERT(256, 128, 3, 4), 256), batch=batch, forward=run, loss=loss)


@adopts("hyunwoongko/transformer", kind="translation")
def transformer() -> Adopted:
    from models.model.transformer import Transformer

    shape = {"d_model": 128, "n_head": 4, "max_len": 64, "ffn_hidden": 256, "n_layers": 3, "drop_prob": 0.1}
    more = {"src_pad_idx": 1, "trg_pad_idx": 1, "trg_sos_idx": 2, "enc_voc_size": 200, "dec_voc_size": 200}
    return Adopted(
        model=lambda: Transformer(**shape, **more, device="cpu"),
        batch=lambda: tokens(8, 33, 200),
        forward=lambda model, batch: model(batch[0], batch[1][:, :-1]),
        loss=lambda out, batch: F.cross_entropy(out.flatten(0, 1), batch[1][:, 1:].flatten(), ignore_index=1),
    )


@adopts("jadore801120/attention-is-all-you-need-pytorch", kind="translation")
def attention_is_all_you_need() -> Adopted:
    from transformer.Models import Transformer

    shape = {"d_word_vec": 128, "d_model": 128, "d_inner": 256, "n_layers": 3, "n_head": 4, "d_k": 32, "d_v": 32}
    return Adopted(
        model=lambda: Transformer(200, 200, 1, 1, **shape, n_position=64),
        batch=lambda: tokens(8, 33, 200),
        forward=lambda model, batch: model(batch[0], batch[1][:, :-1]),
        loss=lambda out, batch: F.cross_entropy(out, batch[1][:, 1:].flatten(), ignore_index=1, reduction="sum"),
        loss_weight="sum",
        lr=1e-4,
    )


@adopts("lucidrains/x-transformers", kind="language model")
def x_transformers() -> Adopted:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = {"dim": 128, "depth": 4, "heads": 4, "rotary_pos_emb": True, "ff_glu": True}
    return Adopted(
        model=lambda: AutoregressiveWrapper(
            TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=Decoder(**layers))
        ),
        batch=lambda: tokens(8, 65)[0],
    )


@adopts("lucidrains/reformer-pytorch", kind="language model")
def reformer() -> Adopted:
    from reformer_pytorch import ReformerLM

    shape = {"num_tokens": 256, "dim": 64, "depth": 2, "max_seq_len": 128, "heads": 2, "bucket_size": 32, "n_hashes": 2}
    return Adopted(model=lambda: ReformerLM(**shape, causal=True), batch=lambda: tokens(4, 128), loss=next_words)


@adopts("johnma2006/mamba-minimal", kind="language model")
def mamba_minimal() -> Adopted:
    import model as mamba

    mamba.Union = None  # forgotten among its imports
    args = mamba.ModelArgs(d_model=64, n_layer=2, vocab_size=256)
    return Adopted(model=lambda: mamba.Mamba(args), batch=lambda: tokens(4, 32), loss=next_words)


@adopts("locuslab/TCN", kind="language model")
def tcn() -> Adopted:
    from TCN.word_cnn.model import TCN

    return Adopted(model=lambda: TCN(64, 256, [64, 64, 64], tied_weights=True), batch=tokens, loss=next_words)


@adopts("pytorch/examples", kind="language model")
def word_language_model() -> Adopted:
    from model import RNNModel

    def loss(model, batch):
        output, _ = model(batch[0], model.init_hidden(16))
        return F.nll_loss(output, batch[1].flatten())

    return Adopted(
        model=lambda: RNNModel("LSTM", 256, 64, 64, 2, 0.2), batch=lambda: tokens(32, 16), forward=loss, optimizer="sgd"
    )


@adopts("facebookresearch/esm", kind="protein")
def esm2() -> Adopted:
    from esm.model.esm2 import ESM2

    return Adopted(
        model=lambda: ESM2(num_layers=3, embed_dim=64, attention_heads=4),
        batch=lambda: (torch.randint(4, 24, (8, 48)), torch.randint(4, 24, (8, 48))),
        forward=lambda model, batch: model(batch[0])["logits"],
        loss=next_words,
        assume={"branch": False},  # whether there is padding
    )


@adopts("BlinkDL/RWKV-LM", kind="language model")
def rwkv_v1() -> Adopted:
    from src.model import GPT, GPTConfig

    shape = {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_attn": 64, "n_ffn": 64}
    tiny = {"rwkv_emb_scale": 0.4, "rwkv_tiny_attn": 0, "rwkv_tiny_head": 0}
    config = GPTConfig(256, 64, model_type="RWKV", **shape, **tiny)
    return Adopted(model=lambda: GPT(config), batch=tokens, forward=lambda model, batch: model(*batch)[1])
