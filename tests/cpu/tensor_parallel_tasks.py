"""What ranks do in `techniques/test_tensor_parallel.py`, each in its own process, over gloo."""

import warnings
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from shard_tasks import among_others, share, whole
from small_models import cross_entropy
from torch import nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

import snugfit
from snugfit.runs.checkpoint_parts import Parts
from snugfit.techniques.shard import groups

TOKENS = 7


class _Attention(nn.Module):
    """Separate projections, and two counts that belong to what is cut."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.width = heads, width
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        samples, tokens, _ = x.shape
        q, k, v = (layer(x).view(samples, tokens, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(samples, tokens, self.width))


class Block(nn.Module):
    """A block of a decoder, its second half gated."""

    def __init__(self, width=24, heads=4):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        wide = self.second(x)
        return x + self.down(F.silu(self.gate(wide)) * self.up(wide))


class Decoder(nn.Module):
    """Two such blocks on numbers in place of words."""

    def __init__(self, heads=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(heads=heads) for _ in range(2))
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class _Dropping(nn.Module):
    """A block that drops what is cut, inside, and what is whole, behind it."""

    def __init__(self):
        super().__init__()
        self.wide, self.back = nn.Linear(24, 48), nn.Linear(48, 24)
        self.inside, self.outside = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x):
        return x + self.outside(self.back(self.inside(F.gelu(self.wide(x)))))


class _Dropped(Decoder):
    """Two of them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(_Dropping() for _ in range(2))


def _vit():
    return VisionTransformer(
        image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5
    )


_SIZES = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
MODELS = {
    "decoder": Decoder,
    "dropped": _Dropped,
    "vit": _vit,
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=31, n_embd=16, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=2)),
    "qwen": lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=8)),
}
TEXT = ("gpt2", "llama", "qwen")


def build(name, dtype=torch.float64):
    """A model with the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = MODELS[name]().to(dtype)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn(weight.shape, dtype=dtype))
    return model


def make_batches(name, sizes, dtype=torch.float64):
    """Batches of some sizes, the same every time; texts have labels that do not count, more in some samples."""
    generator = torch.Generator().manual_seed(11)
    found = []
    for samples in sizes:
        if name in TEXT:
            tokens = torch.randint(0, 31, (samples, TOKENS), generator=generator)
            labels = tokens.masked_fill(torch.arange(TOKENS) > 2 + torch.arange(samples)[:, None] % 5, -100)
            found.append((tokens, labels))
        else:
            shape = (samples, 3, 8, 8) if name == "vit" else (samples, TOKENS, 24)
            inputs = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            found.append((inputs, torch.randint(0, 5, (samples,), generator=generator)))
    return found


def _text_loss(output, batch):
    return F.cross_entropy(output.logits[:, :-1].transpose(1, 2), batch[1][:, 1:])


def trained(name, fields, settings, batches, dtype=torch.float64):
    """The trainer, and its losses after a step for each batch."""
    warnings.simplefilter("ignore", snugfit.SnugfitWarning)
    text = {"loss": _text_loss, "loss_weight": lambda batch: (batch[1][:, 1:] != -100).sum()}
    loss = text if name in TEXT else {"loss": cross_entropy}
    trainer = snugfit.prepare(build(name, dtype), snugfit.Recipe(**fields), lr=0.01, device="cpu", **loss, **settings)
    losses = [float(trainer.step(batch)) for batch in batches]
    trainer.finish()
    return trainer, losses


def train(rank, world, meeting, name, fields, settings, sizes, dtype=torch.float64):
    """Returns losses and weights of a training on this rank's shares, and the elements of what it holds itself."""
    with among_others(rank, world, meeting):
        degree = fields.get("tensor_parallel", 1)
        batches = [share(batch, rank // degree, world // degree) for batch in make_batches(name, sizes, dtype)]
        trainer, losses = trained(name, fields, settings, batches, dtype)
        held = sum(weight.numel() for group in trainer.optimizer.param_groups for weight in group["params"])
        weights = {key: whole(value).detach().clone() for key, value in trainer.model.named_parameters()}
        return losses, weights, held


def train_anew(rank, world, meeting, *case):
    """Returns what `train` does where the processes have left each other, and met anew in groups of other names.

    Before that: how often layouts were forgotten by a second trainer of the same processes, and by one after that.
    """
    train(rank, world, meeting, *case)
    forgotten = []
    with mock.patch.object(groups.collectives, "forget_layouts", wraps=groups.collectives.forget_layouts) as forgets:
        train(rank, world, meeting, *case)
        forgotten.append(forgets.call_count)
        dist.barrier()  # who has left is a lost connection for who still comes
        dist.destroy_process_group()
        with among_others(rank, world, f"{meeting}-anew"):
            dist.new_group()
            found = train(rank, world, meeting, *case)
        return [*forgotten, forgets.call_count], found


def masks(rank, world, meeting, fields, apart=0):
    """Returns what two steps dropped inside and outside of what is cut, by block, and weights; processes seeded apart."""
    with among_others(rank, world, meeting):
        trainer, _ = trained("dropped", fields, {"batch_size": 8}, [])
        torch.manual_seed(3 + apart * rank)
        dropped = {"inside": [], "outside": []}
        for name, module in trainer.model.named_modules():
            kind = name.rpartition(".")[2]
            if kind in dropped:
                module.register_forward_hook(lambda _, given, found, kind=kind: dropped[kind].append(found == 0))
        try:
            for batch in make_batches("dropped", (8, 8)):
                trainer.step(batch)
        except snugfit.SnugfitError as error:
            return str(error)
        weights = {key: whole(value).detach().clone() for key, value in trainer.model.named_parameters()}
        found = {kind: list(several) for kind, several in dropped.items()}
        before = torch.get_rng_state()
        trainer.model.eval()(batch[0])
        assert torch.equal(torch.get_rng_state(), before)
        return found, weights


def go_on(rank, world, meeting, name, fields, sizes, whole_file, folder):
    """Saves together after all but the last batch, and takes the last: going on, read again, and from one process's file.

    Returns:
        The whole weights after each of these, as one process would save them; None where this process has none of them.
    """
    with among_others(rank, world, meeting):
        degree = fields["tensor_parallel"]
        batches = [share(batch, rank // degree, world // degree) for batch in make_batches(name, sizes)]
        trainer, _ = trained(name, fields, {"batch_size": sizes[0]}, batches[:-1])
        Parts(trainer).save(Path(folder), {"trainer": trainer.state_dict()})
        found = []
        for path in (None, folder, whole_file):
            if path is not None:
                trainer, _ = trained(name, fields, {"batch_size": sizes[0]}, [])
                trainer.load_state_dict(Parts(trainer).load(Path(path))["trainer"])
            trainer.step(batches[-1])
            found.append(trainer.full_state_dict())
        return found if rank == 0 else None


def message(rank, world, meeting, name, fields, settings):
    """Returns the message of the error that a preparation gives."""
    with among_others(rank, world, meeting):
        try:
            trained(name, fields, settings, [])
        except snugfit.SnugfitError as error:
            return str(error)
        return ""
