"""Checkpoints: whole or absent, damage is found, the one before is used, a full disk harms nothing."""

import errno
import os
import random
import signal

import numpy as np
import pytest
import torch

from snugfit import atomic_file
from snugfit.errors import InputError, SnugfitWarning
from snugfit.runs.checkpoint import CheckpointStore, DamagedCheckpointError, load_checkpoint, save_checkpoint
from snugfit.training import random_state


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def some_state(step=1):
    generator = torch.Generator().manual_seed(step)
    return {
        "step": step,
        "weights": {"a": torch.randn(3, 5, generator=generator), "b": torch.randn(7, generator=generator).bfloat16()},
        "empty": torch.zeros(0, 4),
        "nothing": None,
        "rates": [0.1, (2, "x")],
        "flag": True,
    }


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and torch.equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


def test_round_trip_leaves_one_file(tmp_path):
    path = tmp_path / "a.ckpt"
    save_checkpoint(path, some_state())
    assert_same(load_checkpoint(path), some_state())
    assert names_in(tmp_path) == ["a.ckpt"]


def test_file_has_the_permissions_of_ordinary_files(tmp_path):
    (tmp_path / "plain").write_text("")
    save_checkpoint(tmp_path / "a.ckpt", some_state())
    assert (tmp_path / "a.ckpt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_every_truncation_is_found(tmp_path):
    path = tmp_path / "a.ckpt"
    save_checkpoint(path, some_state())
    whole = path.read_bytes()
    for length in [0, 1, 63, 64, 65, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedCheckpointError):
            load_checkpoint(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedCheckpointError):
        load_checkpoint(path)


def test_every_flipped_bit_is_found(tmp_path):
    path = tmp_path / "a.ckpt"
    save_checkpoint(path, some_state())
    whole = path.read_bytes()
    rng = random.Random(0)
    # Bytes 56 to 63 are padding of the header: nothing is read from them.
    for place in [0, 16, 24, 55, 64, len(whole) - 1, *(rng.randrange(64, len(whole)) for _ in range(100))]:
        broken = bytearray(whole)
        broken[place] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        with pytest.raises(DamagedCheckpointError):
            load_checkpoint(path)


def test_store_keeps_the_newest_two(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    for step in (5, 10, 100):
        store.save(step, some_state(step))
    assert [path.name for path in store.paths()] == ["step-00000010.ckpt", "step-00000100.ckpt"]
    assert_same(store.load_newest(), some_state(100))


def test_empty_store_has_no_newest(tmp_path):
    assert CheckpointStore(tmp_path / "absent").load_newest() is None


def test_damaged_newest_is_named_and_the_one_before_used(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, some_state(1))
    newest = store.save(2, some_state(2))
    newest.write_bytes(newest.read_bytes()[:-10])
    with pytest.warns(SnugfitWarning, match=r"step-00000002\.ckpt is damaged: it holds .* bytes"):
        assert_same(store.load_newest(), some_state(1))
    # It does not count among the kept ones any more: the good one stays beside the next.
    store.save(3, some_state(3))
    assert [path.name for path in store.paths()] == ["step-00000001.ckpt", "step-00000003.ckpt"]


def test_all_damaged_is_an_error(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, some_state(1)).write_bytes(b"no")
    with pytest.warns(SnugfitWarning, match="damaged"), pytest.raises(InputError, match="with overwrite"):
        store.load_newest()


class FullFile:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 64, 100, 1000])
def test_full_disk_leaves_the_previous_one(tmp_path, monkeypatch, room):
    store = CheckpointStore(tmp_path)
    store.save(1, some_state(1))
    whole = type(tmp_path).open

    def open_full(self, mode="r", **options):
        file = whole(self, mode, **options)
        return FullFile(file, room) if mode == "wb" else file

    monkeypatch.setattr(type(tmp_path), "open", open_full)
    with pytest.raises(OSError) as caught:
        store.save(2, some_state(2))
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.ckpt"]
    assert_same(store.load_newest(), some_state(1))


class InterruptedFile(FullFile):
    """A file at which Ctrl-C is pressed while something is written to it."""

    def write(self, data):
        self.room -= 1
        if self.room == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return self.file.write(data)


@pytest.mark.parametrize("writes", [2, 3, 6, 10])
def test_ctrl_c_leaves_the_previous_one(tmp_path, monkeypatch, writes):
    """It comes out as what it is, and not as an error of torch, whose archive it cuts short."""
    store = CheckpointStore(tmp_path)
    store.save(1, some_state(1))
    whole, before = type(tmp_path).open, signal.getsignal(signal.SIGINT)

    def open_interrupted(self, mode="r", **options):
        file = whole(self, mode, **options)
        return InterruptedFile(file, writes) if mode == "wb" else file

    monkeypatch.setattr(type(tmp_path), "open", open_interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.save(2, some_state(2))
    assert signal.getsignal(signal.SIGINT) is before
    assert names_in(tmp_path) == ["step-00000001.ckpt"]


def test_failed_flush_leaves_the_previous_one(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2):
        store.save(step, some_state(step))

    def no_room(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_file.os, "fsync", no_room)
    with pytest.raises(OSError):
        store.save(3, some_state(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001.ckpt", "step-00000002.ckpt"]


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    (tmp_path / (atomic_file.TEMPORARY_PREFIX + "x7")).write_text("half")
    (tmp_path / "step-00000001.ckpt").write_text("keep")
    atomic_file.remove_leftovers(tmp_path)
    assert names_in(tmp_path) == ["step-00000001.ckpt"]


def test_random_state_survives_a_checkpoint(tmp_path):
    random_state.seed_everything(5)
    random.gauss(0, 1), np.random.standard_normal(), torch.rand(3)  # leaves cached halves of pairs behind
    save_checkpoint(tmp_path / "a.ckpt", random_state.capture())

    def draw():
        return (
            random.gauss(0, 1),
            random.random(),
            np.random.standard_normal(),
            np.random.rand(),
            torch.rand(4).tolist(),
        )

    expected = draw()
    assert draw() != expected
    random_state.restore(load_checkpoint(tmp_path / "a.ckpt"))
    assert draw() == expected
