"""What models of torchvision are trained for, and the batches of those that do more than tell images apart.

The module of torchvision that a builder stands in says the task; shapes come from the metadata of the published weights.
Losses are those of torchvision's own training scripts: segmentation adds half the loss of its auxiliary head; detectors
return their losses, which are summed.

Source: pytorch/vision, `references/segmentation/train.py`, `references/detection/engine.py`,
`references/video_classification/train.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from snugfit.attributes import attributes_set
from snugfit.errors import InputError
from snugfit.private_torch import BatchNorm, DropoutNd
from snugfit.workloads.model_shapes import published_side, published_weights
from snugfit.workloads.options import BatchOptions
from snugfit.workloads.tasks import IMAGE_CLASSIFICATION, Task, cross_entropy

SEGMENTATION, DETECTION, VIDEO = "semantic-segmentation", "object-detection", "video-classification"
_TASK_OF_MODULE = {"segmentation": SEGMENTATION, "detection": DETECTION, "video": VIDEO}

AUXILIARY_WEIGHT = 0.5
CLIP_FRAMES = 16
"""Frames of a clip that torchvision's video models were evaluated on, where their weights do not say another number."""
CLIP_SIDE, SEGMENTATION_SIDE = 112, 520
"""What torchvision's own training takes, where weights do not say it."""
OBJECTS = 8
"""Objects in an image where nothing says them; images of COCO have 7 on average."""
ASSUME = {"branch": False, "nonzero": 1.0, "integer": 1}
"""What a simulation takes for granted: boxes have an extent; all anchors count in the losses of single-stage detectors, and
the number that these are divided by decides no size."""
KEYPOINT_VALUES = 3
"""Place and visibility of a keypoint."""


def task_of_builder(name: str) -> str:
    """Returns what a model is for, by the module of torchvision it is in; unknown names are the builder's business."""
    try:
        from torchvision import models

        module = models.get_model_builder(name).__module__
    except (ImportError, ValueError):
        return IMAGE_CLASSIFICATION
    parts = module.removeprefix("torchvision.models.").split(".")
    return _TASK_OF_MODULE.get(parts[0], IMAGE_CLASSIFICATION)


def segmentation_loss(output: Any, batch: Any) -> Tensor:
    """Returns the cross entropy over pixels, with half of the auxiliary head's where there is one.

    `output`: a mapping with `out` and maybe `aux`, scores `[B, classes, H, W]`; or the scores alone.
    `batch`: (images, classes of the pixels int64 `[B, H, W]`, 255 where they do not count).
    """
    if not isinstance(output, Mapping):
        return nn.functional.cross_entropy(output, batch[1], ignore_index=255)
    losses = {name: nn.functional.cross_entropy(scores, batch[1], ignore_index=255) for name, scores in output.items()}
    return losses["out"] + AUXILIARY_WEIGHT * losses["aux"] if "aux" in losses else losses["out"]


def batch_of(model: nn.Module, spec: str, task: str, options: BatchOptions) -> Any:
    """Returns a batch as torchvision's own training makes it.

    That is images with the classes of their pixels; clips `[B, 3, frames, S, S]` with their classes; or a list of images
    with what is to be found in each.
    """
    side = options.take("image_size")
    count, device = options.batch_size, options.device
    if task == SEGMENTATION:
        side = side or published_side(spec, "resize_size") or SEGMENTATION_SIDE
        heads: list[int] = [one.out_channels for one in model.modules() if isinstance(one, nn.Conv2d)]
        images = torch.rand(count, 3, side, side, device=device)
        return images, torch.randint(0, heads[-1], (count, side, side), device=device)
    if task == VIDEO:
        side, frames = side or published_side(spec, "crop_size") or CLIP_SIDE, options.take("frames")
        if frames is None:
            frames = max(int(getattr(published_weights(spec), "meta", {}).get("min_temporal_size") or 1), CLIP_FRAMES)
            options.assumed.append(f"clips of {frames} frames of {side} x {side} (--frames, --image-size)")
        clips = torch.rand(count, 3, frames, side, side, device=device)
        return clips, torch.zeros(count, dtype=torch.long, device=device)
    transform: Any = getattr(model, "transform", None)
    if transform is None:
        raise InputError(
            "this detector has no transform of torchvision's own. Use snugfit.estimate(model, batch) in Python."
        )
    fixed = getattr(transform, "fixed_size", None)
    side = side or (fixed[-1] if fixed else transform.min_size[-1])
    options.assumed.append(f"images of {side} x {side} with {OBJECTS} objects each (--image-size)")
    options.assume.update(ASSUME)
    pictures = [torch.rand(3, side, side, device=device) for _ in range(count)]
    return pictures, [_objects(model, side, device) for _ in range(count)]


def _objects(model: nn.Module, side: int, device: str) -> dict[str, Tensor]:
    corner = side / 4 + side / 4 * torch.rand(OBJECTS, 2, device=device)
    extent = side / 8 + side / 4 * torch.rand(OBJECTS, 2, device=device)
    target = {
        "boxes": torch.cat([corner, corner + extent], dim=1),
        "labels": torch.ones(OBJECTS, dtype=torch.long, device=device),
    }
    heads: Any = getattr(model, "roi_heads", None)
    if heads is not None and heads.has_mask():
        target["masks"] = torch.randint(0, 2, (OBJECTS, side, side), dtype=torch.uint8, device=device)
    if heads is not None and heads.has_keypoint():
        count = heads.keypoint_predictor.kps_score_lowres.out_channels
        places = corner[:, None] + extent[:, None] / 2 * torch.rand(OBJECTS, count, 2, device=device)
        target["keypoints"] = torch.cat([places, torch.ones(OBJECTS, count, 1, device=device)], dim=2)
        assert target["keypoints"].shape[2] == KEYPOINT_VALUES
    return target


def detector_loss(model: nn.Module, batch: Any) -> Tensor:
    """Returns the sum of the losses of a detector for (images, targets), in evaluation with its norms frozen."""
    # Detectors return losses in training mode only. Layers whose values depend on the mode keep the one they have.
    resting = [one for one in model.modules() if not one.training and not isinstance(one, BatchNorm | DropoutNd)]
    with attributes_set(resting, training=True):
        losses: dict[str, Tensor] = model(*batch)
    total: Any = sum(losses.values())
    return cast(Tensor, total)


def split_detection(batch: Any, size: int) -> list[Any]:
    """Cuts (images, targets) into pieces of `size` images."""
    images, targets = batch
    return [(images[at : at + size], targets[at : at + size]) for at in range(0, len(images), size)]


TASKS = {
    SEGMENTATION: Task(SEGMENTATION, loss=segmentation_loss),
    DETECTION: Task(DETECTION, labels="boxes", forward=detector_loss, split=split_detection),
    VIDEO: Task(VIDEO, loss=cross_entropy),
}
"""Tasks that models of torchvision learn in their own way."""
