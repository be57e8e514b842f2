"""Whole CPU runs of models whose operators no table knew: predicted to the byte or nearly so, on whichever processor."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snugfit import Recipe

TOLERANCE = 0.001


def cross_entropy(output, batch):
    return F.cross_entropy(output["out"] if isinstance(output, dict) else output, batch[1])


def images(count=3, height=33, width=29, *, labels=()):
    return torch.randn(count, 3, height, width), torch.zeros(count, *labels, dtype=torch.long)


def videos():
    return torch.randn(2, 3, 6, 24, 24), torch.zeros(2, dtype=torch.long)


def vectors():
    return torch.randn(48, 96), torch.zeros(48, dtype=torch.long)


def series():
    return {"past_values": torch.randn(6, 64, 3), "future_values": torch.randn(6, 16, 3)}


def tokens():
    ids = torch.zeros(3, 20, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[0, 10:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(3, dtype=torch.long)}


def deeplab():
    import torchvision

    return torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )


def video_network():
    import torchvision

    return torchvision.models.video.VideoResNet(
        torchvision.models.video.resnet.BasicBlock,
        [torchvision.models.video.resnet.Conv3DSimple] * 4,
        [1, 1, 1, 1],
        torchvision.models.video.resnet.BasicStem,
        num_classes=3,
    )


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 20, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(20, 24, 3, padding="valid"),
        nn.BatchNorm2d(24),
        nn.Conv2d(24, 24, 7, groups=24, padding=9, dilation=3),
        nn.MaxPool2d(3, 2),
        nn.ConvTranspose2d(24, 12, 3, stride=2),
        nn.AvgPool2d(2),
        nn.Conv2d(12, 18, 3, groups=3, stride=2),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(18 * 9, 5),
    )


def albert():
    from transformers import AlbertConfig, AlbertForSequenceClassification

    shape = {"hidden_size": 48, "embedding_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    return AlbertForSequenceClassification(AlbertConfig(**shape, intermediate_size=96, vocab_size=200, num_labels=3))


def patches():
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    shape = {"num_input_channels": 3, "context_length": 64, "patch_length": 8, "patch_stride": 8}
    width = {"d_model": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 96}
    return PatchTSTForPrediction(PatchTSTConfig(**shape, **width, prediction_length=16))


class Again(torch.autograd.Function):
    """A checkpoint as models write it by hand: the block runs again in backward."""

    @staticmethod
    def forward(ctx, block, source, *parameters):
        ctx.block = block
        ctx.save_for_backward(source)
        with torch.no_grad():
            return block(source)

    @staticmethod
    def backward(ctx, gradient):
        (source,) = ctx.saved_tensors
        source = source.detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.block(source)
        return (None, *torch.autograd.grad(output, (source, *ctx.block.parameters()), gradient))


class ByHand(nn.Module):
    """Blocks under a checkpoint of the model's own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96), nn.LayerNorm(96)) for _ in range(3)
        )
        self.head = nn.Linear(96, 5)

    def forward(self, source):
        for block in self.blocks:
            source = source + Again.apply(block, source, *block.parameters())
        return self.head(source)


MODELS = {
    "dilated convolutions": (deeplab, functools.partial(images, 2, 64, 64, labels=(64, 64)), cross_entropy),
    "3-D convolutions": (video_network, videos, cross_entropy),
    "convolutions of all kinds": (convolutions, images, cross_entropy),
    "albert": (albert, tokens, None),
    "patchtst": (patches, series, None),
    "a checkpoint of its own": (ByHand, vectors, cross_entropy),
}
LIBRARIES = {
    "dilated convolutions": "torchvision",
    "3-D convolutions": "torchvision",
    "albert": "transformers",
    "patchtst": "transformers",
}


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        *((model, "fp32") for model in MODELS),
        *((model, "bf16-mixed") for model in ("convolutions of all kinds", "albert", "a checkpoint of its own")),
    ],
)
def test_predicted_peak_is_the_measured_one(truth, pool, model, precision):
    if model in LIBRARIES:
        pytest.importorskip(LIBRARIES[model], reason="its library is not installed")
    case, chosen = truth.Case(*MODELS[model], False), Recipe(precision=precision)
    measured, predicted = truth.measured(case, chosen)[0], truth.predicted(case, chosen, pool)[0]
    assert measured > 500_000
    assert abs(predicted / measured - 1) <= TOLERANCE, (predicted, measured)


def test_layers_that_a_line_is_drawn_for_are_predicted_too(truth, pool):
    """Above 48 MiB an operator is asked at smaller sizes; here the run itself is small enough to be measured."""

    def wide():
        return nn.Sequential(nn.Conv2d(3, 40, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 5))

    case = truth.Case(wide, functools.partial(images, 32, 96, 96), cross_entropy, False)
    measured, predicted = truth.measured(case, Recipe())[0], truth.predicted(case, Recipe(), pool)[0]
    assert measured > 100 * 2**20
    assert abs(predicted / measured - 1) <= TOLERANCE, (predicted, measured)
