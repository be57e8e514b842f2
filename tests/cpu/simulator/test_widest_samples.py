"""Which samples of a data set a prediction is made with."""

import abc
from collections.abc import MutableMapping

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


def test_a_table_s_longest_labels_count_beside_its_longest_texts():
    datasets = pytest.importorskip("datasets")
    lengths = [(9, 1), (8, 2), (3, 6), (1, 1)]
    rows = [{"input_ids": [1] * of_text, "labels": [1] * of_labels} for of_text, of_labels in lengths]
    found = widest_samples(datasets.Dataset.from_list(rows), 2)
    assert {(len(row["input_ids"]), len(row["labels"])) for row in found} == {(9, 1), (3, 6)}


def test_a_large_set_is_read_here_and_there_and_a_stream_from_its_beginning():
    read = []

    class Large:
        def __len__(self):
            return 100 * MOST_READ

        def __getitem__(self, number):
            read.append(number)
            return [0]

    assert len(widest_samples(Large(), 4)) == 4
    assert len(read) <= MOST_READ + 4 and max(read) > 90 * MOST_READ
    assert widest_samples(iter([[1], [1, 2], [1]]), 2) == [[1], [1, 2]]


@pytest.mark.parametrize("data", [[], iter([])])
def test_a_set_without_samples_is_told(data):
    with pytest.raises(InputError, match="eval_dataset has no samples"):
        widest_samples(data, 2, "eval_dataset")


def together(texts):
    return torch.zeros(len(texts), max(map(len, texts)))


def loader_of(data, **settings):
    by_chance = not {"sampler", "batch_sampler", "shuffle"} & set(settings) and hasattr(data, "__len__")
    settings = {"shuffle": True} | settings if by_chance else settings
    return torch.utils.data.DataLoader(data, **{"batch_size": 2, "collate_fn": together, **settings})


def test_batches_of_texts_are_of_the_longest():
    numbers, said = widest_batches(loader_of(["a", "bbb", "cc", "d", "ee"]))
    assert numbers == [[1, 2]] and "the widest of 5 samples that were read of 5" in said


class Store(MutableMapping):
    """Tensors by name, and what they belong to."""

    def __init__(self, owner, tensors):
        self.owner, self.tensors = owner, tensors

    def __getitem__(self, name):
        return self.tensors[name]

    def __setitem__(self, name, value):
        self.tensors[name] = value

    def __delitem__(self, name):
        del self.tensors[name]

    def __iter__(self):
        return iter(self.tensors)

    def __len__(self):
        return len(self.tensors)


class Graph:
    """A graph as libraries have it: its tensors lie in a store."""

    def __init__(self, nodes, features):
        self.store = Store(self, {"x": features, "edges": torch.zeros(2, 3 * nodes, dtype=torch.int64)})


def joined(graphs):
    # a class that is made on the way, as torch_geometric makes that of its batches: it says that it is of the module `abc`
    made = abc.ABCMeta("GraphBatch", (Graph,), {})
    return made(sum(len(graph.store["x"]) for graph in graphs), torch.cat([graph.store["x"] for graph in graphs]))


def test_batches_of_graphs_are_of_the_largest():
    graphs = [Graph(nodes, torch.zeros(nodes, 4)) for nodes in (3, 9, 1, 7, 5)]
    numbers, said = widest_batches(loader_of(graphs, collate_fn=joined))
    assert numbers == [[1, 3]] and "as wide as 100 shuffles made any" in said


class Text:
    """A sample with its words in an object of its own, and all the others in reach."""

    def __init__(self, words, others):
        self.words, self.others = type("Words", (), {})(), others
        self.words.text = words


def test_samples_that_are_objects_are_as_wide_as_what_lies_in_them():
    texts = []
    texts += [Text(words, texts) for words in ("a", "bbb", "cc")]
    numbers, _ = widest_batches(loader_of(texts, collate_fn=lambda them: together([one.words.text for one in them])))
    assert numbers == [[1, 2]]


def test_only_samples_that_a_sampler_may_draw_are_looked_at():
    sampler = torch.utils.data.SubsetRandomSampler([0, 2, 3])
    numbers, said = widest_batches(loader_of(["a", "bbb", "cc", "d", "ee"], sampler=sampler))
    assert numbers == [[2, 0]] and "of 3 samples" in said


def test_what_is_padded_in_each_direction_is_longest_in_each():
    images = [torch.zeros(2, 9), torch.zeros(9, 2), torch.zeros(5, 5), torch.zeros(5, 5)]

    def padded(images):
        return torch.zeros(len(images), max(one.shape[0] for one in images), max(one.shape[1] for one in images))

    (numbers,), _ = widest_batches(loader_of(images, batch_size=3, collate_fn=padded))
    assert set(numbers) == {0, 1, 2}


