"""Data sources: their parts and their numbers."""

import numpy as np
import pytest
import torch
from data_sources import opened, parts, refused

from snugfit.workloads.data.splits import stratified_parts


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


def test_strict_has_no_meaning_elsewhere():
    assert "--strict" in refused("digits", strict=True)
