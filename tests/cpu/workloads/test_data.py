"""Data sources: their parts, their numbers, and every way in which a folder can be wrong."""

import functools
import hashlib
import http.server
import pickle
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10

from snugfit.errors import InputError, SnugfitWarning
from snugfit.workloads.data import open_data
from snugfit.workloads.data.imagefolder import read_image
from snugfit.workloads.data.splits import stratified_parts
from snugfit.workloads.loader import batches


def opened(spec, **settings):
    return open_data(spec, **{"image_size": None, "channels": 3, "num_classes": None, "seed": 0, **settings})


def refused(spec, **settings):
    with pytest.raises(InputError) as caught:
        opened(spec, **settings)
    return str(caught.value)


def parts(data):
    return data.train, data.validation, data.test


def test_digits_are_all_there_once():
    data = opened("digits", channels=1)
    assert [len(part) for part in parts(data)] == [1258, 180, 359]
    rows = np.concatenate([part.images.reshape(len(part), -1) for part in parts(data)])
    from sklearn.datasets import load_digits

    original = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, original))
    for part, share in zip(parts(data), (0.7, 0.1, 0.2), strict=True):
        assert abs(len(part) / 1797 - share) < 0.01
        assert np.bincount(part.labels).min() > 0.9 * share * 174


def test_digits_are_normalised_resized_and_the_same_for_every_seed():
    data = opened("digits", image_size=16, seed=1)
    other = opened("digits", image_size=16, seed=2)
    images, labels = data.train.batch(range(len(data.train)))
    assert images.shape == (len(data.train), 3, 16, 16)
    assert images.is_contiguous()
    assert torch.equal(images[:, 0], images[:, 2])
    assert abs(float(images.mean())) < 1e-4
    assert abs(float(images.std()) - 1) < 1e-3
    assert torch.equal(labels, other.train.batch(range(len(other.train)))[1])
    assert data.train.images.dtype == np.uint8


def test_fewer_samples_keep_all_classes():
    data = opened("digits", samples=100)
    assert len(data.train) == pytest.approx(100, abs=10)
    assert len(set(data.train.labels)) == 10
    assert len(data.test) == pytest.approx(100 * 2 / 7, abs=10)


def test_labels_beyond_the_model():
    message = refused("digits", num_classes=7)
    assert "labels from 0 to 9" in message
    assert "num_classes=10" in message


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("digit", "did you mean 'digits'"),
        ("cifar10", "Write cifar10:DIR"),
        ("imagefolder:", "Write imagefolder:DIR"),
        ("digits:x", "unknown"),
        ("hf:mnist", "allowed: digits, cifar10:DIR, imagefolder:DIR, random"),
        ("topics", "Give --task text-classification or causal-lm"),
    ],
)
def test_unknown_data(spec, expected):
    assert expected in refused(spec)


def test_random_is_decided_by_seed_and_index():
    one, same, other = (opened("random", seed=seed, num_classes=5, image_size=9, channels=2) for seed in (1, 1, 2))
    assert torch.equal(one.train[3][0], same.train[3][0])
    assert not torch.equal(one.train[3][0], other.train[3][0])
    assert not torch.equal(one.train[3][0], one.test[3][0])
    assert set(one.train.labels) == set(range(5))
    images, _ = one.train.batch(range(200))
    assert abs(float(images.mean())) < 0.05
    assert abs(float(images.std()) - 1) < 0.05


def test_stratified_parts_are_a_partition():
    labels = np.repeat(np.arange(3), [50, 7, 13])
    cut = stratified_parts(labels, [0.7, 0.1])
    assert sorted(np.concatenate(cut)) == list(range(70))
    assert [len(part) for part in cut] == [49, 7, 14]


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


