"""Options that several commands have, in groups: each field of a class is one, and the docstring under it is its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from snugfit.cli import output

Name = Annotated[str, "NAME"]
Names = Annotated[str, "NAMES"]
Count = Annotated[int, "N"]
File = Annotated[Path, "FILE"]
Folder = Annotated[Path, "DIR"]


class DataOptions:
    """What is trained, and on what."""

    data: Annotated[str, "DATA"]
    """images: digits, cifar10:DIR, imagefolder:DIR; text: topics, prose, csv:FILE, jsonl:FILE, parquet:FILE,
    text:FILE_OR_DIR, hf:NAME; random (with --resume: the run's)"""
    model_arg: Annotated[list, "K=V"]  # type: ignore[type-arg]
    """argument of the model's constructor"""
    task: Annotated[str, "TASK"]
    """image-classification, text-classification or causal-lm. Default: what data and model are for."""
    image_size: Count
    """side of the images. Default: the model's own."""
    samples: Count
    """training samples at most; of random data, how many there are"""
    strict: bool
    """stop at an image file that cannot be read; otherwise it is skipped and counted"""
    download: bool = False
    """fetch data and hf: model when they are not there"""
    device: Annotated[str, "DEVICE", output.DeviceAction]
    """where to train: auto, cpu, cuda, or rehearse:CARD for the bytes of a card of `snugfit devices` that is not there (real
    numbers, computed on the processor). Default: auto, cuda where there is one."""


class ReadingOptions:
    """How text is read."""

    seq_len: Count
    """most tokens of a text. Default: 512, or fewer where the model takes fewer."""
    packing: bool
    """lay short texts end to end in rows of exactly --seq-len tokens (causal-lm)"""
    text_column: Name
    """column of the texts, or of what follows a prompt. Default: by its name."""
    label_column: Name
    """column of the labels. Default: by its name."""
    prompt_column: Name
    """column of prompts, which are read and not learned. Default: by its name."""


class ShapeOptions:
    """A batch without data; a test compares the tasks listed here with those that exist."""

    model_arg: Annotated[list, "K=V"]  # type: ignore[type-arg]
    """argument of the model's constructor"""
    task: Annotated[str, "TASK"]
    """what is learned: image-classification, text-classification, causal-lm, masked-lm, seq2seq-lm, token-classification,
    question-answering, contrastive, semantic-segmentation, object-detection, video-classification, speech-to-text, ctc,
    audio-classification or image-text-to-text. Default: what the model is for."""
    image_size: Count
    """side of the images. Default: the model's own."""
    frames: Count
    """frames of a clip, for models of video. Default: the model's own."""
    seq_len: Count
    """tokens of a sequence. Default: 512, or fewer where the model takes fewer."""


class BudgetOptions:
    """What a plan must keep to."""

    budget: Annotated[str, "SIZE"]
    """device memory for training, such as 8GiB. Default: all of the card."""
    allow: Annotated[str, "LEVELS"]
    """fidelity that may be given up to fit or to be faster: rounding, different, or both with a comma. Default: none, every
    update stays that of plain training."""
    pin: Annotated[list, "F=V"]  # type: ignore[type-arg]
    """a recipe field that must have this value"""
    forbid: Annotated[list, "F"]  # type: ignore[type-arg]
    """a recipe field that must stay plain"""
    host_budget: Annotated[str, "SIZE"]
    """host memory of a machine that may be used. Default: what is free here; of a named card's machine, no limit."""
