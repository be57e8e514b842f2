"""CIFAR-10 from a folder, an archive and a server, and every way in which its files can be wrong."""

import functools
import hashlib
import http.server
import pickle
import tarfile
import threading

import numpy as np
import pytest
import torch
from data_sources import opened, parts, refused
from torchvision.datasets import CIFAR10


@pytest.fixture
def cifar_folder(monkeypatch):
    """Writes a small data set in CIFAR-10's form, and has its checksums taken for the published ones."""

    def write(root, *, per_file=20, **changes):
        folder = root / CIFAR10.base_folder
        folder.mkdir(parents=True)
        random = np.random.default_rng(0)
        published = {}
        for file in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
            content = {
                "data": random.integers(256, size=(per_file, 3072), dtype=np.uint8),
                "labels": [row % 2 for row in range(per_file)],
                "label_names": ["cat", "dog"],
            }
            (folder / file).write_bytes(pickle.dumps(content, protocol=2))
            published[file] = hashlib.md5((folder / file).read_bytes()).hexdigest()
            if file in changes:
                (folder / file).write_bytes(pickle.dumps({**content, **changes[file]}, protocol=2))
        monkeypatch.setattr(CIFAR10, "train_list", list(published.items())[:5])
        monkeypatch.setattr(CIFAR10, "test_list", list(published.items())[5:6])
        monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": published["batches.meta"]})
        return folder

    return write


def archived(folder, root, monkeypatch):
    root.mkdir()
    with tarfile.open(root / CIFAR10.filename, "w:gz") as archive:
        archive.add(folder, arcname=CIFAR10.base_folder)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5((root / CIFAR10.filename).read_bytes()).hexdigest())
    return root


def test_cifar10_from_folder_and_archive(tmp_path, cifar_folder, monkeypatch):
    folder = cifar_folder(tmp_path / "a")
    first = pickle.loads((folder / "test_batch").read_bytes())
    for root in (tmp_path / "a", folder, archived(folder, tmp_path / "b", monkeypatch)):
        data = opened(f"cifar10:{root}")
        assert [len(part) for part in parts(data)] == [90, 10, 20]
        assert data.class_names == ("cat", "dog")
        stored = data.test.images[4]
        assert (stored == first["data"][4].reshape(3, 32, 32).transpose(1, 2, 0)).all()
        images, _ = data.train.batch(range(90))
        assert images.shape == (90, 3, 32, 32)
        assert torch.allclose(images.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4)
        assert torch.allclose(images.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-3)


def test_cifar10_is_resized_by_batch(tmp_path, cifar_folder):
    cifar_folder(tmp_path)
    data = opened(f"cifar10:{tmp_path}", image_size=48, channels=1)
    assert data.train.images.shape[1:] == (32, 32, 3)
    assert data.train.batch([0, 5, 7])[0].shape == (3, 1, 48, 48)
    assert "takes 4 channels" in refused(f"cifar10:{tmp_path}", channels=4)


def test_cifar10_missing_says_where_to_get_it(tmp_path):
    message = refused(f"cifar10:{tmp_path}/none")
    assert CIFAR10.url in message
    assert "download=True" in message
    assert not (tmp_path / "none").exists()


class Harmful:
    def __reduce__(self):
        return (print, ("run by a pickle",))


def test_cifar10_pickles_cannot_run_code(tmp_path, capsys, cifar_folder):
    cifar_folder(tmp_path, data_batch_2={"extra": Harmful()})
    assert "data_batch_2 is missing or damaged" in refused(f"cifar10:{tmp_path}")
    assert capsys.readouterr().out == ""


def test_cifar10_damage_is_named(tmp_path, cifar_folder, monkeypatch):
    folder = cifar_folder(tmp_path / "a")
    whole = archived(folder, tmp_path / "b", monkeypatch)
    (folder / "data_batch_3").write_bytes((folder / "data_batch_3").read_bytes()[:500])
    assert "data_batch_3 is missing or damaged" in refused(f"cifar10:{tmp_path / 'a'}")
    (folder / "test_batch").unlink()
    assert "data_batch_3, test_batch are missing or damaged" in refused(f"cifar10:{tmp_path / 'a'}")
    (whole / CIFAR10.filename).write_bytes(b"\x1f\x8b not a tar")
    assert f"{CIFAR10.filename} is damaged" in refused(f"cifar10:{whole}")
    assert not (whole / CIFAR10.base_folder).exists()


@pytest.fixture
def served(tmp_path):
    """The address of a server on this machine that gives out the files of `tmp_path`."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_cifar10_is_fetched_where_that_is_asked_for(tmp_path, cifar_folder, monkeypatch, served):
    archived(cifar_folder(tmp_path / "a"), tmp_path / "b", monkeypatch)
    monkeypatch.setattr(CIFAR10, "url", f"{served}/b/{CIFAR10.filename}")
    assert len(opened(f"cifar10:{tmp_path / 'to'}", download=True).train) == 90
    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    assert "could not be fetched" in refused(f"cifar10:{tmp_path / 'other'}", download=True)
    monkeypatch.setattr(CIFAR10, "url", f"{served}/absent")
    assert "could not be fetched" in refused(f"cifar10:{tmp_path / 'gone'}", download=True)