def picture(path, size=(10, 8), colour=(200, 30, 60)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def class_folders(root, counts=(20, 20), **settings):
    for label, count in enumerate(counts):
        for number in range(count):
            picture(root / f"class{label}" / f"{number}.png", **settings)
    return root


def test_imagefolder_is_cut_by_class(tmp_path):
    data = opened(f"imagefolder:{class_folders(tmp_path)}")
    assert [len(part) for part in parts(data)] == [28, 4, 8]
    assert data.class_names == ("class0", "class1")
    paths = [path for part in parts(data) for path in part.paths]
    assert len(set(paths)) == 40
    image, label = data.train[0]
    assert image.shape == (3, 8, 10)
    assert label == 0
    red = (200 / 255 - 0.485) / 0.229
    assert torch.allclose(image[0], torch.full((8, 10), red), atol=1e-5)


def test_imagefolder_with_its_own_parts(tmp_path):
    for part, count in (("train", 20), ("val", 3), ("test", 2)):
        class_folders(tmp_path / "three" / part, (count, count))
    assert [len(part) for part in parts(opened(f"imagefolder:{tmp_path / 'three'}"))] == [40, 6, 4]
    for part, count in (("train", 20), ("val", 3)):
        class_folders(tmp_path / "two" / part, (count, count))
    assert [len(part) for part in parts(opened(f"imagefolder:{tmp_path / 'two'}"))] == [36, 4, 6]
    class_folders(tmp_path / "two" / "test", (0, 0, 1))
    assert "class 'class2' of test is not among" in refused(f"imagefolder:{tmp_path / 'two'}")


def test_imagefolder_sizes(tmp_path):
    class_folders(tmp_path)
    picture(tmp_path / "class1" / "other.png", size=(30, 12))
    message = refused(f"imagefolder:{tmp_path}")
    assert "2 sizes" in message
    assert "30x12 (other.png)" in message
    data = opened(f"imagefolder:{tmp_path}", image_size=6)
    images, labels = data.train.batch(range(len(data.train)))
    assert images.shape == (len(labels), 3, 6, 6)


def test_imagefolder_centre_is_cut_not_squashed(tmp_path):
    from snugfit.workloads.data.imagefolder import read_image

    wide = np.zeros((4, 12, 3), dtype=np.uint8)
    wide[:, 4:8] = 255
    Image.fromarray(wide).save(tmp_path / "w.png")
    assert (read_image(str(tmp_path / "w.png"), 4) == 255).all()


def test_imagefolder_problems_are_named(tmp_path):
    assert "does not exist" in refused(f"imagefolder:{tmp_path}/none")
    (tmp_path / "empty").mkdir()
    assert "no class folders" in refused(f"imagefolder:{tmp_path}/empty")
    (tmp_path / "empty" / "cat").mkdir()
    assert "has no images" in refused(f"imagefolder:{tmp_path}/empty")
    class_folders(tmp_path / "few", (1, 1))
    assert "too few" in refused(f"imagefolder:{tmp_path}/few")
    class_folders(tmp_path / "val_only" / "val")
    assert "no train folder" in refused(f"imagefolder:{tmp_path}/val_only")


# -- image folders as they come


def opened_with_warning(spec, **settings):
    with pytest.warns(SnugfitWarning) as caught:
        data = opened(spec, **settings)
    return data, next(str(one.message) for one in caught if one.category is SnugfitWarning)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:100])


def test_files_of_the_system_are_no_images(tmp_path):
    class_folders(tmp_path)
    (tmp_path / "class0" / "._3.png").write_bytes(b"AppleDouble")
    (tmp_path / "class0" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "class1" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "class1" / "__MACOSX").mkdir()
    (tmp_path / "class1" / "__MACOSX" / "4.png").write_bytes(b"x")
    (tmp_path / "class1" / ".thumbnails").mkdir()
    picture(tmp_path / "class1" / ".thumbnails" / "5.png", size=(2, 2))
    (tmp_path / "__MACOSX" / "class0").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    data = opened(f"imagefolder:{tmp_path}", strict=True)
    assert data.class_names == ("class0", "class1")
    assert sum(map(len, parts(data))) == 40 and data.unreadable == ()


def test_a_folder_inside_a_hidden_one_still_counts(tmp_path):
    assert sum(map(len, parts(opened(f"imagefolder:{class_folders(tmp_path / '.cache' / 'pets')}")))) == 40


def test_unreadable_files_are_left_out_and_counted(tmp_path):
    class_folders(tmp_path)
    for number in (3, 7):
        (tmp_path / "class0" / f"{number}.png").write_bytes(b"no picture")
    data, message = opened_with_warning(f"imagefolder:{tmp_path}", image_size=8)
    assert "2 of 40 images" in message and "7.png" in message and "--strict" in message
    assert data.unreadable == tuple(str(tmp_path / "class0" / f"{number}.png") for number in (3, 7))
    paths = [path for part in parts(data) for path in part.paths]
    assert len(paths) == 38 and not set(paths) & set(data.unreadable)
    again, _ = opened_with_warning(f"imagefolder:{tmp_path}", image_size=8)
    assert [part.paths for part in parts(again)] == [part.paths for part in parts(data)]
    assert "7.png" in refused(f"imagefolder:{tmp_path}", image_size=8, strict=True)


def test_a_class_that_cannot_be_read_is_named(tmp_path):
    class_folders(tmp_path)
    for path in (tmp_path / "class1").iterdir():
        path.write_bytes(b"no picture")
    with pytest.warns(SnugfitWarning):
        assert "image of 'class1' can be read" in refused(f"imagefolder:{tmp_path}", image_size=8)


