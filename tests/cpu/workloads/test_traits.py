"""Batch statistics and random masks are found in models of every kind."""

import pytest
import torch

from snugfit.workloads.models import build_model
from snugfit.workloads.traits import model_traits


@pytest.mark.parametrize(
    ("spec", "arguments", "batch_norm", "dropout"),
    [
        ("torchvision:resnet18", {}, True, False),
        ("torchvision:squeezenet1_1", {}, False, True),
        ("torchvision:squeezenet1_1", {"dropout": 0.0}, False, False),
        ("torchvision:convnext_tiny", {}, False, True),
        ("torchvision:convnext_tiny", {"stochastic_depth_prob": 0.0}, False, False),
        ("torchvision:mobilenet_v3_small", {}, True, True),
        ("timm:vit_tiny_patch16_224", {"depth": 2}, False, False),
        ("timm:vit_tiny_patch16_224", {"depth": 2, "drop_path_rate": 0.1}, False, True),
        ("timm:vit_tiny_patch16_224", {"depth": 2, "attn_drop_rate": 0.1}, False, True),
        ("timm:vit_tiny_patch16_224", {"depth": 2, "proj_drop_rate": 0.1}, False, True),
        ("timm:resnet10t", {"drop_block_rate": 0.1}, True, True),
        ("timm:resnet10t", {"drop_rate": 0.1}, True, True),
    ],
)
def test_library_models(spec, arguments, batch_norm, dropout):
    traits = model_traits(build_model(spec, model_args=arguments))
    assert traits == {"batch_norm": batch_norm, "dropout": dropout, "half_weights": False}


@pytest.mark.parametrize(
    ("module", "dropout"),
    [
        (torch.nn.Dropout(0.1), True),
        (torch.nn.Dropout(0.0), False),
        (torch.nn.Dropout2d(0.1), True),
        (torch.nn.AlphaDropout(0.1), True),
        (torch.nn.MultiheadAttention(4, 2, dropout=0.1), True),
        (torch.nn.MultiheadAttention(4, 2), False),
        (torch.nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (torch.nn.GRU(2, 2, num_layers=2), False),
        (torch.nn.RReLU(), True),
        (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Dropout(0.5))), True),
    ],
)
def test_layers(module, dropout):
    assert model_traits(module) == {"batch_norm": False, "dropout": dropout, "half_weights": False}


def test_batch_statistics():
    assert model_traits(torch.nn.SyncBatchNorm(2))["batch_norm"]
    half = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    assert model_traits(half)["half_weights"] and not model_traits(half.requires_grad_(False))["half_weights"]
    assert not model_traits(torch.nn.GroupNorm(1, 2))["batch_norm"]
    assert not model_traits(torch.nn.InstanceNorm2d(2))["batch_norm"]
    assert model_traits(torch.nn.InstanceNorm2d(2, track_running_stats=True))["batch_norm"]
