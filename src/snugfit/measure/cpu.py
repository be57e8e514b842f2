"""What a run on the CPU used: tensor bytes by the allocator's events, and the process's memory by the kernel.

Recording every event of a long run would slow its steps and grow the very process that is measured, so only windows are
recorded: from before the model is built through the first steps, and around the first evaluation. Steps in between
repeat themselves. The balance is carried over from window to window. The kernel's peak covers building and twice as many
first steps; what the process grows by while a window is opened or closed is the recorder's own and is taken off. After
that the process may keep freed memory again: settings under which its memory can be read exactly make steps slow.

Known limitations, since torch does not report the release of memory that was allocated outside of the windows: a training
batch that the loop lets go during the first evaluation still counts as alive there; and where a model that came as an object
is cast while it is prepared, old and new weights count together, which a step that takes less than both does not cover up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.measure.fresh import take_tuning
from snugfit.process_memory import ProcessMemory, keep_freed_memory, read_process_memory, reset_peak

_READ_EVERY_SECONDS = 0.25


class CpuMeter:
    """Meter of a run on the CPU; `snugfit.measure.meter` says what its hooks are."""

    def __init__(self, *, window_steps: int) -> None:
        """Prepares, and measures nothing yet.

        Args:
            window_steps: First steps whose allocator events are recorded, at least 1.
        """
        self._window_steps = self._close_steps = window_steps
        self._events = AllocatorEvents()
        self._baseline: ProcessMemory | None = None
        self._peak_bytes = 0
        self._recorder_bytes = 0
        self._tuned = take_tuning()
        self._evaluation: str = "to come"
        self._steps_done = 0
        self._next_read = 0.0
        self._process_read = False
        self._held: dict[StorageWeakRef, int] = {}
        self._model: torch.nn.Module | None = None

    def start(self, model: torch.nn.Module | None = None) -> None:
        """Takes the baseline; the tensors of a model that is there already are counted, as torch will not report them."""
        warm_up()  # has collected garbage, too
        reset_peak()
        self._baseline = read_process_memory()
        self._off_the_record(self._events.start)
        if model is not None:
            self._held, self._model = _storages(model), model
            self._events.balance_bytes += sum(self._held.values())

    def built(self) -> None:
        """Lets go of what a model that was there before no longer holds, such as weights that were cast."""
        if self._model is not None:
            self._off_the_record(self._events.cut)
            # by reference: an address that is free again may be that of a new tensor
            left = _storages(self._model)
            self._events.balance_bytes -= sum(size for one, size in self._held.items() if one not in left)
            self._held, self._model = {}, None

    def after_step(self, steps_done: int) -> None:
        """Notes that a step ended."""
        self._steps_done = steps_done
        self._close_or_cut()
        if steps_done <= self._close_steps or time.monotonic() >= self._next_read:
            self._read()
        if steps_done >= 2 * self._window_steps and not self._process_read:
            self._read()
            self._process_read = True
            if self._tuned:
                keep_freed_memory()

    def before_evaluation(self) -> None:
        """Notes that an evaluation begins; the first one is recorded."""
        if self._evaluation == "to come":
            self._evaluation = "recorded"
            if not self._events.recording:
                self._off_the_record(self._events.start)

    def after_evaluation(self) -> None:
        """Notes that an evaluation ended."""
        if self._evaluation == "recorded":
            self._evaluation = "done"
            self._close_or_cut()
        self._read()

    def recent_peak_bytes(self) -> int:
        """Returns the most tensor bytes so far, or since the last `changing`, as far as windows have seen them."""
        if self._events.recording:
            self._off_the_record(self._events.cut)
        return self._events.recent_peak_bytes

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Surrounds a change of how the run trains: behind it steps are recorded again, and the recent peak begins anew.

        What is released in the change was allocated in a window, so it must happen inside one.

        Yields:
            Nothing.
        """
        if not self._events.recording:
            self._off_the_record(self._events.start)
        try:
            yield
        finally:
            self._close_steps = self._steps_done + self._window_steps
            self._off_the_record(self._events.cut)
            self._events.forget()

    def result(self, host_tensor_bytes: int) -> dict[str, int | None]:
        """Ends the measurement.

        Args:
            host_tensor_bytes: Most bytes that the recipe kept in its host pool.

        Returns:
            `peak_tensor_bytes`, `host_tensor_bytes` and `rss_bytes` (None where the system does not tell).
        """
        self._off_the_record(self._events.stop)
        rss_bytes = None if self._baseline is None else self._peak_bytes
        return {
            "peak_tensor_bytes": self._events.peak_bytes,
            "host_tensor_bytes": host_tensor_bytes,
            "rss_bytes": rss_bytes,
        }

    def _close_or_cut(self) -> None:
        if not self._events.recording:
            return
        over = self._steps_done >= self._close_steps and self._evaluation != "recorded"
        self._off_the_record(self._events.stop if over else self._events.cut)

    def _off_the_record(self, act: Callable[[], None]) -> None:
        """Opens or closes a window so that what the process needs for it counts nowhere."""
        self._read()
        before = read_process_memory()
        act()
        after = read_process_memory()
        if before is not None and after is not None:
            self._recorder_bytes += after.anonymous_bytes - before.anonymous_bytes
            reset_peak()

    def _read(self) -> None:
        """Takes the kernel's peak, less the pages of program files and what the recorder keeps."""
        self._next_read = time.monotonic() + _READ_EVERY_SECONDS
        now = read_process_memory()
        if now is None or self._baseline is None or self._process_read:
            return
        above_bytes = now.peak_rss_bytes - now.file_bytes - self._baseline.anonymous_bytes
        self._peak_bytes = max(self._peak_bytes, above_bytes - self._recorder_bytes)


def _storages(model: torch.nn.Module) -> dict[StorageWeakRef, int]:
    """Each piece of memory of a model on the host -> its bytes; tied tensors once, this process's share."""
    from snugfit.private_torch.collectives import own_part  # loads meshes

    tensors = [*model.parameters(), *model.buffers()]
    storages = (own_part(tensor).untyped_storage() for tensor in tensors if tensor.device.type == "cpu")
    return {StorageWeakRef(one): one.nbytes() for one in storages}  # type: ignore[no-untyped-call]
