"""`imagefolder:DIR`: image files sorted into one folder for each class.

Two layouts: `DIR/train/CLASS/*` with `DIR/val/CLASS/*` and `DIR/test/CLASS/*`, or `DIR/CLASS/*`, which is cut
70 / 10 / 20 by class with a seed of its own. Where only one of val and test is there it is the test part, and a tenth
of the training images, by class, becomes the validation part.

torchvision finds the files, decodes them when they are asked for, scales an image until its shorter side has the model's
size and cuts its centre out; without a size all images must have one. A batch is normalised by ImageNet's mean and standard
deviation in numpy (`splits.to_tensor`): tensors in between would be measured as memory of the training.

What is not an image is passed over: names that begin with a dot (macOS writes `._cat.jpg` beside `cat.jpg` on foreign
disks), `Thumbs.db`, `__MACOSX`. An image that cannot be read is counted and told, and stops nothing unless `strict`. Where
its header says so when the data is opened, it is left out, and an epoch is as long as what is left. Where only decoding
shows it (a file cut short), its place in the batch goes to the next readable image of its part: batches and steps stay as
many as they were, whatever the number of workers and wherever a run was resumed, since the index alone decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snugfit.errors import InputError, did_you_mean, listed, warn
from snugfit.library_imports import needed
from snugfit.workloads.data import splits

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
SPLIT_FOLDERS = {"train": ("train", "training"), "validation": ("val", "valid", "validation", "dev"), "test": ("test",)}
"""Part -> names of its folder, in small letters or in capitals."""
CHECKED_FILES = 50_000
"""Files whose headers are read when the data is opened; beyond that a bad file is found when its turn comes."""
_WIDE = ("I", "F")
"""How pillow's names of modes begin that have more than 8 bits a channel."""
_NOT_DATA = ("__MACOSX", "Thumbs.db", "desktop.ini")
"""What an archive of macOS brings along, which holds no images, whatever the names inside; and what Windows puts there."""


class FolderImages(splits.BatchedImages):
    """Image files of one split, decoded when they are asked for."""

    def __init__(
        self, paths: Sequence[str], labels: splits.Indices, options: splits.ImageOptions, *, fills: bool = True
    ) -> None:
        """Takes the files of a part; `fills`: whether another image takes the place of one that cannot be decoded."""
        self._fills = fills
        self.paths, self.labels = list(map(str, paths)), labels
        self.unreadable: set[str] = set()
        self._options = options

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns some images; `InputError` for a file that cannot be decoded only if `strict`, or if none can.

        Images, float32 `[B, C, H, W]`, and labels, int64 `[B]`. In place of an image that cannot be decoded stands the
        next one of the part that can; where a part is measured on, it is left out, so that none counts twice.
        """
        found = [self._readable(int(index)) for index in indices]
        if not self._fills:
            own = [one for one, index in zip(found, indices, strict=True) if one[0] == index]
            found = own or found[:1]  # a batch needs one
        places, pictures = zip(*found, strict=True)
        scale = splits.IMAGENET_MEAN, splits.IMAGENET_STD
        images = splits.to_tensor(np.stack(pictures), *scale, self._options.channels, self._options.image_size)
        return images, torch.from_numpy(self.labels[np.asarray(places, dtype=np.int64)])

    def _readable(self, index: int) -> tuple[int, splits.Bytes]:
        """Returns the first image from an index on that can be decoded, and its index."""
        count = len(self.paths)
        for place in (at % count for at in range(index, index + count)):
            path = self.paths[place]
            if path in self.unreadable:
                continue
            try:
                return place, read_image(path, self._options.image_size)
            except InputError:
                if self._options.strict:
                    raise
                self.unreadable.add(path)
        raise InputError(f"none of {count} images can be read, {self.paths[index]!r} among them. Give other files.")


def read_image(path: str, size: int | None) -> splits.Bytes:
    """Returns an image file as RGB; with a size (height and width) scaled, and cut to a square.

    Uint8, `[H, W, 3]`.
    """
    from torchvision.transforms.v2 import functional

    try:
        image = _rgb(path)
    except _unreadable() as error:
        raise InputError(f"image {path!r} cannot be read ({error}). Repair or remove it.") from error
    if size is not None:
        image = functional.center_crop(functional.resize(image, [size]), [size])
    return np.asarray(image, dtype=np.uint8)


def _rgb(path: str) -> Any:
    """Returns a file as an image of pillow in RGB; of 16 bits a channel the upper 8, where pillow would cut off at 255."""
    from PIL import Image

    with Image.open(path) as image:
        _check_range(image)
        if image.mode.startswith(_WIDE):
            return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)).convert("RGB")
        return image.convert("RGB")


def _check_range(image: Any) -> None:
    """Raises `ValueError` for pixels of 32 bits, whose range nobody knows; a PNG's have 16, whatever pillow calls them."""
    if image.mode.startswith(_WIDE) and not image.mode.startswith("I;16") and image.format != "PNG":
        raise ValueError(f"its pixels have 32 bits ({image.mode}); save them with 8 or 16")


def _unreadable() -> tuple[type[Exception], ...]:
    """The errors that pillow raises for files that it cannot read."""
    from PIL import Image

    return OSError, ValueError, SyntaxError, Image.DecompressionBombError


