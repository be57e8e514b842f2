"""Answers survive the process, and only those that belong to this processor and were written whole."""

import multiprocessing

import pytest

from snugfit.calibrations import cache_folder
from snugfit.operators.operator_cache import OperatorCache

HERE = {"model": "a processor", "threads": 2}


def written(folder, answers, identity=HERE):
    cache = OperatorCache(identity, folder)
    for digest, answer in answers.items():
        cache.put(digest, answer)
    return cache.path


def test_what_was_written_is_read(tmp_path):
    written(tmp_path / "not" / "there", {"a": {"peaks": [1, 2]}})
    assert OperatorCache(HERE, tmp_path / "not" / "there").get("a") == {"peaks": [1, 2]}
    assert OperatorCache(HERE, tmp_path / "not" / "there").get("b") is None


@pytest.mark.parametrize("other", [{"threads": 1}, {"model": "another"}, {"torch_version": "9.9"}])
def test_another_processor_has_its_own(tmp_path, other):
    written(tmp_path, {"a": 1})
    assert OperatorCache({**HERE, **other}, tmp_path).get("a") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"[]",
        lambda text: b"\xff\xfe\x00",
        lambda text: text.replace(b'"peaks"', b'"peeks"'),
        lambda text: text.replace(b"4096", b"4097"),  # a digit, with everything else in its place
        lambda text: bytes(100) + text[100:],
        lambda text: text[:4096] + bytes(len(text) - 4096),
    ],
)
def test_a_damaged_file_is_left_out_and_written_anew(tmp_path, damage):
    path = written(tmp_path, {"a": {"peaks": [4096]}})
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    cache = OperatorCache(HERE, tmp_path)
    assert cache.get("a") is None
    cache.put("b", 2)
    again = OperatorCache(HERE, tmp_path)
    assert again.get("b") == 2 and again.get("a") is None


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = OperatorCache(HERE, tmp_path / "file" / "below")
    cache.put("a", 1)
    assert cache.get("a") == 1
    assert (tmp_path / "file").read_text() == "in the way"


def test_two_writers_keep_both(tmp_path):
    one, other = OperatorCache(HERE, tmp_path), OperatorCache(HERE, tmp_path)
    one.put("a", 1)
    other.put("b", 2)
    assert {name: OperatorCache(HERE, tmp_path).get(name) for name in "ab"} == {"a": 1, "b": 2}
    assert one.get("b") == 2


def _write_many(folder, name):
    for number in range(20):
        written(folder, {f"{name}{number}": number})


def test_writers_at_once_never_leave_a_broken_file(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    cache = OperatorCache(HERE, tmp_path)
    assert all(cache.get(f"{name}{number}") == number for name in "abc" for number in range(20))
    assert [path.name for path in tmp_path.iterdir()] == [cache.path.name]


def test_the_folder_is_that_of_the_users_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("operators") == tmp_path / "snugfit" / "operators"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("operators") == tmp_path / ".cache" / "snugfit" / "operators"
