"""Families of timm, a small model of each, on images as small as it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.zoo_models.subject import Subject, library

SIDE, BATCH = 64, 2

MODELS: dict[str, tuple[int, tuple[str, ...]]] = {
    # name: side of the images, arguments of its constructor
    "resnet10t": (SIDE, ()),
    "resnet26d": (SIDE, ()),
    "seresnext26ts": (SIDE, ()),
    "skresnet18": (SIDE, ()),
    "regnetx_002": (SIDE, ()),
    "regnety_002": (SIDE, ()),
    "efficientnet_b0": (SIDE, ()),
    "tf_efficientnetv2_b0": (SIDE, ()),
    "mobilenetv2_050": (SIDE, ()),
    "mobilenetv3_small_050": (SIDE, ()),
    "mobilenetv4_conv_small_050": (SIDE, ()),
    "ghostnet_050": (SIDE, ()),
    "mnasnet_small": (SIDE, ()),
    "rexnet_100": (SIDE, ()),
    "hrnet_w18_small": (SIDE, ()),
    "repvgg_a0": (SIDE, ()),
    "nf_resnet26": (SIDE, ()),
    "convnext_atto": (SIDE, ()),
    "convnextv2_atto": (SIDE, ()),
    "edgenext_xx_small": (SIDE, ()),
    "mobilevit_xxs": (SIDE, ()),
    "mobileone_s0": (SIDE, ()),
    "fastvit_t8": (SIDE, ()),
    "repvit_m0_9": (SIDE, ()),
    "poolformer_s12": (SIDE, ()),
    "pvt_v2_b0": (SIDE, ()),
    "efficientformer_l1": (224, ()),
    "levit_128s": (224, ()),
    "vit_tiny_patch16_224": (32, ("img_size=32", "patch_size=8", "depth=4")),
    "deit_tiny_patch16_224": (32, ("img_size=32", "patch_size=8", "depth=4")),
    "cait_xxs24_224": (32, ("img_size=32", "patch_size=8", "depth=4")),
    "xcit_nano_12_p8_224": (32, ("img_size=32", "depth=4")),
    "swin_tiny_patch4_window7_224": (SIDE, ("img_size=64", "window_size=4", "embed_dim=48", "depths=(1,1,2,1)")),
    "swinv2_cr_tiny_ns_224": (SIDE, ("img_size=64", "embed_dim=48", "depths=(1,1,2,1)")),
    "mixer_s32_224": (SIDE, ("img_size=64",)),
    "gmlp_ti16_224": (SIDE, ("img_size=64",)),
    "coatnet_nano_rw_224": (SIDE, ("img_size=64",)),
    "maxvit_pico_rw_256": (SIDE, ("img_size=64",)),
    "twins_svt_small": (SIDE, ()),
    "eva02_tiny_patch14_224": (56, ("img_size=56", "depth=4")),
}
"""One of each family."""


def _make(name: str) -> Subject:
    side, arguments = MODELS[name]
    return library("timm", f"timm:{name}", batch_size=BATCH, model_args=arguments, image_size=side)


SUBJECTS: dict[str, Callable[[], Subject]] = {f"timm:{name}": partial(_make, name) for name in MODELS}
"""Name -> makes the model."""
