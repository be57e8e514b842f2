"""Which samples of a data set a prediction is made with."""

import pytest
import torch

from snugfit.errors import InputError
from snugfit.simulator.widest_samples import MOST_READ, widest_batches, widest_samples


def test_the_widest_samples_come_first():
    data = [{"ids": [1] * length, "label": 0} for length in (3, 9, 1, 7)]
    assert [len(sample["ids"]) for sample in widest_samples(data, 2)] == [9, 7]
    images = [(torch.zeros(3, side, side), 1) for side in (4, 8, 6)]
    assert [sample[0].shape[1] for sample in widest_samples(images, 5)] == [8, 6, 4]


def test_a_table_of_tokens_is_asked_for_lengths_and_not_read():
    datasets = pytest.importorskip("datasets")
    rows = [[1] * (number % 50 + 1) for number in range(3 * MOST_READ)]
    rows[-1] = [1] * 200
    assert [len(row["input_ids"]) for row in widest_samples(datasets.Dataset.from_dict({"input_ids": rows}), 2)] == [
        200,
        50,
    ]


def test_a_large_set_is_read_here_and_there_and_a_stream_from_its_beginning():
    read = []

    class Large:
        def __len__(self):
            return 100 * MOST_READ

        def __getitem__(self, number):
            read.append(number)
            return [0]

    assert len(widest_samples(Large(), 4)) == 4
    assert len(read) <= MOST_READ and max(read) > 90 * MOST_READ
    assert widest_samples(iter([[1], [1, 2], [1]]), 2) == [[1], [1, 2]]


@pytest.mark.parametrize("data", [[], iter([])])
def test_a_set_without_samples_is_told(data):
    with pytest.raises(InputError, match="eval_dataset has no samples"):
        widest_samples(data, 2, "eval_dataset")


def test_batches_of_texts_are_of_the_longest():
    texts = ["a", "bbb", "cc", "d", "ee"]

    def together(texts):
        return torch.zeros(len(texts), max(map(len, texts)))

    loader = torch.utils.data.DataLoader(texts, batch_size=2, collate_fn=together)
    batches = iter(loader)
    assert "the widest of 5 samples that were read of 5" in widest_batches(loader, batches)
    assert [tuple(batch.shape) for batch in batches] == [(2, 3), (2, 3), (1, 3)]


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (["aa", "bb", "cc"], {"batch_size": 2}),
        (["a", "bb", "c"], {"batch_sampler": [[0, 2], [1]]}),
        (["a", "bb", "c"], {"batch_size": None}),
    ],
)
def test_other_batches_are_left_as_they_are(data, settings):
    loader = torch.utils.data.DataLoader(data, collate_fn=tuple, **settings)
    batches = iter(loader)
    assert not widest_batches(loader, batches)
    assert [each for batch in batches for each in batch] in (data, ["a", "c", "bb"], list("".join(data)))


def test_a_data_set_that_fails_is_left_to_the_script():
    class Fails:
        def __len__(self):
            return 3

        def __getitem__(self, number):
            raise KeyError(number)

    loader = torch.utils.data.DataLoader(Fails(), batch_size=2)
    assert not widest_batches(loader, iter(loader))
