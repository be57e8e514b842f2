"""Answers survive the process, and only those that belong to this processor and were written whole."""

import multiprocessing

import pytest

from snugfit.fake_device import operator_cache
from snugfit.fake_device.operator_cache import OperatorCache, cache_folder

HERE = {"model": "a processor", "threads": 2}


def written(folder, answers, identity=HERE):
    cache = OperatorCache(identity, folder)
    for digest, answer in answers.items():
        cache.put(digest, answer)
    cache.save()
    return cache.path


def test_what_was_written_is_read(tmp_path):
    written(tmp_path / "not" / "there", {"a": {"peaks": [1, 2]}})
    assert OperatorCache(HERE, tmp_path / "not" / "there").get("a") == {"peaks": [1, 2]}
    assert OperatorCache(HERE, tmp_path / "not" / "there").get("b") is None


@pytest.mark.parametrize("other", [{"threads": 1}, {"model": "another"}, {"torch_version": "9.9"}])
def test_another_processor_has_its_own(tmp_path, other):
    written(tmp_path, {"a": 1})
    assert len(OperatorCache({**HERE, **other}, tmp_path)) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"peaks"', '"peeks"'),
        lambda text: text.replace("4096", "4097"),  # a digit, with everything else in its place
        lambda text: text.replace("a processor", "other"),
        lambda text: text.replace("\n", " "),
    ],
)
def test_a_damaged_file_is_left_out_and_written_anew(tmp_path, damage):
    path = written(tmp_path, {"a": {"peaks": [4096]}})
    path.write_text(damage(path.read_text()))
    cache = OperatorCache(HERE, tmp_path)
    assert cache.get("a") is None
    cache.put("b", 2)
    cache.save()
    again = OperatorCache(HERE, tmp_path)
    assert again.get("b") == 2 and again.get("a") is None


def test_bytes_that_are_no_text_are_left_out(tmp_path):
    path = written(tmp_path, {"a": 1})
    path.write_bytes(b"\xff\xfe\x00")
    assert OperatorCache(HERE, tmp_path).get("a") is None


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = OperatorCache(HERE, tmp_path / "file" / "below")
    cache.put("a", 1)
    cache.save()
    cache.refresh()
    assert cache.get("a") == 1
    assert (tmp_path / "file").read_text() == "in the way"


def test_two_writers_keep_both(tmp_path):
    one, other = OperatorCache(HERE, tmp_path), OperatorCache(HERE, tmp_path)
    one.put("a", 1)
    other.put("b", 2)
    one.save()
    other.save()
    assert {name: OperatorCache(HERE, tmp_path).get(name) for name in "ab"} == {"a": 1, "b": 2}
    one.refresh()
    assert one.get("b") == 2


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path):
    path = written(tmp_path, {"a": 1})
    written(tmp_path, {"b": 2})
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    cache = OperatorCache(HERE, tmp_path)
    assert cache.get("a") == 1 and cache.get("b") is None
    path.write_bytes(whole)
    cache.refresh()
    assert cache.get("b") == 2


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path):
    path = written(tmp_path, {"a": 1})
    written(tmp_path, {"b": 2})
    path.write_bytes(path.read_bytes()[:-3])
    written(tmp_path, {"c": 3})
    cache = OperatorCache(HERE, tmp_path)
    assert {name: cache.get(name) for name in "abc"} == {"a": 1, "b": None, "c": 3}


def test_only_what_is_new_is_read_and_written(tmp_path, monkeypatch):
    path = written(tmp_path, {str(number): number for number in range(100)})
    cache, size, lines = OperatorCache(HERE, tmp_path), path.stat().st_size, []
    monkeypatch.setattr(operator_cache, "_read", lambda line: lines.append(line) or ())
    cache.put("one more", 1)
    cache.save()
    cache.refresh()
    assert len([line for line in lines if line]) == 1
    assert path.stat().st_size - size < 100


def test_a_file_that_is_too_long_loses_its_oldest_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(operator_cache, "MOST_ANSWERS", 10)
    reader = OperatorCache(HERE, tmp_path)
    for number in range(25):
        written(tmp_path, {str(number): number})
        reader.refresh()
    kept = OperatorCache(HERE, tmp_path)
    assert 10 <= len(kept) <= 20 and kept.get("24") == 24 and kept.get("0") is None
    assert len(reader) == 25


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
    assert len(cache) >= 20 and [path.name for path in tmp_path.iterdir()] == [cache.path.name]


def test_the_folder_is_that_of_the_users_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "snugfit" / "operators"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "snugfit" / "operators"