@pytest.mark.parametrize("workers", [0, 2])
def test_files_cut_short_give_their_place_to_the_next(tmp_path, workers):
    root = tmp_path / "images"
    for number in range(20):
        picture(root / "a" / f"{number:02}.png", size=(300, 300), colour=(number, 0, 0))
        picture(root / "b" / f"{number:02}.png", size=(300, 300), colour=(number, 9, 0))
    whole = opened(f"imagefolder:{root}", image_size=8)
    bad = [3, len(whole.train) - 1]
    for index in bad:
        cut_short(Path(whole.train.paths[index]))
    data = opened(f"imagefolder:{root}", image_size=8)
    assert data.train.paths == whole.train.paths
    images, labels = data.train.batch([2, 3, 4, bad[1], 0])
    assert torch.equal(images[1], images[2]) and not torch.equal(images[0], images[1])
    assert torch.equal(images[3], images[4]) and labels[3] == labels[4] == 0  # behind the last comes the first
    fresh = opened(f"imagefolder:{root}", image_size=8)
    settings = {"batch_size": 5, "seed": 1, "epoch": 0, "workers": workers}
    epoch = list(batches(fresh.train, **settings))
    assert sum(len(labels) for _, labels in epoch) == len(fresh.train) == 28
    assert fresh.unreadable == tuple(sorted(whole.train.paths[index] for index in bad))
    resumed = list(batches(opened(f"imagefolder:{root}", image_size=8).train, **settings, start=2))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(epoch[2:], resumed, strict=True))
    strict = opened(f"imagefolder:{root}", image_size=8, strict=True)
    with pytest.raises(InputError, match=r"a.*\.png' cannot be read"):
        strict.train[3]


def test_no_image_is_measured_on_twice(tmp_path):
    for number in range(20):
        picture(tmp_path / "a" / f"{number:02}.png", size=(300, 300), colour=(number, 0, 0))
        picture(tmp_path / "b" / f"{number:02}.png", size=(300, 300), colour=(number, 9, 0))
    test = opened(f"imagefolder:{tmp_path}", image_size=8).test
    for index in (0, 1, 5):
        cut_short(Path(test.paths[index]))
    found = [labels for _, labels in batches(test, batch_size=4, seed=0, epoch=0, shuffle=False)]
    assert [len(labels) for labels in found] == [2, 3] and torch.cat(found).tolist() == [0, 0, 1, 1, 1]
    assert len(test.batch([0, 1])[1]) == 1  # a batch of nothing cannot be


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_not_cut_off(tmp_path, suffix):
    for name, value in (("dark", 0x1234), ("light", 0xABCD)):
        Image.fromarray(np.full((4, 4), value, dtype=np.uint16)).save(tmp_path / f"{name}.{suffix}")
    assert read_image(str(tmp_path / f"dark.{suffix}"), None).tolist() == [[[0x12] * 3] * 4] * 4
    assert read_image(str(tmp_path / f"light.{suffix}"), None).max() == 0xAB


def test_pixels_of_unknown_range_are_no_images(tmp_path):
    class_folders(tmp_path)
    Image.fromarray(np.zeros((10, 8), dtype=np.float32)).save(tmp_path / "class0" / "float.tif")
    data, message = opened_with_warning(f"imagefolder:{tmp_path}")
    assert "1 of 41 images" in message and data.unreadable == (str(tmp_path / "class0" / "float.tif"),)


def test_parts_are_found_in_capitals_too(tmp_path):
    class_folders(tmp_path / "Train")
    class_folders(tmp_path / "DEV")
    class_folders(tmp_path / "more")
    data, message = opened_with_warning(f"imagefolder:{tmp_path}")
    assert data.class_names == ("class0", "class1") and len(data.test) == 40
    assert "not used: 'more'" in message


def test_files_of_other_endings_are_told(tmp_path):
    class_folders(tmp_path)
    (tmp_path / "class0" / "more.jfif").write_bytes((tmp_path / "class0" / "1.png").read_bytes())
    data, message = opened_with_warning(f"imagefolder:{tmp_path}")
    assert sum(map(len, parts(data))) == 40 and "1 *.jfif" in message


def test_a_fingerprint_is_of_sizes_and_labels(tmp_path):
    made = opened(f"imagefolder:{class_folders(tmp_path)}").fingerprint()
    assert opened(f"imagefolder:{tmp_path}").fingerprint() == made
    (tmp_path / "class0").rename(tmp_path / "zebra")
    assert opened(f"imagefolder:{tmp_path}").fingerprint() != made
    (tmp_path / "zebra").rename(tmp_path / "class0")
    picture(tmp_path / "class1" / "one_more.png")
    assert opened(f"imagefolder:{tmp_path}").fingerprint() != made


def test_strict_has_no_meaning_elsewhere():
    assert "--strict" in refused("digits", strict=True)