def test_images_that_a_model_brings_to_a_size_are_of_unlike_shapes_by_turns():
    sizes = [(8, 8), (8, 8), (4, 7), (7, 4), (6, 5)]
    images = [torch.zeros(3, *size) for size in sizes]
    assert widest_batches(loader_of(images, collate_fn=list))[0] == [[0, 1], [2, 3]]
    assert widest_batches(loader_of(images, collate_fn=lambda them: torch.zeros(len(them), 3, 8, 8))) == ([], "")


def test_texts_that_are_cut_at_a_length_are_padded_by_turns():
    """A mask of ones alone is left out by attention; most real batches have one."""
    assert widest_batches(loader_of(["a", "bbb", "bbb", "d", "bbb"]))[0] == [[1, 2], [1, 3]]


def test_a_rare_long_sample_is_found():
    texts = ["a"] * 1000
    texts[777] = "long"
    (numbers,), _ = widest_batches(loader_of(texts))
    assert numbers[0] == 777


class Named(torch.utils.data.BatchSampler):
    """torch's own but for its class, as sentence-transformers has one."""


def test_batches_of_a_sampler_s_own_class_are_widest_too():
    settings = {"batch_sampler": Named(range(3), 2, drop_last=False), "batch_size": 1}
    assert widest_batches(loader_of(["a", "bbb", "cc"], **settings))[0] == [[1, 2]]


class Counted(torch.utils.data.BatchSampler):
    """As many samples a batch as it pleases, whatever it says."""

    def __iter__(self):
        yield from ([0, 2], [1])


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_sampler": Counted(range(3), 2, drop_last=False), "batch_size": 1},
        {"batch_sampler": [[0, 2], [1]], "batch_size": 1},
        {"batch_size": None, "collate_fn": None},
        {"collate_fn": lambda texts: torch.zeros(len(texts), 8)},
    ],
    ids=["counted", "listed", "one", "padded alike"],
)
def test_other_batches_are_left_as_they_are(settings):
    assert widest_batches(loader_of(["a", "bb", "c"], **settings)) == ([], "")


def test_equal_samples_are_left_as_they_are():
    assert widest_batches(loader_of(["aa", "bb", "cc"])) == ([], "")


def test_a_data_set_that_fails_is_left_to_the_script():
    class Fails:
        def __len__(self):
            return 3

        def __getitem__(self, number):
            raise KeyError(number)

    assert widest_batches(loader_of(Fails())) == ([], "")


def test_batches_of_prompts_that_become_numbers_later_are_of_the_longest():
    prompts = [{"prompt": text} for text in ("a", "bbb", "cc", "d", "ee")]
    numbers, said = widest_batches(loader_of(prompts, collate_fn=list))
    assert numbers == [[1, 2]] and "the widest of 5 samples" in said


def test_a_sampler_that_repeats_its_samples_may_draw_all():
    sampler = [number for number in (0, 4, 2, 3, 1) for _ in range(4)]
    numbers, said = widest_batches(loader_of(["a", "bbb", "cc", "d", "ee"], sampler=sampler))
    assert numbers == [[1, 2]] and "the widest of 5 samples" in said


def joined_texts(texts):
    return torch.zeros(len("".join(texts)))


@pytest.mark.parametrize(
    ("texts", "collate", "expected"),
    [
        (["a", "bbbb", "ccc", "ddd", "ee", "f", "g"], together, [[0, 1]]),
        (["a", "bbbb", "ccc", "ddd", "ee", "f", "g"], joined_texts, [[2, 3]]),
        (["bbb", "bbb", "bbb", "d", "c", "c"], together, [[2, 3], [0, 1]]),
        (["a", "bb", "a", "bb"], together, []),
        (["a", "bb", "c", "d"], lambda texts: torch.zeros(len(texts), 9), []),
    ],
    ids=["padded", "joined", "cut", "equal", "brought to one size"],
)
def test_of_batches_that_are_read_in_order_the_widest_are_given(texts, collate, expected):
    found, said = widest_batches(loader_of(texts, shuffle=False, collate_fn=collate))
    assert found == expected and ("of those that are read in order" in said) == bool(expected)


def test_two_batches_of_which_neither_is_wider_are_given_by_turns_and_more_are_not():
    def batch(graphs):
        return [torch.cat(parts) for parts in zip(*graphs, strict=True)]

    graphs = [(torch.zeros(nodes, 2), torch.zeros(edges)) for nodes, edges in ((9, 1), (2, 7), (1, 1))]
    found, _ = widest_batches(loader_of(graphs, shuffle=False, batch_size=1, collate_fn=batch))
    assert found == [[1], [0]]
    graphs.append((torch.zeros(6, 2), torch.zeros(6)))
    found, said = widest_batches(loader_of(graphs, shuffle=False, batch_size=1, collate_fn=batch))
    assert found[0] == [0] and "the widest of 4 samples" in said
