"""`cifar10:DIR`: 60000 colour images of 32x32 in ten classes, read and fetched by torchvision.

DIR holds the folder `cifar-10-batches-py` (or is that folder), or `cifar-10-python.tar.gz`, which is then unpacked beside
it. The archive's 50000 training images are cut 90 / 10 by class into training and validation; its 10000 test images are
the test part. Normalised by mean and standard deviation of the training part. The files are Python pickles: each is held
against the checksum of what the authors publish before it is opened, so a forged file cannot run code.

Source: Alex Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from snugfit.errors import InputError
from snugfit.library_imports import needed
from snugfit.workloads.data.splits import ArrayImages, Bytes, ImageOptions, Splits, check_colours, three_parts

HOME_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def open_cifar10(directory: str, options: ImageOptions) -> Splits:
    """Opens the data set in a folder; images are resized a batch at a time."""
    name = f"cifar10:{directory}"
    kind: Any = needed(f"data {name!r} needs", "torchvision.datasets", install="snugfit[vision]").CIFAR10
    check_colours(name, options.channels)
    root = Path(directory).expanduser()
    root = root.parent if root.name == kind.base_folder else root
    _check_files(name, kind, root, options.download)
    stored = {part: kind(str(root), train=part == "train") for part in ("train", "test")}
    labels = {part: np.asarray(one.targets, dtype=np.int64) for part, one in stored.items()}
    parts = three_parts(name, labels, options.samples, shares=(0.8, 0.1))
    mean, std = _mean_and_std(stored["train"].data[parts["train"][1]])
    images: dict[str, Any] = {
        part: ArrayImages(
            stored[source].data[kept],
            labels[source][kept],
            mean=mean,
            std=std,
            channels=options.channels,
            image_size=options.image_size,
        )
        for part, (source, kept) in parts.items()
    }
    classes = tuple(stored["train"].classes)
    return Splits(name=name, **images, num_classes=len(classes), class_names=classes)


def _check_files(name: str, kind: Any, root: Path, download: bool) -> None:
    """Has the files downloaded or unpacked where needed, and compares them with their checksums."""
    from torchvision.datasets.utils import check_integrity

    folder, archive = root / kind.base_folder, root / kind.filename
    if not folder.is_dir():
        if not download and not check_integrity(str(archive), kind.tgz_md5):
            what = f"{kind.filename} is damaged" if archive.is_file() else f"the folder has no {kind.filename}"
            raise InputError(
                f"data {name!r}: {what} and there is no {kind.base_folder}. Get {kind.url} (see {HOME_PAGE}), put it there, "
                "or let snugfit fetch it: --download on the command line, download=True in Python."
            )
        try:
            kind(str(root), download=True)
        except (OSError, EOFError, RuntimeError, tarfile.TarError) as error:
            raise InputError(
                f"{kind.url} could not be fetched into {str(root)!r}, or not unpacked: {error}. Connect to the network, or "
                "put the file there yourself."
            ) from error
    files = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
    wrong = [file for file, checksum in files if not check_integrity(str(folder / file), checksum)]
    if wrong:
        raise InputError(
            f"data {name!r} is incomplete: {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} missing or damaged. Get "
            f"{kind.url} again."
        )


def _mean_and_std(images: Bytes) -> tuple[list[float], list[float]]:
    """By channel, of values from 0 to 1; made from counts of the 256 values, so no float copy is needed."""
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[3]):
        counts = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        means.append(float(counts @ values))
        stds.append(max(float(np.sqrt(counts @ values**2 - means[-1] ** 2)), 1 / 255))
    return means, stds
