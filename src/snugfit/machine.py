"""What this machine has, found out without torch: GPUs and their free memory, installed libraries, calibrations."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import subprocess
from importlib import metadata

from snugfit.units import MIB

_ASK = ("nvidia-smi", "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader,nounits")
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*])?\s*([^;\s]*)(?:[^;]*;.*?\bextra == ['\"](\w+)['\"])?")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU that the driver names."""

    name: str
    """The driver's name."""
    free_bytes: int | None
    """Memory that nobody uses now; None where the driver does not tell."""
    total_bytes: int | None
    """All of its memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """A library that snugfit asks for."""

    library: str
    """Its name in package indexes."""
    versions: str
    """Versions that go, such as `>=2.11,<2.16`; empty: any."""
    extra: str | None
    """The extra that brings it; None: snugfit itself."""

    @property
    def installed(self) -> str | None:
        """The version that is installed; None: none is."""
        return installed(self.library)

    @property
    def met(self) -> bool:
        """Whether a version that goes is installed."""
        return self.installed is not None and within(self.installed, self.versions)


def gpus(timeout_seconds: float = 10.0) -> list[Gpu]:
    """Returns the GPUs of this machine as NVIDIA's driver tells them; none where it does not answer in time."""
    try:
        told = subprocess.run(_ASK, capture_output=True, text=True, timeout=timeout_seconds, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.rsplit(",", 2)] for line in told.splitlines() if line.count(",") >= 2]
    return [Gpu(name=name, free_bytes=_mib(free), total_bytes=_mib(total)) for name, free, total in rows]


def installed(library: str) -> str | None:
    """Returns the version of a library by what its installation says; None where it is not installed."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def torch_release() -> tuple[int, int]:
    """Returns the first two numbers of the version of the torch that is installed."""
    major, minor = (installed("torch") or "0.0").split(".")[:2]
    return int(major), int(minor)


def usable_processors() -> int:
    """Returns how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def requirements() -> list[Requirement]:
    """Returns what snugfit asks for, by what its installation says; nothing where it runs without one."""
    try:
        lines = metadata.requires("snugfit") or ()
    except metadata.PackageNotFoundError:
        return []
    found = [match.groups() for match in map(_REQUIREMENT.match, lines) if match]
    return [Requirement(library, _lowest_first(versions), extra) for library, versions, extra in found]


def within(version: str, versions: str) -> bool:
    """Returns whether a version is one of `>=2.11,<2.16`; what comes behind the numbers (`+cu130`, `rc1`) does not count."""
    at = _numbers(version)
    bounds = re.findall(r"([<>]=?)\s*([\d.]+)", versions)
    compared = {"<": at.__lt__, "<=": at.__le__, ">": at.__gt__, ">=": at.__ge__}
    return all(compared[sign](_numbers(bound)) for sign, bound in bounds)


def _lowest_first(versions: str) -> str:
    return ",".join(sorted(versions.split(","), reverse=True))


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _mib(text: str) -> int | None:
    return int(text) * MIB if text.isdigit() else None
