"""Pools of processes that prepare a script's data are pools of threads, those of other libraries too."""

import pytest
from own_scripts import LOOP, TRAINS, estimated, written

MAPPED = """
from datasets import Dataset
numbers = Dataset.from_dict({"number": list(range(100))})
numbers = numbers.map(lambda row: {"twice": 2 * row["number"]}, num_proc=2)
numbers = numbers.filter(lambda row: row["twice"] < 100, num_proc=3)
assert sorted(numbers["twice"]) == list(range(0, 100, 2))
"""


def test_datasets_are_mapped_by_several(tmp_path, capsys):
    pytest.importorskip("datasets")
    code, _, err = estimated(capsys, written(tmp_path, MAPPED + TRAINS + LOOP))
    assert code == 0, err


POOLS = """
import multiprocessing
from multiprocessing import get_context
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
with get_context("spawn").Pool(processes=2, initializer=print, initargs=("begins",), maxtasksperchild=1) as pool:
    assert list(pool.imap(abs, [-1, -2])) == [1, 2]
"""


def test_pools_are_of_threads(tmp_path, capsys):
    code, _, err = estimated(capsys, written(tmp_path, POOLS + TRAINS + LOOP))
    assert code == 0, err
