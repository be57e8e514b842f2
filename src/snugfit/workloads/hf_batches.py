"""Batches for models of transformers, made from the signature of `forward`, the config's sizes and the task's labels.

What nothing says is taken from a default here, and named among what was assumed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from snugfit.errors import InputError
from snugfit.workloads import hf_sizes
from snugfit.workloads.hf_tasks import HUB_TASKS
from snugfit.workloads.model_shapes import sequence_length, vocabulary_size

Form = Literal["full", "padded", "packed"]

BOXES = 8
"""Objects in an image where nothing says them; images of COCO have 7 on average."""
_SIDE, _DETECTION_SIDE = 224, 640
_WAVE = 16000
"""A second of sound, as samples."""
_SECONDS, _FRAMES, _MOMENTS = 10, 16, 1000
_SUMMARY = 128
"""Tokens of a transcript."""


class HubBatch:
    """Makes one batch of a task; `assumed` says what neither config nor caller said."""

    def __init__(
        self,
        model: torch.nn.Module,
        task: str,
        *,
        batch_size: int,
        image_size: int | None,
        seq_len: int | None,
        frames: int | None,
        form: Form,
        device: str,
    ) -> None:
        """Takes what was asked for; see `model_batches.batch_for`."""
        self.model, self.task = model, HUB_TASKS[task]
        self.config: Any = model.config
        self.takes = inspect.signature(model.forward).parameters
        self.batch_size, self.image_size, self.seq_len, self.frames = batch_size, image_size, seq_len, frames
        self.form, self.device = form, device
        self.assumed: list[str] = []
        self.assume: dict[str, Any] = {
            "branch": False
        }  # layers that are dropped at random run, labels are in their range

    def make(self) -> dict[str, Any]:
        """Returns the batch.

        Raises:
            InputError: The model takes something that is not known here, or an option has no meaning for it.
        """
        batch: dict[str, Any] = {}
        writes = self.task.labels == "summary"  # the text is what the model writes
        reads = not (writes and self._hears()) and self.task.labels != "boxes"
        if "pixel_values" in self.takes:
            batch["pixel_values"] = self._images()
        if self._hears() and (writes or self.task.labels == "class") and "pixel_values" not in batch:
            batch[self._sound_name()] = self._sound()
        text = self._text_name()
        if text is not None and reads and not (self.task.labels in ("class", "pixels") and batch):
            batch = {**self._text(text, batch), **batch}
        if not batch:
            raise self._unknown()
        batch.update(self._labels(batch))
        self._check_options(batch)
        return batch

    def _unknown(self) -> InputError:
        names = [name for name, one in self.takes.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        return InputError(
            f"a batch of {self.task.name} for {type(self.model).__name__} is not known here; it takes "
            f"{', '.join(names[:6])}. Use snugfit.estimate(model, batch) in Python."
        )

    def _hears(self) -> bool:
        return "input_features" in self.takes or "input_values" in self.takes

    def _sound_name(self) -> str:
        return "input_features" if "input_features" in self.takes else "input_values"

    def _text_name(self) -> str | None:
        # A model that reads bytes or tokens alike calls them inputs.
        return next((name for name in ("input_ids", "inputs") if name in self.takes), None)

    def _check_options(self, batch: Mapping[str, Any]) -> None:
        given = {"image_size": "pixel_values", "frames": "pixel_values"}
        for option, needs in given.items():
            used = needs in batch and (option != "frames" or batch[needs].dim() == 5)
            if getattr(self, option) is not None and not used:
                raise InputError(
                    f"--{option.replace('_', '-')} has no meaning for {self.task.name} of this model. Leave it out."
                )
        if self.seq_len is not None and not any(name in batch for name in ("input_ids", "inputs", "labels")):
            raise InputError(f"--seq-len has no meaning for {self.task.name} of this model; give --image-size.")
        if self.seq_len is not None and self.task.labels in ("class", "pixels", "boxes") and "pixel_values" in batch:
            raise InputError(f"--seq-len has no meaning for {self.task.name}; give --image-size.")

    def _images(self) -> Tensor:
        sides = hf_sizes.image_sides(self.config)
        if self.image_size is not None:
            sides = (self.image_size, self.image_size)
        elif sides is None:
            side = _DETECTION_SIDE if self.task.labels == "boxes" else _SIDE
            sides = (side, side)
            self.assumed.append(f"images of {side} x {side}, as the config does not say their size (--image-size)")
        shape: tuple[int, ...] = (self.batch_size, hf_sizes.image_channels(self.config), *sides)
        if self.task.name == "video-classification":
            frames = self.frames or hf_sizes.clip_frames(self.config)
            if frames is None:
                frames = _FRAMES
                self.assumed.append(f"clips of {frames} frames, as the config does not say their length (--frames)")
            shape = (shape[0], frames, *shape[1:])
        return torch.rand(shape, device=self.device)

    def _sound(self) -> Tensor:
        features = hf_sizes.sound_features(self.config)
        if features is None:
            length = self.seq_len if self.seq_len is not None and self.task.labels == "class" else None
            if length is None:
                length = _SECONDS * _WAVE
                self.assumed.append(f"{_SECONDS} s of sound, {length:,} samples")
            return torch.rand(self.batch_size, length, device=self.device)
        moments = hf_sizes.sound_length(self.config)
        if moments is None:
            moments = _MOMENTS
            self.assumed.append(f"{_MOMENTS} moments of sound, {_MOMENTS // 100} s")
        last = torch.rand(self.batch_size, moments, features, device=self.device)
        return last.mT.contiguous() if self._features_first(features) else last

    def _features_first(self, features: int) -> bool:
        """Whether a moment's numbers stand before the moments, as a convolution over them wants it."""
        convolution = next((one for one in self.model.modules() if isinstance(one, torch.nn.Conv1d)), None)
        straight = "input_features" in self.takes and convolution is not None and convolution.in_channels == features
        return straight and not hasattr(self.config, "input_feat_per_channel")

    def _text(self, name: str, images: Mapping[str, Tensor]) -> dict[str, Tensor]:
        length = sequence_length(self.model, self.seq_len)
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
        if self.form != "full":
            batch["attention_mask" if self.form == "padded" else "position_ids"] = torch.ones_like(tokens)
        if "token_type_ids" in self.takes and self.takes["token_type_ids"].default is inspect.Parameter.empty:
            batch["token_type_ids"] = torch.zeros_like(tokens)
        return batch

    def _words(self) -> int:
        """How many different tokens a text has; some at the end of the table are special."""
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
        first = next(iter(batch.values()))
        if kind == "pairs":
            return {"return_loss": True} if "return_loss" in self.takes else {}
        if kind == "span":
            return {
                name: self._below(_tokens_of(batch).shape[1], size) for name in ("start_positions", "end_positions")
            }
        if kind == "class":
            return {"labels": self._below(self.config.num_labels, size)}
        if kind == "pixels":
            return {"labels": self._below(self.config.num_labels, (*size, *first.shape[-2:]))}
        if kind == "boxes":
            self.assume["nonzero"] = 1.0
            self.assumed.append(f"{BOXES} objects in each image")
            return {"labels": [self._objects() for _ in range(self.batch_size)]}
        if kind == "summary":
            self.assume["nonzero"] = 1.0  # every label counts
            return {"labels": self._below(self._words(), (*size, self._summary_length(batch)))}
        words = self.config.num_labels if self.task.classes else self._words()
        shape = _tokens_of(batch).shape if _text_in(batch) else (*size, self._summary_length(batch))
        return {"labels": self._below(words, tuple(shape))}

    def _summary_length(self, batch: Mapping[str, Any]) -> int:
        if _text_in(batch):
            longest = hf_sizes.target_limit(self.config)
            length = int(_tokens_of(batch).shape[1])
            return min(length, longest or length)
        limit = hf_sizes.target_limit(self.config)
        if self.seq_len is not None:
            return self.seq_len
        length = min(_SUMMARY, limit or _SUMMARY)
        self.assumed.append(f"{length} tokens for each sample to write (--seq-len)")
        return length

    def _objects(self) -> dict[str, Tensor]:
        return {
            "class_labels": self._below(self.config.num_labels, (BOXES,)),
            "boxes": 0.25 + 0.25 * torch.rand(BOXES, 4, device=self.device),  # centre and size, as shares of the image
        }

    def _below(self, limit: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(0, max(1, limit), shape, device=self.device)


def _has_memory(model: torch.nn.Module) -> bool:
    return any(weight.device.type != "meta" for weight in model.parameters())


def _text_in(batch: Mapping[str, Any]) -> bool:
    return "input_ids" in batch or "inputs" in batch


def _tokens_of(batch: Mapping[str, Any]) -> Tensor:
    tokens: Tensor = batch["input_ids"] if "input_ids" in batch else batch["inputs"]
    return tokens