def open_imagefolder(directory: str, options: splits.ImageOptions) -> splits.Splits:
    """Opens a folder of images."""
    name = f"imagefolder:{directory}"
    needed(f"data {name!r} needs", "torchvision", install="snugfit[vision]")
    splits.check_colours(name, options.channels)
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise InputError(f"data {name!r}: the folder does not exist. Give a folder with one folder for each class.")
    folders = {part: _first_folder(root, names) for part, names in SPLIT_FOLDERS.items()}
    given = {part: folder for part, folder in folders.items() if folder is not None} or {"train": root}
    there = ", ".join(folder.name for folder in given.values())
    if "train" not in given:
        raise InputError(f"data {name!r} has {there} but no train folder. Add train/CLASS/*.png.")
    others = [] if root in given.values() else [one.name for one in _folders(root) if one not in given.values()]
    if others:
        warn(f"data {name!r} has the parts {there}; what else is there is not used: {listed(map(repr, others), 3)}.")
    class_names = tuple(child.name for child in _folders(given["train"]))
    if not class_names:
        folder = given["train"]
        told = (
            "" if folder == root else f" A folder of this name holds a part of the data ({', '.join(given)}), no class."
        )
        raise InputError(
            f"data {name!r}: {str(folder)!r} has no class folders. Put images into {folder.name}/CLASS/.{told}"
        )
    found = {part: _files(name, folder, class_names) for part, folder in given.items()}
    cut = splits.three_parts(
        name, {part: labels for part, (_, labels) in found.items()}, options.samples, shares=(0.7, 0.1)
    )
    files = {part: (found[source][0][kept], found[source][1][kept]) for part, (source, kept) in cut.items()}
    every = np.concatenate([paths for paths, _ in files.values()]).tolist()
    unreadable = _check_files(name, every, options.image_size)
    if unreadable:
        _tell(name, unreadable, len(every), options.strict)
    images = {}
    for part, one in files.items():
        paths, labels = _without(name, part, one, unreadable, class_names)
        images[part] = FolderImages(paths.tolist(), labels, options, fills=part == "train")
    left_out = tuple(sorted(unreadable))
    return splits.Splits(name=name, **images, num_classes=len(class_names), class_names=class_names, left_out=left_out)


Files = tuple[np.ndarray, splits.Indices]
"""Paths, as objects, and their labels."""


def _first_folder(root: Path, names: Sequence[str]) -> Path | None:
    there = {folder.name.lower(): folder for folder in _folders(root)}
    return next((there[name] for name in names if name in there), None)


def _files(name: str, folder: Path, class_names: Sequence[str]) -> Files:
    from torchvision.datasets.folder import make_dataset

    numbers = {label: number for number, label in enumerate(class_names)}
    for child in _folders(folder):
        if child.name not in numbers:
            hint = did_you_mean(child.name, class_names)
            raise InputError(
                f"data {name!r}: class {child.name!r} of {folder.name} is not among those of train; {hint}"
            )
    others: Counter[str] = Counter()

    def is_image(file: str) -> bool:
        path = Path(file)
        if any(map(_is_aside, path.relative_to(folder).parts)):
            return False
        known = path.suffix.lower() in SUFFIXES
        others.update([] if known else [path.suffix])
        return known

    found = make_dataset(folder, numbers, is_valid_file=is_image, allow_empty=True)
    if others:
        such = ", ".join(f"{count} *{suffix}" for suffix, count in others.most_common(3))
        warn(f"data {name!r}: files of {folder.name} that are no images by their names are left out: {such}.")
    labels: splits.Indices = np.array([label for _, label in found], dtype=np.int64)
    for child in _folders(folder):
        if numbers[child.name] not in labels:
            raise InputError(
                f"data {name!r}: {str(child)!r} has no images. Put some in ({', '.join(sorted(SUFFIXES))}), or remove it."
            )
    if not found:
        raise InputError(f"data {name!r}: {str(folder)!r} has no images. Put some into {folder.name}/CLASS/.")
    return np.array([path for path, _ in found], dtype=object), labels


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not _is_aside(child.name))


def _is_aside(name: str) -> bool:
    return name.startswith(".") or name in _NOT_DATA


def _check_files(name: str, paths: Sequence[str], image_size: int | None) -> set[str]:
    """Reads the headers of all files, or of some where the model's size makes the images' own unimportant."""
    from PIL import Image

    sizes: dict[tuple[int, int], str] = {}
    unreadable: set[str] = set()
    for path in paths if image_size is None else paths[:CHECKED_FILES]:
        try:
            with Image.open(path) as file:
                _check_range(file)
                sizes.setdefault(file.size, path)
        except _unreadable():
            unreadable.add(path)
    if image_size is None and len(sizes) > 1:
        such = ", ".join(f"{width}x{height} ({Path(path).name})" for (width, height), path in list(sizes.items())[:3])
        raise InputError(
            f"data {name!r} has images of {len(sizes)} sizes ({such}), and the model does not say which it takes, so "
            "they cannot share a batch. Give --image-size, or resize the files."
        )
    return unreadable


def _tell(name: str, unreadable: set[str], count: int, strict: bool) -> None:
    such = listed(map(repr, sorted(unreadable)), 3)
    if strict:
        raise InputError(
            f"data {name!r} has images that cannot be read: {such}. Repair or remove them, or leave --strict out."
        )
    warn(
        f"{len(unreadable)} of {count} images of {name} cannot be read and are left out: {such}. --strict stops there."
    )


def _without(name: str, split: str, files: Files, unreadable: set[str], class_names: Sequence[str]) -> Files:
    """Returns the readable files of a part, which must still have all of its classes."""
    paths, labels = files
    kept = np.array([path not in unreadable for path in paths])
    gone = sorted(set(labels.tolist()) - set(labels[kept].tolist()))
    if gone:
        classes = ", ".join(repr(class_names[label]) for label in gone[:5])
        raise InputError(
            f"data {name!r}: no {split} image of {classes} can be read, for example {paths[labels == gone[0]][0]!r}. Repair "
            "the files, or remove the class."
        )
    return paths[kept], labels[kept]
