"""Batches for models of transformers, made from the signature of `forward`, the config's sizes and the task's labels.

What nothing says is taken from a default here, and named among what was assumed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from snugfit.errors import InputError
from snugfit.workloads import hf_sizes
from snugfit.workloads.model_shapes import sequence_length, vocabulary_size
from snugfit.workloads.options import BatchOptions
from snugfit.workloads.tasks import Task

BOXES = 8
"""Objects in an image where nothing says them; images of COCO have 7 on average."""
_SIDE, _DETECTION_SIDE = 224, 640
_WAVE = 16000
"""A second of sound, as samples."""
_SECONDS, _FRAMES, _MOMENTS = 10, 16, 1000
_SUMMARY = 128
"""Tokens of a transcript."""


class HubBatch:
    """Makes one batch of a task."""

    def __init__(self, model: torch.nn.Module, task: Task, options: BatchOptions) -> None:
        self.model, self.task, self.options = model, task, options
        self.config: Any = model.config
        self.takes = inspect.signature(model.forward).parameters
        self.batch_size, self.device = options.batch_size, options.device
        options.assume["branch"] = False  # layers that are dropped at random run, labels are in their range

    def make(self) -> dict[str, Any]:
        """Returns the batch; `InputError` where the model takes something unknown, or an option means nothing."""
        batch: dict[str, Any] = {}
        kind = self.task.labels
        sound = self._taken("input_features", "input_values")
        text = self._taken("input_ids", "inputs")  # a model that reads bytes or tokens alike calls them inputs
        if "pixel_values" in self.takes:
            batch["pixel_values"] = self._images()
        elif sound is not None and kind in ("summary", "class"):
            batch[sound] = self._sound()
        written = kind == "summary" and sound is not None  # the text is what the model writes
        if text is not None and not written and kind != "boxes" and not (kind in ("class", "pixels") and batch):
            batch = {**self._text(text, batch), **batch}
        if not batch:
            raise self._unknown()
        batch.update(self._labels(batch))
        return batch

    def _unknown(self) -> InputError:
        names = [name for name, one in self.takes.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        return InputError(
            f"a batch of {self.task.name} for {type(self.model).__name__} is not known here; it takes "
            f"{', '.join(names[:6])}. Use snugfit.estimate(model, batch) in Python."
        )

    def _taken(self, *names: str) -> str | None:
        """The first of some inputs that the model takes."""
        return next((name for name in names if name in self.takes), None)

    def _images(self) -> Tensor:
        sides, wanted = hf_sizes.image_sides(self.config), self.options.take("image_size")
        if wanted is not None:
            sides = (wanted, wanted)
        elif sides is None:
            side = _DETECTION_SIDE if self.task.labels == "boxes" else _SIDE
            sides = (side, side)
            self.options.assumed.append(
                f"images of {side} x {side}, as the config does not say their size (--image-size)"
            )
        shape: tuple[int, ...] = (self.batch_size, hf_sizes.image_channels(self.config), *sides)
        if self.task.name == "video-classification":
            frames = self.options.take("frames") or hf_sizes.clip_frames(self.config)
            if frames is None:
                frames = _FRAMES
                self.options.assumed.append(
                    f"clips of {frames} frames, as the config does not say their length (--frames)"
                )
            shape = (shape[0], frames, *shape[1:])
        return torch.rand(shape, device=self.device)

    def _sound(self) -> Tensor:
        features = hf_sizes.sound_features(self.config)
        if features is None:
            length = self.options.take("seq_len") if self.task.labels == "class" else None
            if length is None:
                length = _SECONDS * _WAVE
                self.options.assumed.append(f"{_SECONDS} s of sound, {length:,} samples")
            return torch.rand(self.batch_size, length, device=self.device)
        moments = hf_sizes.sound_length(self.config)
        if moments is None:
            moments = _MOMENTS
            self.options.assumed.append(f"{_MOMENTS} moments of sound, {_MOMENTS // 100} s")
        last = torch.rand(self.batch_size, moments, features, device=self.device)
        return last.mT.contiguous() if self._features_first(features) else last

    def _features_first(self, features: int) -> bool:
        """Whether features come before time steps, as a convolution over time wants them."""
        convolution = next((one for one in self.model.modules() if isinstance(one, torch.nn.Conv1d)), None)
        straight = "input_features" in self.takes and convolution is not None and convolution.in_channels == features
        return straight and not hasattr(self.config, "input_feat_per_channel")

    def _text(self, name: str, images: Mapping[str, Tensor]) -> dict[str, Tensor]:
        length = sequence_length(self.model, self.options.take("seq_len"))
        words = self._words()
        pieces = self._pieces(images) if self.task.name == "image-text-to-text" and images else 0
        if pieces >= length:
            raise InputError(
                f"--seq-len is {length}; an image alone takes {pieces} tokens of it. Give at least {pieces + 1}."
            )
        tokens = torch.randint(0, words, (self.batch_size, length), device=self.device)
        placeholder = hf_sizes.placeholder_token(self.config)
        if placeholder is not None:
            tokens[tokens == placeholder] = (placeholder + 1) % words if self.device != "meta" else 0
            tokens[:, :pieces] = placeholder
        batch = {name: tokens}
        batch.update(marks_of_form(tokens, self.options.form))
        if "token_type_ids" in self.takes and self.takes["token_type_ids"].default is inspect.Parameter.empty:
            batch["token_type_ids"] = torch.zeros_like(tokens)
        return batch

    def _words(self) -> int:
        """How many different tokens a text may have; some at the end of the table are special."""
        rows = vocabulary_size(self.model)
        text = self.config.get_text_config()
        found = getattr(text, "vocab_size", None) or rows
        if not isinstance(found, int):
            raise self._unknown()
        return min(found, rows or found)

    def _pieces(self, images: Mapping[str, Tensor]) -> int:
        """Tokens that an image takes: what the model itself makes of one, without memory."""
        if (
            not callable(getattr(self.model, "get_image_features", None))
            or hf_sizes.placeholder_token(self.config) is None
        ):
            return 0
        bare: Any = copy.deepcopy(self.model).to("meta") if _has_memory(self.model) else self.model
        with torch.no_grad():
            found: Any = bare.get_image_features(images["pixel_values"][:1].to("meta"))
        found = getattr(found, "pooler_output", found)
        found = found[0] if isinstance(found, list | tuple) else found
        return int(found.shape[-2])

    def _labels(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        kind, size = self.task.labels, (self.batch_size,)
        tokens = _tokens_of(batch)
        first = next(iter(batch.values()))
        if kind == "pairs":
            return {"return_loss": True} if "return_loss" in self.takes else {}
        if kind == "span":
            assert tokens is not None
            return {name: self._below(tokens.shape[1], size) for name in ("start_positions", "end_positions")}
        if kind == "class":
            return {"labels": self._below(self.config.num_labels, size)}
        if kind == "pixels":
            return {"labels": self._below(self.config.num_labels, (*size, *first.shape[-2:]))}
        if kind == "boxes":
            self.options.assume["nonzero"] = 1.0
            self.options.assumed.append(f"{BOXES} objects in each image")
            return {"labels": [self._objects() for _ in range(self.batch_size)]}
        if kind == "summary":
            self.options.assume["nonzero"] = 1.0  # every label counts
            return {"labels": self._below(self._words(), (*size, self._summary_length(batch)))}
        words = self.config.num_labels if self.task.classes else self._words()
        shape = (*size, self._summary_length(batch)) if tokens is None else tokens.shape
        return {"labels": self._below(words, tuple(shape))}

    def _summary_length(self, batch: Mapping[str, Any]) -> int:
        tokens, longest = _tokens_of(batch), hf_sizes.target_limit(self.config)
        if tokens is not None:
            return min(int(tokens.shape[1]), longest or int(tokens.shape[1]))
        wanted = self.options.take("seq_len")
        if wanted is not None:
            return wanted
        length = min(_SUMMARY, longest or _SUMMARY)
        self.options.assumed.append(f"{length} tokens for each sample to write (--seq-len)")
        return length

    def _objects(self) -> dict[str, Tensor]:
        return {
            "class_labels": self._below(self.config.num_labels, (BOXES,)),
            "boxes": 0.25 + 0.25 * torch.rand(BOXES, 4, device=self.device),  # centre and size, as shares of the image
        }

    def _below(self, limit: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(0, max(1, limit), shape, device=self.device)


def marks_of_form(tokens: Tensor, form: str) -> dict[str, Tensor]:
    """Returns what goes with token ids: nothing, a mask of padding, or the positions of packed samples."""
    return {} if form == "full" else {"attention_mask" if form == "padded" else "position_ids": torch.ones_like(tokens)}


def _has_memory(model: torch.nn.Module) -> bool:
    return any(weight.device.type != "meta" for weight in model.parameters())


def _tokens_of(batch: Mapping[str, Any]) -> Tensor | None:
    found: Tensor | None = batch.get("input_ids", batch.get("inputs"))
    return found
