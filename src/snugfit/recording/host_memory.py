"""Host memory of a machine, whose processes share it: what each of them takes, and what only the first one does.

The first process builds the model on the host and sends it to the others, unit by unit (`techniques/shard/arrival.py`).
What lies on the host while a model is built, and no longer when it stands, is therefore the first one's alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snugfit.recording.trace import ALLOC, FREE, MARK, RESIZE, Trace

if TYPE_CHECKING:
    from snugfit.recording.recording import Recording


def machine_host_bytes(recorded: Recording) -> int:
    """Returns the peak of host memory in the machine of the first process, all its processes together."""
    processes = 1 if recorded.workload is None else recorded.workload.gpus
    return _peak(recorded.trace, 1, processes, recorded.one_builds)


def other_host_bytes(recorded: Recording) -> int:
    """Returns the peak of host memory of a process other than the first, from its recording or the first one's."""
    return _peak(recorded.trace, 0, 1, recorded.one_builds)


def _peak(trace: Trace, builders: int, holders: int, one_builds: bool) -> int:
    """The peak for a number of processes that build, and a number that only hold what stays."""
    of_builder = _of_builder(trace) if one_builds else set()
    sizes: dict[int, int] = {}
    now = most = 0
    for kind, subject, value in zip(trace.kinds, trace.subjects, trace.values, strict=True):
        if kind == FREE:
            now -= sizes.pop(subject, 0)
        elif kind in (ALLOC, RESIZE) and trace.storages[subject].place != "device":
            nbytes = value if kind == RESIZE else trace.storages[subject].nbytes
            now -= sizes.get(subject, 0)
            sizes[subject] = nbytes * (builders if subject in of_builder else holders)
            now += sizes[subject]
            most = max(most, now)
    return most


def _of_builder(trace: Trace) -> set[int]:
    """Host storages that are freed once the model is built."""
    ends = [
        index
        for index, kind in enumerate(trace.kinds)
        if kind == MARK and trace.values[index] == 0 and trace.phases[trace.subjects[index]] == "build"
    ]
    built = ends[-1] if ends else 0
    return {
        subject
        for kind, subject in zip(trace.kinds[:built], trace.subjects[:built], strict=True)
        if kind == FREE and trace.storages[subject].place != "device"
    }
