"""`imagefolder:DIR`: image files sorted into one folder for each class.

Two layouts: `DIR/train/CLASS/*` with `DIR/val/CLASS/*` and `DIR/test/CLASS/*`, or `DIR/CLASS/*`, which is cut
70 / 10 / 20 by class with a seed of its own. Where only one of val and test is there it is the test part, and a tenth
of the training images, by class, becomes the validation part.

Files are decoded when they are asked for. An image is scaled until its shorter side has the model's size and its centre
is cut out; without a size all images must have one. Normalised by ImageNet's mean and standard deviation.

What is not an image is passed over: names that begin with a dot (macOS writes `._cat.jpg` beside `cat.jpg` on foreign
disks), `Thumbs.db`, `__MACOSX`. An image that cannot be read is counted and told, and stops nothing unless `strict`. Where
its header says so when the data is opened, it is left out, and an epoch is as long as what is left. Where only decoding
shows it (a file cut short), its place in the batch goes to the next readable image of its part: batches and steps stay as
many as they were, whatever the number of workers and wherever a run was resumed, since the index alone decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from snugfit.errors import InputError, SnugfitWarning, did_you_mean
from snugfit.workloads.data.splits import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    BatchedImages,
    Bytes,
    Indices,
    Splits,
    check_channels,
    fewer,
    stratified_parts,
    to_tensor,
)

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
SPLIT_FOLDERS = {"train": ("train", "training"), "validation": ("val", "valid", "validation"), "test": ("test",)}
CHECKED_FILES = 50_000
"""Files whose headers are read when the data is opened; beyond that a bad file is found when its turn comes."""
_NOT_DATA = ("__MACOSX",)
"""Folders that an archive of macOS brings along; they hold no images, whatever the names inside."""


class FolderImages(BatchedImages):
    """Image files of one split, decoded when they are asked for."""

    def __init__(
        self, paths: Sequence[Path], labels: Indices, *, channels: int, image_size: int | None, strict: bool = False
    ) -> None:
        """Holds the names of the files.

        Args:
            paths: Image files, `[N]`.
            labels: int64, `[N]`.
            channels: 3, or 1 for the mean of the colours.
            image_size: Height and width; None: all files have one size.
            strict: Whether a file that cannot be decoded stops the run.
        """
        self.paths, self.labels = [str(path) for path in paths], labels
        self.unreadable: set[str] = set()
        self._strict = strict
        self._channels, self._size = channels, image_size
        self._mean = np.asarray(IMAGENET_MEAN, dtype=np.float32).reshape(1, 3, 1, 1) * 255
        self._std = np.asarray(IMAGENET_STD, dtype=np.float32).reshape(1, 3, 1, 1) * 255

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns some images as tensors.

        Args:
            indices: Which images.

        Returns:
            Images, float32 `[B, C, H, W]`, and labels, int64 `[B]`. In place of an image that cannot be decoded stands the
            next one of the part that can.

        Raises:
            InputError: A file cannot be decoded, and `strict`; or no file can.
        """
        places, pictures = zip(*(self._readable(int(index)) for index in indices), strict=True)
        images = to_tensor(np.stack(pictures), self._mean, self._std, self._channels, self._size)
        return images, torch.from_numpy(self.labels[np.asarray(places, dtype=np.int64)])

    def _readable(self, index: int) -> tuple[int, Bytes]:
        """Returns the first image from an index on that can be decoded, and its index."""
        count = len(self.paths)
        for place in (at % count for at in range(index, index + count)):
            path = self.paths[place]
            if path in self.unreadable:
                continue
            try:
                return place, read_image(path, self._size)
            except InputError:
                if self._strict:
                    raise
                self.unreadable.add(path)
        raise InputError(f"none of {count} images can be read, {self.paths[index]!r} among them. Give other files.")


