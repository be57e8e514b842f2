"""`cifar10:DIR`: 60000 colour images of 32x32 in ten classes, from the archive that its authors publish.

DIR holds `cifar-10-python.tar.gz` (read as it is, never unpacked) or the folder `cifar-10-batches-py`. The archive's
50000 training images are cut 90 / 10 by class into training and validation; its 10000 test images are the test part.
Normalised by mean and standard deviation of the training part. The files are Python pickles: they are read by an
unpickler that knows numpy arrays and nothing else, so a forged file cannot run code.

Source: Alex Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from snugfit.errors import InputError
from snugfit.workloads.data.splits import (
    ArrayImages,
    Bytes,
    Indices,
    Splits,
    check_channels,
    fewer,
    stratified_parts,
)

HOME_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3d95e74349a"
"""Checksum of the archive, as the home page prints it."""

ARCHIVE, FOLDER = "cifar-10-python.tar.gz", "cifar-10-batches-py"
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE, META_FILE = "test_batch", "batches.meta"
_CHUNK_BYTES = 2**20


def open_cifar10(
    directory: str, *, image_size: int | None, channels: int, download: bool, samples: int | None
) -> Splits:
    """Opens the data set.

    Args:
        directory: Where the archive or its folder is.
        image_size: Height and width; None: 32. Images are resized a batch at a time.
        channels: 3, or 1 for the mean of the colours.
        download: Whether to fetch the archive where it is missing.
        samples: Training images at most, the other parts in proportion; None: all.

    Returns:
        The three parts.

    Raises:
        InputError: The archive is missing, damaged or cannot be fetched.
    """
    name = f"cifar10:{directory}"
    check_channels(name, 3, channels)
    root = Path(directory).expanduser()
    if download and not _present(root):
        fetch(root)
    files = _read_files(root, name)
    meta = _unpickle(files[META_FILE], META_FILE, name)
    class_names = tuple(
        text.decode() if isinstance(text, bytes) else str(text) for text in meta.get(b"label_names", ())
    )
    batches = [_images_and_labels(files[file], file, name, len(class_names)) for file in (*TRAIN_FILES, TEST_FILE)]
    images = np.concatenate([batch[0] for batch in batches])
    labels = np.concatenate([batch[1] for batch in batches])
    first_test = len(images) - len(batches[-1][0])
    train, validation = stratified_parts(labels[:first_test], [0.9])
    test = np.arange(first_test, len(images), dtype=np.int64)
    mean, std = _mean_and_std(images[train])
    share = 1.0 if samples is None else samples / max(len(train), 1)
    parts = [
        ArrayImages(images[kept], labels[kept], mean=mean, std=std, channels=channels, image_size=image_size)
        for kept in (fewer(part, labels, share) for part in (train, validation, test))
    ]
    return Splits(
        name=name,
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        num_classes=len(class_names),
        class_names=class_names,
    )


def _present(root: Path) -> bool:
    return (root / FOLDER).is_dir() or (root / ARCHIVE).is_file() or (root / TEST_FILE).is_file()


def _read_files(root: Path, name: str) -> dict[str, bytes]:
    wanted = (*TRAIN_FILES, TEST_FILE, META_FILE)
    folder = root / FOLDER if (root / FOLDER).is_dir() else root
    try:
        if (folder / TEST_FILE).is_file() or folder.name == FOLDER:
            return {file: (folder / file).read_bytes() for file in wanted}
        if (root / ARCHIVE).is_file():
            with tarfile.open(root / ARCHIVE, "r:gz") as archive:
                # One pass in the archive's own order: a gzip stream cannot be read backwards.
                found = {Path(member.name).name: member for member in archive if member.isfile()}
                members = sorted((found[file] for file in wanted), key=lambda member: member.offset)
                return {Path(member.name).name: _bytes_of(archive, member) for member in members}
    except FileNotFoundError as error:
        raise InputError(
            f"data {name!r} is incomplete: {Path(error.filename).name} is missing. Get {URL} again."
        ) from error
    except KeyError as error:
        raise InputError(f"data {name!r}: {ARCHIVE} has no file {error}. Get {URL} again.") from error
    except (OSError, EOFError, tarfile.TarError) as error:
        raise InputError(f"data {name!r}: {ARCHIVE} cannot be read ({error}). Get {URL} again.") from error
    raise InputError(
        f"data {name!r}: the folder has neither {ARCHIVE} nor {FOLDER}. Get {URL} (see {HOME_PAGE}), put it there, "
        "or let snugfit fetch it: --download on the command line, download=True in Python."
    )


def _bytes_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None  # only files are listed
    return stream.read()


class _ArraysOnly(pickle.Unpickler):
    """Unpickles dictionaries, lists, text, numbers and numpy arrays; anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns one of the few things that a numpy array is pickled with.

        Args:
            module: Module named in the file.
            name: Name in that module.

        Returns:
            The class or function.

        Raises:
            UnpicklingError: It is not one of them.
        """
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]  # wherever this numpy keeps it
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which image data has no use for")


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1") if encoding == "latin1" else text.encode()


def _unpickle(content: bytes, file: str, name: str) -> dict[bytes, Any]:
    try:
        loaded = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise InputError(f"data {name!r}: {file} cannot be read ({error}). Get {URL} again.") from error
    if not isinstance(loaded, dict):
        raise InputError(f"data {name!r}: {file} holds {type(loaded).__name__}, not a dictionary. Get {URL} again.")
    return {key.encode() if isinstance(key, str) else key: value for key, value in loaded.items()}


def _images_and_labels(content: bytes, file: str, name: str, classes: int) -> tuple[Bytes, Indices]:
    loaded = _unpickle(content, file, name)
    data, labels = loaded.get(b"data"), np.asarray(loaded.get(b"labels", ()))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,) or not len(data):
        raise InputError(f"data {name!r}: {file} holds no images of 3x32x32 bytes. Get {URL} again.")
    if labels.shape != (len(data),) or labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"data {name!r}: {file} has labels that do not fit its images. Get {URL} again.")
    images = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, labels.astype(np.int64)


def _mean_and_std(images: Bytes) -> tuple[list[float], list[float]]:
    """By channel, of values from 0 to 1; from counts of the 256 values, so no float copy of the images is made."""
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[3]):
        counts = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        means.append(float(counts @ values))
        stds.append(max(float(np.sqrt(counts @ values**2 - means[-1] ** 2)), 1 / 255))
    return means, stds


def fetch(root: Path, url: str = URL, md5: str = MD5) -> Path:
    """Downloads the archive with a progress bar; it appears under its name only when its checksum is right.

    Args:
        root: Folder to put it in; made where it is missing.
        url: Where to get it.
        md5: Its checksum.

    Returns:
        The archive.

    Raises:
        InputError: It cannot be fetched or written, or is not what it should be.
    """
    from tqdm import tqdm

    target, part = root / ARCHIVE, root / (ARCHIVE + ".part")
    try:
        root.mkdir(parents=True, exist_ok=True)
        digest = hashlib.md5(usedforsecurity=False)
        with urllib.request.urlopen(url, timeout=30) as answer, part.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0) or None
            with tqdm(total=total, unit="B", unit_scale=True, desc=ARCHIVE) as progress:
                while chunk := answer.read(_CHUNK_BYTES):
                    file.write(chunk)
                    digest.update(chunk)
                    progress.update(len(chunk))
        if digest.hexdigest() != md5:
            raise InputError(f"{url} gave a file with another checksum than {md5}. Try again, or see {HOME_PAGE}.")
        part.replace(target)
    except OSError as error:
        raise InputError(
            f"{url} could not be fetched into {str(root)!r}: {error}. Connect to the network, or put the file there "
            "yourself."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target
