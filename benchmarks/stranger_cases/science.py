"""Graphs, series, tables, physics and sound."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.stranger_cases.adopted import Adopted, adopts
from benchmarks.stranger_cases.scripts import definitions


def forecast(output, batch):
    """Squared error of a forecast."""
    return F.mse_loss(output, batch[1][:, -24:])


def series():
    """A batch of series: what was seen, what comes, and the times of both."""
    return torch.randn(8, 48, 7), torch.randn(8, 48, 7), torch.randn(8, 48, 4), torch.randn(8, 48, 4)


def settings(**more):
    """The settings that the time series libraries share, small."""
    shape = {"seq_len": 48, "label_len": 24, "pred_len": 24, "enc_in": 7, "dec_in": 7, "c_out": 7, "d_model": 32}
    layers = {"d_ff": 64, "n_heads": 4, "e_layers": 2, "d_layers": 1, "factor": 3, "dropout": 0.1, "moving_avg": 25}
    words = {"task_name": "long_term_forecast", "embed": "timeF", "freq": "h", "activation": "gelu", "num_kernels": 3}
    return SimpleNamespace(**{**shape, **layers, **words, "top_k": 3, "output_attention": False, **more})


@adopts("tkipf/pygcn", kind="graph")
def pygcn() -> Adopted:
    from pygcn.models import GCN

    at = torch.randint(200, (2, 1000), generator=torch.Generator().manual_seed(0))
    graph = lambda: torch.sparse_coo_tensor(at, torch.ones(1000) / 5, (200, 200)).coalesce()  # noqa: E731
    return Adopted(
        model=lambda: GCN(nfeat=64, nhid=16, nclass=7, dropout=0.5),
        batch=lambda: (torch.rand(200, 64), graph(), torch.randint(7, (200,))),
        forward=lambda model, batch: model(batch[0], batch[1]),
        loss=lambda output, batch: F.nll_loss(output[:140], batch[2][:140]),
    )


@adopts("Diego999/pyGAT", kind="graph")
def pygat() -> Adopted:
    from models import GAT

    return Adopted(
        model=lambda: GAT(nfeat=64, nhid=8, nclass=7, dropout=0.6, alpha=0.2, nheads=4),
        batch=lambda: (torch.rand(100, 64), (torch.rand(100, 100) < 0.1).float(), torch.randint(7, (100,))),
        forward=lambda model, batch: model(batch[0], batch[1]),
        loss=lambda output, batch: F.nll_loss(output[:50], batch[2][:50]),
    )


@adopts("pyg-team/pytorch_geometric", kind="graph")
def geometric() -> Adopted:
    from torch_geometric.nn import GCN

    return Adopted(
        model=lambda: GCN(64, 32, num_layers=3, out_channels=7, dropout=0.5),
        batch=lambda: {"x": torch.rand(200, 64), "edges": torch.randint(200, (2, 1000)), "y": torch.randint(7, (200,))},
        forward=lambda model, batch: model(batch["x"], batch["edges"]),
        loss=lambda output, batch: F.cross_entropy(output, batch["y"]),
        assume={"nonzero": 0.995},  # edges that are no loops
    )


@adopts("thuml/Time-Series-Library", kind="time series")
def times_net() -> Adopted:
    from models.TimesNet import Model

    run = lambda model, batch: model(batch[0], batch[2], batch[1], batch[3])  # noqa: E731
    build, periods = lambda: Model(settings()), {"integer": 8}  # the strongest frequency of a spectrum is read
    return Adopted(model=build, batch=series, forward=run, loss=forecast, optimizer="adam", assume=periods)


@adopts("zhouhaoyi/Informer2020", kind="time series")
def informer() -> Adopted:
    from models.model import Informer

    shape = {"factor": 3, "d_model": 32, "n_heads": 4, "e_layers": 2, "d_layers": 1, "d_ff": 64, "dropout": 0.1}
    build = lambda: Informer(7, 7, 7, 48, 24, 24, **shape, embed="timeF", device=torch.device("cpu"))  # noqa: E731
    run = lambda model, batch: model(batch[0], batch[2], batch[1], batch[3])  # noqa: E731
    return Adopted(model=build, batch=series, forward=run, loss=forecast, optimizer="adam")


@adopts("yuqinie98/PatchTST", kind="time series")
def patch_tst() -> Adopted:
    from models.PatchTST import Model

    patches = {"fc_dropout": 0.1, "head_dropout": 0.0, "individual": False, "patch_len": 16, "stride": 8}
    more = {"padding_patch": "end", "revin": True, "affine": False, "subtract_last": False, "decomposition": False}
    build = lambda: Model(settings(**patches, **more, kernel_size=25))  # noqa: E731
    return Adopted(model=build, batch=series, loss=forecast, optimizer="adam")


@adopts("husnejahan/DeepAR-pytorch", kind="time series")
def deep_ar() -> Adopted:
    from model.net import Net, loss_fn

    args = SimpleNamespace(num_class=10, embedding_dim=8, cov_dim=3, lstm_hidden_dim=24, lstm_layers=1, lstm_dropout=0)

    def loss(model, batch):
        losses, (hidden, cell) = [], torch.zeros(2, 1, 16, 24)
        for t in range(12):
            mu, sigma, hidden, cell = model(batch[0][:, t][None], batch[1][None], hidden, cell)
            losses.append(loss_fn(mu, sigma, batch[2][:, t]))
        return sum(losses)

    batch = lambda: (torch.randn(16, 12, 4), torch.randint(10, (16,)), torch.rand(16, 12))  # noqa: E731
    return Adopted(model=lambda: Net(args), batch=batch, forward=loss, assume={"nonzero": 1.0})


@adopts("lucidrains/tab-transformer-pytorch", kind="table")
def ft_transformer() -> Adopted:
    from tab_transformer_pytorch import FTTransformer

    return Adopted(
        model=lambda: FTTransformer(categories=(10, 5, 6, 5, 8), num_continuous=10, dim=32, depth=4, heads=4),
        batch=lambda: (torch.randint(5, (32, 5)), torch.randn(32, 10), torch.rand(32, 1)),
        forward=lambda model, batch: model(batch[0], batch[1]),
        loss=lambda output, batch: F.mse_loss(output, batch[2]),
    )


@adopts("facebookresearch/dlrm", kind="recommendation")
def dlrm() -> Adopted:
    from dlrm_s_pytorch import DLRM_Net

    sizes = {"ln_emb": np.array([5000, 8000, 9000]), "ln_bot": np.array([13, 64, 16]), "ln_top": np.array([22, 64, 1])}
    offsets = torch.arange(32).expand(3, 32)
    return Adopted(
        model=lambda: DLRM_Net(16, **sizes, arch_interaction_op="dot", sigmoid_top=1),
        batch=lambda: (torch.rand(32, 13), torch.randint(100, (3, 32)), torch.rand(32, 1)),
        forward=lambda model, batch: model(batch[0], offsets, batch[1]),
        loss=lambda output, batch: F.binary_cross_entropy(output, batch[2]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


@adopts("Blealtan/efficient-kan", kind="regression")
def efficient_kan() -> Adopted:
    from efficient_kan import KAN

    batch = lambda: (torch.rand(64, 64), torch.randint(10, (64,)))  # noqa: E731
    return Adopted(model=lambda: KAN([64, 64, 10]), batch=batch, loss=lambda out, b: F.cross_entropy(out, b[1]))


@adopts("rtqichen/torchdiffeq", kind="differential equation")
def neural_ode() -> Adopted:
    from torchdiffeq import odeint

    script = definitions("examples/ode_demo.py")
    return Adopted(
        model=script.ODEFunc,
        batch=lambda: (torch.randn(20, 1, 2), torch.randn(10, 20, 1, 2)),
        forward=lambda model, batch: odeint(model, batch[0], torch.linspace(0.0, 1.0, 10), method="rk4"),
        loss=lambda output, batch: (output - batch[1]).abs().mean(),
        optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
    )


@adopts("neuraloperator/neuraloperator", kind="physics")
def fourier_operator() -> Adopted:
    from neuralop.models import FNO

    build = lambda: FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=16, n_layers=3)  # noqa: E731
    batch = lambda: (torch.rand(4, 1, 32, 32), torch.rand(4, 1, 32, 32))  # noqa: E731
    return Adopted(model=build, batch=batch, loss=lambda output, batch: F.mse_loss(output, batch[1]))


@adopts("sooftware/conformer", kind="speech")
def conformer() -> Adopted:
    from conformer import Conformer

    lengths = torch.full((4,), 120)

    def loss(out, batch):
        return F.ctc_loss(out[0].transpose(0, 1), batch[1], out[1].to(torch.long), torch.full((4,), 8))

    build = lambda: Conformer(20, input_dim=40, encoder_dim=64, num_encoder_layers=3, num_attention_heads=4)  # noqa: E731
    batch = lambda: (torch.randn(4, 120, 40), torch.randint(1, 20, (4, 8)))  # noqa: E731
    return Adopted(model=build, batch=batch, forward=lambda model, batch: model(batch[0], lengths), loss=loss)


@adopts("openai/whisper", kind="speech")
def whisper() -> Adopted:
    from whisper.model import ModelDimensions, Whisper

    dims = ModelDimensions(40, 50, 64, 4, 2, 256, 32, 64, 4, 2)

    # Whisper leaves some of its parameters empty, for a file to fill.
    fill = lambda model: [parameter.data.normal_(std=0.02) for parameter in model.parameters()] and model  # noqa: E731
    return Adopted(
        model=lambda: fill(Whisper(dims)),
        batch=lambda: (torch.randn(4, 40, 100), torch.randint(256, (4, 32))),
        forward=lambda model, batch: model(batch[0], batch[1][:, :-1]),
        loss=lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch[1][:, 1:].flatten()),
    )


@adopts("suragnair/alpha-zero-general", kind="games")
def alpha_zero() -> Adopted:
    from othello.pytorch.OthelloNNet import OthelloNNet

    game = SimpleNamespace(getBoardSize=lambda: (6, 6), getActionSize=lambda: 37)
    return Adopted(
        model=lambda: OthelloNNet(game, SimpleNamespace(num_channels=32, dropout=0.3)),
        batch=lambda: (torch.randn(16, 6, 6), torch.rand(16, 37).softmax(-1), torch.rand(16)),
        loss=lambda out, b: -(b[1] * out[0]).sum() / 16 + ((b[2] - out[1].view(-1)) ** 2).sum() / 16,
        optimizer="adam",
    )
