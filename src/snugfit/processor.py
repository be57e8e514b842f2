"""Which processor the numbers of a CPU run belong to: its model, the instructions in force, and the threads."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import subprocess
from pathlib import Path

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that keep torch's libraries from instructions that the processor has."""
_VECTOR = ("avx", "amx", "fma", "f16c", "asimd", "bf16", "i8mm", "sve", "neon", "sse4")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Processor:
    """What decides which kernels run, and what they take."""

    model: str
    """The model's name, as the operating system gives it."""
    features: tuple[str, ...]
    """Vector instructions that it offers."""
    capability: str
    """The widest that torch and its libraries know of."""
    limits: tuple[tuple[str, str], ...]
    """Environment variables that forbid some, with their values."""
    threads: int
    """Threads that torch computes with."""
    torch_version: str
    """The torch."""

    def in_words(self) -> str:
        """Returns one line, such as `AMD EPYC, AVX512_BF16, 2 threads`."""
        parts = [self.model, self.capability, *(f"{name}={value}" for name, value in self.limits)]
        return ", ".join((*parts, f"{self.threads} thread{'' if self.threads == 1 else 's'}"))

    def identity(self) -> dict[str, object]:
        """Returns all of it as plain data, the same in every process."""
        return dataclasses.asdict(self)


def this_processor() -> Processor:
    """Returns this machine's processor with the settings that are in force now."""
    import torch

    from snugfit import private_torch

    model, features = model_and_features()
    return Processor(
        model=model,
        features=features,
        capability=private_torch.processor_capability(),
        limits=tuple((name, os.environ[name]) for name in LIMITS if os.environ.get(name)),
        threads=torch.get_num_threads(),
        torch_version=f"{torch.__version__} {torch.version.git_version or ''}".strip(),
    )


@functools.cache
def model_and_features() -> tuple[str, tuple[str, ...]]:
    """Returns the processor's name and the vector instructions that it offers; loads no torch."""
    rows: dict[str, str] = {}
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                rows.setdefault(name.strip().lower(), value.strip())
    except OSError:
        pass
    flags = (rows.get("flags") or rows.get("features") or "").split()
    features = tuple(sorted({flag for flag in flags if flag.startswith(_VECTOR)}))
    model = rows.get("model name") or _of_macos() or platform.processor() or platform.machine()
    return " ".join(model.split()), features


def _of_macos() -> str:
    if platform.system() != "Darwin":
        return ""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
