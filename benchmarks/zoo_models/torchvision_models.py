"""Models of torchvision: a small one of each family that classifies, and those for segments, boxes and video."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.zoo_models.subject import Subject, library

SINGLE_STAGE = ("min_size=64", "max_size=64")
DETECTOR = (*SINGLE_STAGE, "box_batch_size_per_image=32")
"""Small images, and as many proposals of an image as its objects alone fill a quarter of."""

CLASSIFIERS: dict[str, dict[str, Any]] = {
    "alexnet": {"image_size": 64},
    "googlenet": {"image_size": 64, "model_args": ("aux_logits=false", "init_weights=false")},
    "squeezenet1_1": {"image_size": 64},
    "resnet18": {"image_size": 64},
    "densenet121": {"image_size": 64},
    "shufflenet_v2_x0_5": {"image_size": 64},
    "mnasnet0_5": {"image_size": 64},
    "mobilenet_v2": {"image_size": 64},
    "mobilenet_v3_small": {"image_size": 64},
    "efficientnet_b0": {"image_size": 64},
    "regnet_y_400mf": {"image_size": 64},
    "convnext_tiny": {"image_size": 32},
    "vit_b_32": {"image_size": 64, "model_args": ("image_size=64",)},
    "swin_t": {"image_size": 64},
    "swin_v2_t": {"image_size": 64},
    "maxvit_t": {"image_size": 64, "model_args": ("input_size=(64,64)",)},
}
"""Name -> shape and arguments of the constructor."""


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "fcn_resnet50": ("segmentation", {"image_size": 64}),
    "deeplabv3_mobilenet_v3_large": ("segmentation", {"image_size": 64, "model_args": ("aux_loss=true",)}),
    "deeplabv3_resnet50": ("segmentation", {"image_size": 64}),
    "lraspp_mobilenet_v3_large": ("segmentation", {"image_size": 64}),
    "r3d_18": ("video", {"image_size": 32, "frames": 4}),
    "mc3_18": ("video", {"image_size": 32, "frames": 4}),
    "r2plus1d_18": ("video", {"image_size": 32, "frames": 4}),
    "swin3d_t": ("video", {"image_size": 32, "frames": 4}),
    "fasterrcnn_mobilenet_v3_large_320_fpn": ("detection", {"image_size": 64, "model_args": DETECTOR}),
    "fasterrcnn_resnet50_fpn": ("detection", {"image_size": 64, "model_args": DETECTOR}),
    "maskrcnn_resnet50_fpn": ("detection", {"image_size": 64, "model_args": DETECTOR}),
    "keypointrcnn_resnet50_fpn": ("detection", {"image_size": 64, "model_args": DETECTOR}),
    "retinanet_resnet50_fpn": ("detection", {"image_size": 64, "model_args": SINGLE_STAGE}),
    "fcos_resnet50_fpn": ("detection", {"image_size": 64, "model_args": SINGLE_STAGE}),
    "ssdlite320_mobilenet_v3_large": ("detection", {"image_size": 320}),
    "ssd300_vgg16": ("detection", {"image_size": 300}),
}  # fmt: skip
"""Name -> what it finds, shape and arguments of the constructor."""


def _make(name: str) -> Subject:
    kind, given = OTHERS.get(name) or ("classification", CLASSIFIERS[name])
    return library(f"torchvision {kind}", f"torchvision:{name}", **given)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    f"torchvision:{name}": partial(_make, name) for name in (*OTHERS, *CLASSIFIERS)
}
"""Name -> makes the model."""
