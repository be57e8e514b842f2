"""More models of which several processes see different parts: what they hold, draw, write, hook and hand over."""

from __future__ import annotations

import typing
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_models import ALL, CLASSES, CUT, WIDTH, Block, Case, Net, cross_entropy, net_of
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


class Lazy(Block):
    """Draws what it keeps in its first pass."""

    order = None

    def forward(self, x):
        if self.order is None:
            self.order = torch.randperm(WIDTH)
        return super().forward(x[:, self.order])


class Closure(Block):
    def __init__(self):
        super().__init__()
        table = torch.randn(WIDTH, dtype=torch.float64)
        self.scaled = lambda x: x * table

    def forward(self, x):
        return super().forward(self.scaled(x))


class Nonpersistent(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(WIDTH), persistent=False)

    def forward(self, x):
        return super().forward(x * self.table)


class Spectral(Block):
    def __init__(self):
        super().__init__()
        self.up = parametrizations.spectral_norm(self.up)


class WeightNorm(Block):
    def __init__(self):
        super().__init__()
        self.up = parametrizations.weight_norm(self.up)


class EmaOfWeights(Block):
    """A buffer that follows a weight: the same in each process."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros(8, WIDTH))

    def forward(self, x):
        with torch.no_grad():
            self.ema.lerp_(self.up.weight, 0.1)
        return super().forward(x) + 0.1 * self.down(F.linear(x, self.ema))


class Queue(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(4, WIDTH))

    def forward(self, x):
        x, read = super().forward(x), self.queue.mean(0)
        self.queue = torch.cat([x.detach()[:2], self.queue[:2]])
        return x + 0.1 * read


class FirstMean(Block):
    """Keeps what it makes of the first samples it sees."""

    mean = None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.detach().mean(0)
        return super().forward(x - self.mean)


class Clamped(Block):
    def forward(self, x):
        self.up.weight.data.clamp_(-0.3, 0.3)
        return super().forward(x)


class FirstScale(Block):
    """A weight that is set by what its first samples are."""

    def __init__(self):
        super().__init__()
        self.scale, self.ready = nn.Parameter(torch.ones(WIDTH)), False

    def forward(self, x):
        if not self.ready:
            self.scale.data.copy_(1 / (x.detach().std(0) + 0.1))
            self.ready = True
        return super().forward(x * self.scale)


class MaxNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rest = nn.Embedding(5, WIDTH, max_norm=0.7), Net()

    def forward(self, x):
        return self.rest(self.words((x[:, :2] > 0).long()).sum(1))


class Empty(Block):
    def __init__(self):
        super().__init__()
        self.empty = nn.Parameter(torch.empty(0, 4))

    def forward(self, x):
        return super().forward(x) + self.empty.sum()


class One(Block):
    """A parameter that is shorter than there are processes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.scale


class Transposed(Block):
    def __init__(self):
        super().__init__()
        self.up.weight = nn.Parameter(torch.randn(WIDTH, 8).t())


class Beside(Block):
    """Trains a plain tensor, and a parameter in a list."""

    def __init__(self):
        super().__init__()
        plain = torch.ones(WIDTH, dtype=torch.float64, requires_grad=True)
        self.beside = [plain, nn.Parameter(torch.rand(WIDTH, dtype=torch.float64))]

    def forward(self, x):
        return super().forward(x * self.beside[0] + self.beside[1])


class Alias(Net):
    """Reaches a weight by way of a list of its own."""

    def __init__(self):
        super().__init__()
        self.tied = [self.blocks[0].up.weight]

    def forward(self, x):
        return super().forward(x) + 0.1 * F.linear(x, self.tied[0])[:, :CLASSES]


class TiedWithin(Net):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight

    def forward(self, x):
        return super().forward(self.last(torch.tanh(self.first(x))))


class Hooked(Net):
    """Hooks on modules, forward and backward."""

    def __init__(self):
        super().__init__()
        self.blocks[0].register_forward_hook(lambda module, args, output: output * 1.1)
        self.blocks[1].register_forward_pre_hook(lambda module, args: (args[0] * 0.9,))
        self.blocks[2].register_full_backward_hook(lambda module, given, taken: (given[0] * 0.9,))


