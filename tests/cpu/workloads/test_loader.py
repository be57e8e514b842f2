"""The order of data: by seed and epoch alone, resumable anywhere, with no draw from the global generators."""

from itertools import chain

import numpy as np
import pytest
import torch

from snugfit.errors import InputError
from snugfit.workloads.data import open_data
from snugfit.workloads.loader import batches, steps_per_epoch


class Counting:
    """Samples that are their index; counts what is loaded."""

    def __init__(self, count):
        self.count, self.loaded = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.loaded.append(index)
        return torch.full((1, 2, 2), float(index)), index


class Failing(Counting):
    def __getitem__(self, index):
        raise InputError("image 'broken.png' cannot be read. Repair or remove it.")


def labels(dataset, **settings):
    return [labels.tolist() for _, labels in batches(dataset, **settings)]


def test_order_depends_on_seed_and_epoch():
    data = Counting(23)
    first = labels(data, batch_size=5, seed=1, epoch=0)
    assert [len(batch) for batch in first] == [5, 5, 5, 5, 3]
    assert sorted(chain(*first)) == list(range(23))
    torch.manual_seed(99)
    assert labels(data, batch_size=5, seed=1, epoch=0) == first
    assert labels(data, batch_size=5, seed=1, epoch=1) != first
    assert labels(data, batch_size=5, seed=2, epoch=0) != first
    assert list(chain(*labels(data, batch_size=5, seed=1, epoch=0, shuffle=False))) == list(range(23))


@pytest.mark.parametrize("workers", [0, 2])
def test_start_skips_without_loading(workers):
    data = Counting(23)
    first = labels(data, batch_size=5, seed=1, epoch=3)
    data.loaded.clear()
    assert labels(data, batch_size=5, seed=1, epoch=3, start=3, workers=workers) == first[3:]
    assert len(data.loaded) == (8 if workers == 0 else 0)
    assert labels(data, batch_size=5, seed=1, epoch=3, start=5, workers=workers) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_global_generators_are_left_alone(workers):
    data = open_data("digits", image_size=8, channels=1, num_classes=10, seed=0, samples=40)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    for _ in batches(data.train, batch_size=8, seed=0, epoch=0, workers=workers):
        pass
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()


def test_workers_give_the_same_batches():
    data = open_data("digits", image_size=8, channels=3, num_classes=10, seed=0, samples=100).train
    here = list(batches(data, batch_size=16, seed=5, epoch=2))
    there = list(batches(data, batch_size=16, seed=5, epoch=2, workers=2, prefetch=1))
    assert len(here) == len(there) == steps_per_epoch(data, 16)
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_one_sample_and_whole_batches_agree():
    data = open_data("random", image_size=6, channels=2, num_classes=3, seed=4, samples=12).train
    for images, wanted in batches(data, batch_size=5, seed=0, epoch=0, shuffle=False):
        assert images.shape[1:] == (2, 6, 6)
        assert images.dtype == torch.float32
        assert wanted.dtype == torch.int64
    image, label = data[7]
    whole, all_labels = data.batch(range(12))
    assert torch.equal(whole[7], image)
    assert int(all_labels[7]) == label


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_is_one_message(workers):
    with pytest.raises(InputError) as caught:
        list(batches(Failing(4), batch_size=2, seed=0, epoch=0, workers=workers))
    assert str(caught.value) == "image 'broken.png' cannot be read. Repair or remove it."


def test_the_last_batch_of_an_epoch_may_be_smaller():
    assert [steps_per_epoch(Counting(8), size) for size in (8, 3, 1)] == [1, 3, 8]


class Dicts(Counting):
    """Batches of text."""

    def batch(self, indices):
        rows = torch.as_tensor(np.asarray(indices))
        return {"input_ids": rows[:, None].expand(-1, 1 + int(rows.max())).clone(), "labels": rows}


@pytest.mark.parametrize("workers", [0, 1])
def test_dicts_keep_their_form_and_the_same_order(workers):
    found = list(batches(Dicts(11), batch_size=4, seed=1, epoch=0, workers=workers))
    assert [batch["labels"].tolist() for batch in found] == labels(Counting(11), batch_size=4, seed=1, epoch=0)
    for batch in found:
        assert batch.keys() == {"input_ids", "labels"}
        assert batch["input_ids"].shape == (len(batch["labels"]), 1 + int(batch["labels"].max()))
