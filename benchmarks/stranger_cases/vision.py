"""Models of images and points: classes, segments, boxes, and what is learned without labels."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from benchmarks.stranger_cases.adopted import Adopted, adopts
from benchmarks.stranger_cases.scripts import definitions


def classes(output, batch):
    """Cross-entropy of logits, as most training scripts have it."""
    return F.cross_entropy(output, batch[1])


def images(samples=8, side=32, count=10):
    """A batch of images with classes."""
    return torch.rand(samples, 3, side, side), torch.randint(count, (samples,))


@adopts("lucidrains/vit-pytorch", kind="classification")
def vit() -> Adopted:
    from vit_pytorch import ViT

    shape = {"image_size": 32, "patch_size": 4, "num_classes": 10, "dim": 96, "depth": 4, "heads": 4, "mlp_dim": 192}
    return Adopted(model=lambda: ViT(**shape, dropout=0.1, emb_dropout=0.1), batch=images, loss=classes)


@adopts("facebookresearch/mae", kind="self-supervision")
def mae() -> Adopted:
    import models_mae
    import numpy as np
    from timm.models.vision_transformer import Block

    np.float = float  # the code is older than this numpy, and than this timm
    models_mae.Block = lambda *args, qk_scale, **more: Block(*args, **more)
    shape = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "decoder_embed_dim": 64}
    build = functools.partial(models_mae.MaskedAutoencoderViT, **shape, decoder_depth=2, decoder_num_heads=4)
    return Adopted(model=build, batch=lambda: images()[0], forward=lambda model, x: model(x, mask_ratio=0.75)[0])


@adopts("facebookresearch/dino", kind="self-supervision")
def dino() -> Adopted:
    from utils import MultiCropWrapper
    from vision_transformer import DINOHead, VisionTransformer

    net = lambda: VisionTransformer([32], 4, embed_dim=64, depth=3, num_heads=4, num_classes=0)  # noqa: E731
    teacher, shapes = MultiCropWrapper(net(), DINOHead(64, 128)), (32, 32, 16, 16)
    loss = lambda out, t: -sum((q * F.log_softmax(p, -1)).sum(-1).mean() for q in t for p in out) / 8  # noqa: E731

    def step(student, crops):  # its loss without the center, which is gathered from several processes
        with torch.no_grad():
            target = (teacher(crops[:2]) / 0.04).softmax(-1).chunk(2)
        return loss((student(crops) / 0.1).chunk(4), target)

    return Adopted(
        model=lambda: MultiCropWrapper(net(), DINOHead(64, 128)),
        batch=lambda: [torch.rand(4, 3, s, s) for s in shapes],
        forward=step,
    )


@adopts("lucidrains/byol-pytorch", kind="self-supervision")
def byol() -> Adopted:
    from byol_pytorch import BYOL
    from torchvision.models import resnet18

    return Adopted(
        model=lambda: BYOL(resnet18(), image_size=32, hidden_layer="avgpool", projection_hidden_size=256),
        batch=lambda: images(4)[0],
        forward=lambda model, batch: model(batch),
        assume={"branch": False},  # no deviation of its colours is 0
    )


@adopts("sthalles/SimCLR", kind="self-supervision")
def simclr() -> Adopted:
    from models.resnet_simclr import ResNetSimCLR
    from simclr import SimCLR

    settings = SimpleNamespace(batch_size=8, n_views=2, device="cpu", temperature=0.07)

    def loss(features, batch):
        return F.cross_entropy(*SimCLR.info_nce_loss(SimpleNamespace(args=settings), features))

    return Adopted(model=lambda: ResNetSimCLR("resnet18", 64), batch=lambda: images(16)[0], loss=loss)


@adopts("facebookresearch/barlowtwins", kind="self-supervision")
def barlow_twins() -> Adopted:
    script = definitions("main.py")
    alone = SimpleNamespace(all_reduce=lambda tensor: None)  # one process
    script.torch = SimpleNamespace(diagonal=torch.diagonal, distributed=alone)
    args = SimpleNamespace(projector="256-256", batch_size=4, lambd=0.0051)
    batch = lambda: (images(4)[0], images(4)[0])  # noqa: E731
    return Adopted(model=lambda: script.BarlowTwins(args), batch=batch, forward=lambda model, batch: model(*batch))


@adopts("openai/CLIP", kind="contrastive")
def clip() -> Adopted:
    from clip.model import CLIP

    def loss(output, batch):
        labels = torch.arange(len(output[0]))
        return (F.cross_entropy(output[0], labels) + F.cross_entropy(output[1], labels)) / 2

    build = lambda: CLIP(64, 32, 2, 64, 8, 16, 256, 64, 4, 2)  # noqa: E731
    batch = lambda: (images(16)[0], torch.randint(256, (16, 16)))  # noqa: E731
    return Adopted(model=build, batch=batch, forward=lambda model, batch: model(*batch), loss=loss)


@adopts("mlfoundations/open_clip", kind="contrastive")
def open_clip() -> Adopted:
    from open_clip.loss import ClipLoss
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=2, width=64, head_width=32, patch_size=8, image_size=32)
    text = CLIPTextCfg(context_length=16, vocab_size=256, width=64, heads=2, layers=2)
    loss, batch = ClipLoss(cache_labels=True), lambda: (images(16)[0], torch.randint(256, (16, 16)))
    run = lambda model, batch: loss(*model(*batch))  # noqa: E731
    return Adopted(model=lambda: CLIP(64, vision, text), batch=batch, forward=run)


@adopts("kuangliu/pytorch-cifar", kind="classification")
def cifar_resnet() -> Adopted:
    from models import ResNet18

    return Adopted(model=ResNet18, batch=lambda: images(4), loss=classes, optimizer="sgd", lr=0.01)


@adopts("lucidrains/perceiver-pytorch", kind="classification")
def perceiver() -> Adopted:
    from perceiver_pytorch import Perceiver

    shape = {"num_freq_bands": 4, "depth": 3, "max_freq": 10.0, "num_latents": 32, "latent_dim": 64, "num_classes": 10}
    return Adopted(
        model=lambda: Perceiver(**shape, latent_heads=4, weight_tie_layers=True),
        batch=lambda: (torch.rand(8, 16, 16, 3), torch.randint(10, (8,))),
        loss=classes,
    )


@adopts("milesial/Pytorch-UNet", kind="segmentation")
def unet() -> Adopted:
    from unet import UNet
    from utils.dice_score import dice_loss

    def loss(output, batch):
        masks = F.one_hot(batch["mask"], 2).permute(0, 3, 1, 2)
        return F.cross_entropy(output, batch["mask"]) + dice_loss(F.softmax(output, dim=1), masks, multiclass=True)

    batch = lambda: {"image": torch.rand(1, 3, 64, 64), "mask": torch.randint(2, (1, 64, 64))}  # noqa: E731
    run = lambda model, batch: model(batch["image"])  # noqa: E731
    return Adopted(model=lambda: UNet(3, 2), batch=batch, forward=run, loss=loss, optimizer="sgd")


@adopts("qubvel/segmentation_models.pytorch", kind="segmentation")
def segmentation_models() -> Adopted:
    import segmentation_models_pytorch as smp

    loss = smp.losses.DiceLoss("binary")
    build = lambda: smp.Unet("mobilenet_v2", encoder_weights=None, classes=1, decoder_channels=(64, 32, 32, 16, 16))  # noqa: E731
    batch = lambda: (images(2, 64)[0], torch.randint(2, (2, 1, 64, 64)))  # noqa: E731
    return Adopted(model=build, batch=batch, loss=lambda out, batch: loss(out, batch[1]), optimizer="sgd")


@adopts("ultralytics/yolov5", kind="detection")
def yolo_v5() -> Adopted:
    from models import yolo

    def loss(output, batch):  # its own needs the settings of a training run
        return sum(one.square().mean() for part in output for one in part)

    config = yolo.__file__.replace("yolo.py", "yolov5n.yaml")
    build = lambda: yolo.DetectionModel(config, ch=3, nc=4)  # noqa: E731
    return Adopted(model=build, batch=lambda: images(2, 64)[0], loss=loss, optimizer="sgd")


@adopts("fxia22/pointnet.pytorch", kind="points")
def pointnet() -> Adopted:
    from pointnet.model import PointNetCls, feature_transform_regularizer

    return Adopted(
        model=lambda: PointNetCls(k=10, feature_transform=True),
        batch=lambda: (torch.rand(8, 3, 64), torch.randint(10, (8,))),
        loss=lambda out, batch: F.nll_loss(out[0], batch[1]) + 0.001 * feature_transform_regularizer(out[2]),
        optimizer="adam",
    )


@adopts("lukasruff/Deep-SVDD-PyTorch", kind="anomalies")
def deep_svdd() -> Adopted:
    from networks.cifar10_LeNet import CIFAR10_LeNet

    center = torch.full((128,), 0.1)
    return Adopted(
        model=CIFAR10_LeNet,
        batch=images,
        loss=lambda output, batch: ((output - center) ** 2).sum(dim=1).mean(),
        optimizer="adam",
    )