class Named(typing.NamedTuple):
    logits: torch.Tensor
    rest: typing.Any = None


class NamedOutput(Net):
    def forward(self, x):
        return Named(super().forward(x))


class BoxedOutput(Net):
    def forward(self, x):
        return SimpleNamespace(logits=super().forward(x))


class OfDictionaries(Block):
    def forward(self, x):
        return {"x": super().forward(x["x"] if isinstance(x, dict) else x)}


class Dictionaries(Net):
    block = OfDictionaries

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x["x"])


class IntoTensor(Block):
    def forward(self, x):
        x.add_(self.down(torch.tanh(self.up(x.clone()))))


class Written(Net):
    """Blocks that add to the tensor they are given, and return nothing."""

    block = IntoTensor

    def forward(self, x):
        x = x * 1.0
        for block in self.blocks:
            block(x)
        return self.head(x)


class Checkpointed(Net):
    reentrant = False

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Reentrant(Checkpointed):
    reentrant = True


class Lent(Net):
    """Runs its blocks with other weights than their own."""

    def forward(self, x):
        for block in self.blocks:
            lent = {name: weight * 1.01 for name, weight in block.named_parameters()}
            x = torch.func.functional_call(block, lent, (x,))
        return self.head(x)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList([nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3) for _ in range(3)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for matrix in self.matrices:
            x = torch.tanh(x @ matrix)
        return self.head(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(x.unsqueeze(1)).squeeze(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(2, 5, 2, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(self.rnn(x.view(len(x), 3, 2))[0][:, -1])


class Skipped(Net):
    """Leaves a block out in every second step, in all processes alike."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        for number, block in enumerate(self.blocks):
            x = block(x) if number != 1 or self.calls % 2 else x
        return self.head(x)


class Lamb(torch.optim.Optimizer):
    """Steps as long as the norm of the whole parameter says."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-group["lr"] * float(weight.norm() / (weight.grad.norm() + 1e-9)))


class Lookahead(torch.optim.Optimizer):
    """Keeps slow weights of its own."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.slow = [weight.detach().clone() for group in self.param_groups for weight in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for slow, weight in zip(self.slow, weights, strict=True):
            if weight.grad is not None:
                slow.lerp_(weight.sub_(weight.grad, alpha=self.defaults["lr"]), 0.5)
                weight.copy_(slow)


class OwnTemperature:
    """A loss that is no module, with a learned number."""

    def __init__(self):
        self.beside = [nn.Parameter(torch.rand(1, dtype=torch.float64))]

    def __call__(self, output, batch):
        return F.cross_entropy(output * self.beside[0].exp(), batch[1])


def only_in(number, change):
    """A model that is changed in one process."""

    def build():
        model = Net()
        if dist.is_initialized() and dist.get_rank() == number:
            change(model)
        return model

    return build


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=0.01)


def _of_logits(output, batch):
    return cross_entropy(output.logits, batch)


def _decayed(output, batch):
    return cross_entropy(output[0], batch) + 0.1 * sum((weight**2).sum() for weight in output[1].parameters())


def _of_list(output, batch):
    return cross_entropy(output[0], batch) + 0.1 * sum((weight**2).sum() for weight in output[1])


def _listing():
    model = Net()
    model.listed = list(model.parameters())
    return model


CASES = {
    "drawn in forward": Case(net_of(Lazy), seeded=False),
    "closure": Case(net_of(Closure), seeded=False),
    "buffer that is not saved": Case(net_of(Nonpersistent), seeded=False),
    "spectral norm": Case(net_of(Spectral)),
    "weight norm": Case(net_of(WeightNorm)),
    "mean of weights": Case(net_of(EmaOfWeights)),
    "queue": Case(net_of(Queue), refused=ALL, words="changes 'blocks.0.queue'"),
    "first mean": Case(net_of(FirstMean), refused=ALL, words="changes 'blocks.0.mean'"),
    "clamped": Case(net_of(Clamped), refused=CUT, words="changes parameter"),
    "first scale": Case(net_of(FirstScale), refused=ALL, words="passes"),
    "max_norm": Case(MaxNorm, refused=ALL, words="max_norm"),
    "empty": Case(net_of(Empty), refused=CUT, words="is empty"),
    "one number": Case(net_of(One)),
    "transposed": Case(net_of(Transposed), refused=CUT, words="order of its dimensions"),
    "beside": Case(net_of(Beside), optimizer="instance", make=sgd, seeded=False),
    "alias": Case(Alias, refused=CUT, words="by way of a list"),
    "tied within a unit": Case(TiedWithin),
    "module hooks": Case(Hooked),
    "named tuple": Case(NamedOutput, loss=_of_logits),
    "output in a box": Case(BoxedOutput, loss=_of_logits, refused=CUT, words="shard='none'"),
    "dictionaries": Case(Dictionaries),
    "written into": Case(Written, refused=CUT, words="shard='none'"),
    "checkpoints of its own": Case(Checkpointed),
    "reentrant checkpoints": Case(Reentrant),
    "lent weights": Case(Lent, refused=CUT, words="other weights than its own"),
    "list of matrices": Case(Listed),
    "attention": Case(Attention),
    "recurrent": Case(Recurrent),
    "linear": Case(lambda: nn.Linear(WIDTH, CLASSES)),
    "skipped in all": Case(Skipped),
    "twice": Case(
        Net, forward=lambda m, b: (m(b[0]), m(b[0].flip(1))), loss=lambda o, b: cross_entropy(o[0], b) + o[1].pow(2).mean()
    ),
    "head alone": Case(Net, optimizer="instance", make=lambda weights: torch.optim.AdamW(weights[-2:], lr=0.01)),
    "momentum": Case(Net, optimizer="instance", make=sgd),
    "adagrad": Case(
        Net, optimizer="instance", make=lambda weights: torch.optim.Adagrad(weights, initial_accumulator_value=0.1)
    ),
    "lamb": Case(Net, optimizer="instance", make=Lamb, refused=CUT, words="looks at whole matrices"),
    "lamb, function": Case(Net, optimizer="function", make=Lamb, refused=CUT, words="looks at whole matrices"),
    "lookahead": Case(Net, optimizer="instance", make=Lookahead, refused=CUT, words="tensors of its own"),
    "lookahead, function": Case(Net, optimizer="function", make=Lookahead),
    "muon": Case(
        Net, optimizer="instance", make=lambda weights: torch.optim.Muon([one for one in weights if one.dim() == 2]),
        refused=CUT, words="looks at whole matrices",
    ),
    "own temperature": Case(Net, loss=OwnTemperature, optimizer="instance", make=sgd, seeded=False),
    "decay in the loss": Case(
        Net, forward=lambda m, b: (m(b[0]), m), loss=_decayed, refused=CUT - {"gradients"}, words="shard='none'"
    ),
    "list of weights": Case(
        _listing, forward=lambda m, b: (m(b[0]), m.listed), loss=_of_list, refused=CUT, words="by way of a list"
    ),
    "hook in one": Case(
        only_in(0, lambda m: m.blocks[0].up.weight.register_hook(torch.neg)), refused=ALL, words="with hooks"
    ),
    "module hook in one": Case(
        only_in(1, lambda m: m.blocks[1].register_forward_hook(lambda *_: None)), refused=ALL, words="with hooks"
    ),
    "frozen in one": Case(only_in(1, lambda m: m.head.weight.requires_grad_(False)), refused=ALL, words="frozen in"),
    "more in one": Case(only_in(1, lambda m: m.add_module("more", nn.Linear(2, 2))), refused=ALL, words="'more' is Linear"),
    "evaluating in one": Case(only_in(0, lambda m: m.blocks[0].eval()), refused=ALL, words="evaluation mode"),
}  # fmt: skip