def read_image(path: str, size: int | None) -> Bytes:
    """Returns one image file as RGB, scaled and cut to a square where a size is given.

    Args:
        path: The file.
        size: Height and width; None: as stored.

    Returns:
        uint8, `[H, W, 3]`.

    Raises:
        InputError: The file cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"image {path!r} cannot be read ({error}). Repair or remove it.") from error
    if size is not None and image.size != (size, size):
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return np.asarray(image, dtype=np.uint8)


def open_imagefolder(
    directory: str, *, image_size: int | None, channels: int, samples: int | None, strict: bool = False
) -> Splits:
    """Opens a folder of images.

    Args:
        directory: The folder.
        image_size: Height and width; None: the images' own, which must be one.
        channels: 3, or 1 for the mean of the colours.
        samples: Training images at most, the other parts in proportion; None: all.
        strict: Whether a file that cannot be read stops the run; otherwise it is left out and counted.

    Returns:
        The three parts.

    Raises:
        InputError: The folder is missing or empty, its layout is not understood, or images have several sizes and the
            model has none; a file is unreadable, and `strict`, or all of a class or a part are.
    """
    name = f"imagefolder:{directory}"
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"data {name!r} needs pillow, which does not import. Run: pip install snugfit[vision]"
        ) from error
    check_channels(name, 3, channels)
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise InputError(f"data {name!r}: the folder does not exist. Give a folder with one folder for each class.")
    folders = {split: _first_folder(root, names) for split, names in SPLIT_FOLDERS.items()}
    if any(folders.values()):
        class_names, files = _from_split_folders(name, folders)
    else:
        class_names, files = _from_class_folders(name, root)
    share = 1.0 if samples is None else samples / max(len(files["train"][0]), 1)
    parts = {}
    for split, (paths, labels) in files.items():
        kept = fewer(np.arange(len(paths), dtype=np.int64), labels, share)
        parts[split] = ([paths[index] for index in kept], labels[kept])
    every = [path for paths, _ in parts.values() for path in paths]
    unreadable = _check_files(name, every, image_size)
    if unreadable:
        _tell(name, unreadable, len(every), strict)
        parts = {split: _without(name, split, files, unreadable, class_names) for split, files in parts.items()}
    images = {
        split: FolderImages(paths, labels, channels=channels, image_size=image_size, strict=strict)
        for split, (paths, labels) in parts.items()
    }
    left_out = tuple(sorted(map(str, unreadable)))
    return Splits(name=name, **images, num_classes=len(class_names), class_names=class_names, left_out=left_out)


Files = tuple[list[Path], Indices]


def _first_folder(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _from_split_folders(name: str, folders: dict[str, Path | None]) -> tuple[tuple[str, ...], dict[str, Files]]:
    if folders["train"] is None:
        given = ", ".join(folder.name for folder in folders.values() if folder)
        raise InputError(f"data {name!r} has {given} but no train folder. Add train/CLASS/*.png.")
    class_names = _class_names(name, folders["train"])
    found = {split: _files(name, folder, class_names) for split, folder in folders.items() if folder is not None}
    paths, labels = found["train"]
    held_out = [split for split in ("validation", "test") if split in found]
    if len(held_out) == 2:
        return class_names, found
    if held_out:
        test, (train, validation) = found[held_out[0]], stratified_parts(labels, [0.9])
        return class_names, {
            "train": _pick(paths, labels, train),
            "validation": _pick(paths, labels, validation),
            "test": test,
        }
    return class_names, _cut(name, paths, labels)


def _from_class_folders(name: str, root: Path) -> tuple[tuple[str, ...], dict[str, Files]]:
    class_names = _class_names(name, root)
    return class_names, _cut(name, *_files(name, root, class_names))


def _cut(name: str, paths: list[Path], labels: Indices) -> dict[str, Files]:
    cut = dict(zip(("train", "validation", "test"), stratified_parts(labels, [0.7, 0.1]), strict=True))
    empty = [split for split, part in cut.items() if not len(part)]
    if empty:
        raise InputError(
            f"data {name!r} has {len(paths)} images in all, too few to cut into training, validation and test "
            f"({', '.join(empty)} would be empty). Give at least ten images for each class."
        )
    return {split: _pick(paths, labels, part) for split, part in cut.items()}


def _pick(paths: list[Path], labels: Indices, part: Indices) -> Files:
    return [paths[index] for index in part], labels[part]


def _class_names(name: str, folder: Path) -> tuple[str, ...]:
    classes = tuple(child.name for child in _folders(folder))
    if not classes:
        raise InputError(f"data {name!r}: {str(folder)!r} has no class folders. Put images into {folder.name}/CLASS/.")
    return classes


def _files(name: str, folder: Path, class_names: Sequence[str]) -> Files:
    paths: list[Path] = []
    labels: list[int] = []
    for child in _folders(folder):
        if child.name not in class_names:
            hint = did_you_mean(child.name, class_names)
            raise InputError(
                f"data {name!r}: class {child.name!r} of {folder.name} is not among those of train; {hint}"
            )
        found = sorted(path for path in child.rglob("*") if _is_image(path.relative_to(child)) and path.is_file())
        if not found:
            raise InputError(
                f"data {name!r}: {str(child)!r} has no images. Put some in ({', '.join(sorted(SUFFIXES))}), or remove "
                "it."
            )
        paths.extend(found)
        labels.extend([class_names.index(child.name)] * len(found))
    if not paths:
        raise InputError(f"data {name!r}: {str(folder)!r} has no images. Put some into {folder.name}/CLASS/.")
    return paths, np.asarray(labels, dtype=np.int64)


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not _is_aside(child.name))


def _is_aside(name: str) -> bool:
    return name.startswith(".") or name in _NOT_DATA


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not any(map(_is_aside, path.parts))


def _check_files(name: str, paths: Sequence[Path], image_size: int | None) -> set[Path]:
    """Reads the headers, without a model size all of them, because one size is needed; returns the unreadable files."""
    from PIL import Image

    sizes: dict[tuple[int, int], Path] = {}
    unreadable: set[Path] = set()
    for path in paths if image_size is None else paths[:CHECKED_FILES]:
        try:
            with Image.open(path) as file:
                sizes.setdefault(file.size, path)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            unreadable.add(path)
    if image_size is None and len(sizes) > 1:
        listed = ", ".join(f"{width}x{height} ({path.name})" for (width, height), path in list(sizes.items())[:3])
        raise InputError(
            f"data {name!r} has images of {len(sizes)} sizes ({listed}), and the model does not say which it takes, so "
            "they cannot share a batch. Give --image-size, or resize the files."
        )
    return unreadable


def _tell(name: str, unreadable: set[Path], count: int, strict: bool) -> None:
    listed = ", ".join(repr(str(path)) for path in sorted(unreadable)[:3])
    more = f" and {len(unreadable) - 3} more" if len(unreadable) > 3 else ""
    if strict:
        raise InputError(
            f"data {name!r} has images that cannot be read: {listed}{more}. Repair or remove them, or leave --strict out."
        )
    warnings.warn(
        f"{len(unreadable)} of {count} images of {name} cannot be read and are left out: {listed}{more}. "
        "--strict stops there.",
        SnugfitWarning,
        stacklevel=3,
    )


def _without(name: str, split: str, files: Files, unreadable: set[Path], class_names: Sequence[str]) -> Files:
    """Returns the readable files of a part, which must still have all of its classes."""
    paths, labels = files
    kept = np.array([at for at, path in enumerate(paths) if path not in unreadable], dtype=np.int64)
    gone = sorted({int(label) for label in labels} - {int(label) for label in labels[kept]})
    if gone:
        listed = ", ".join(repr(class_names[label]) for label in gone[:5])
        raise InputError(
            f"data {name!r}: no {split} image of {listed} can be read, for example "
            f"{str(paths[int(np.flatnonzero(labels == gone[0])[0])])!r}. Repair the files, or remove the class."
        )
    return _pick(paths, labels, kept)
