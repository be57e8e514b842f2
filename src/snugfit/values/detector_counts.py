"""How many boxes a detector of torchvision works on: numbers that values decide in a real run, and a simulation must state.

In training a two-stage detector takes a fixed number of proposals of each image (`box_batch_size_per_image`, 512), of which
at most a fixed share shows objects. Both are taken as reached: so many proposals there mostly are, and no step can take
more. Which level of the pyramid a proposal is read from is taken to be the finest, whose share then takes most memory.
Small and overlapping proposals are not thinned out before the sample is drawn. Of several sizes that images are scaled to,
the largest is taken.

Everything else that values decide in a detector is answered by the assumptions of `model_batches.batch_for`.

Source: torchvision `models/detection/_utils.py`, BalancedPositiveNegativeSampler; `roi_heads.py`, RoIHeads;
`ops/poolers.py`, _multiscale_roi_align; `ops/boxes.py`, batched_nms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.attributes import Change

ANSWER = (
    "detector: each image has {count} sampled proposals, {positive} of them on objects, read from the finest level (the "
    "most that a step takes; one with few objects takes less); no proposal is dropped as small or overlapping"
)
_HEADS, _UTILITIES = "torchvision.models.detection.roi_heads", "torchvision.models.detection._utils"
_RESIZING = "torchvision.models.detection.transform"
_FIRST_STAGE, _POOLERS, _BOXES = "torchvision.models.detection.rpn", "torchvision.ops.poolers", "torchvision.ops.boxes"


def stated_counts(answered: Callable[[str], None]) -> list[Change]:
    """Returns the replacements that answer torchvision detectors' questions about numbers of boxes."""
    return _Counts(answered).changes() if _HEADS in sys.modules else []


class _Torch:
    """Stands for `torch` in a module of torchvision: only `where(mask)` is answered."""

    def __init__(self, indices: Callable[[Tensor], Tensor]) -> None:
        self._indices = indices

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def where(self, condition: Tensor, *others: Any) -> Any:
        """As `torch.where`."""
        if others or condition.dim() != 1:
            return torch.where(condition, *others)
        return (self._indices(condition),)


def _first(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


class _Counts:
    """The answers of one recording; what was drawn last decides what is asked next."""

    def __init__(self, answered: Callable[[str], None]) -> None:
        self._answered = answered
        self._share = 1.0
        self._masks: list[int] = []
        self._levels_seen = 0

    def changes(self) -> list[Change]:
        """Returns what is replaced by what."""
        heads, utilities, resizing = (sys.modules[name] for name in (_HEADS, _UTILITIES, _RESIZING))
        first_stage, poolers, boxes = sys.modules[_FIRST_STAGE], sys.modules[_POOLERS], sys.modules[_BOXES]
        pool = poolers._multiscale_roi_align

        def pooled(*args: Any, **kwargs: Any) -> Tensor:
            self._levels_seen = 0
            found: Tensor = pool(*args, **kwargs)
            return found

        return [
            (resizing.GeneralizedRCNNTransform, "torch_choice", lambda owner, sizes: max(sizes)),
            (
                utilities.BalancedPositiveNegativeSampler,
                "__call__",
                lambda owner, matched: self._sampled(owner, matched),
            ),
            (heads.RoIHeads, "subsample", lambda owner, labels: self._subsampled(owner, labels)),
            (first_stage, "torch", _Torch(self._of_first_stage)),
            (heads, "torch", _Torch(self._of_heads)),
            (poolers, "torch", _Torch(self._of_pooler)),
            (poolers, "_multiscale_roi_align", pooled),
            (boxes, "remove_small_boxes", lambda boxes, min_size: _first(boxes.shape[0], boxes)),
            (boxes, "batched_nms", lambda boxes, scores, idxs, iou_threshold: _first(boxes.shape[0], boxes)),
        ]

    def _sampled(self, sampler: Any, matched: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Masks of the drawn proposals, made from the indices that select them."""
        chosen: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._masks = [0, 0]
        for labels in matched:
            count, positive = _drawn(sampler, labels.shape[0])
            self._share = positive / max(count, 1)
            order = torch.randperm(labels.shape[0], device=labels.device)[: count - positive]
            indices = (_first(positive, labels), _first(labels.shape[0], labels)[order])
            for kind, (masks, drawn) in enumerate(zip(chosen, indices, strict=True)):
                mask = torch.zeros_like(labels, dtype=torch.uint8)
                mask[drawn] = 1
                masks.append(mask)
                self._masks[kind] += drawn.shape[0]
        return chosen

    def _subsampled(self, owner: Any, labels: list[Tensor]) -> list[Tensor]:
        self._sampled(owner.fg_bg_sampler, labels)
        drawn = []
        for one in labels:
            count, positive = _drawn(owner.fg_bg_sampler, one.shape[0])
            self._answered(ANSWER.format(count=count, positive=positive))
            drawn.append(_first(count, one))
        return drawn

    def _of_first_stage(self, condition: Tensor) -> Tensor:
        """All scores are high enough; masks of what was drawn are handed out in the order they were made."""
        mask = condition.dtype == torch.uint8 and self._masks
        return _first(self._masks.pop(0) if mask else condition.shape[0], condition)

    def _of_heads(self, condition: Tensor) -> Tensor:
        """The drawn proposals that lie on objects; all keypoints are valid."""
        share = self._share if condition.dtype == torch.bool else 1.0
        return _first(round(share * condition.shape[0]), condition)

    def _of_pooler(self, condition: Tensor) -> Tensor:
        """All proposals are on the first level of the pyramid."""
        self._levels_seen += 1
        return _first(condition.shape[0] if self._levels_seen == 1 else 0, condition)


def _drawn(sampler: Any, available: int) -> tuple[int, int]:
    """How many are drawn, and how many of them are on objects."""
    count = min(sampler.batch_size_per_image, available)
    return count, min(int(sampler.batch_size_per_image * sampler.positive_fraction), count)
