"""Folders of images: their parts, and every way in which a folder can be wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data_sources import opened, parts, refused
from PIL import Image

from snugfit.errors import InputError, SnugfitWarning
from snugfit.workloads.data.imagefolder import read_image
from snugfit.workloads.loader import batches


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
