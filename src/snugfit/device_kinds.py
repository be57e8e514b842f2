"""Kinds of device and what each has: the one place that knows them by name and asks torch for more than tensors.

Training, techniques and measurement ask here for streams, page-locked memory, statistics, limits, generators and kernels.
The answers come from the device's module in torch (`torch.cuda`, `torch.xpu`, `torch.mps`, and that of the simulated card),
where the same things have the same names; a kind that lacks something does without. Importing this loads no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

CPU: Literal["cpu"] = "cpu"
CUDA: Literal["cuda"] = "cuda"
_HERE = ("local", CPU)
BF16_SINCE = (8, 0)
"""First compute capability of CUDA whose cards compute in bf16."""
SIMULATED = "sim"
"""Device type of fake tensors and of the pretend card, which stand for CUDA."""
REHEARSE = "rehearse:"
"""Prefix of the name of a card that is rehearsed on the processor."""
Simulated = Literal["cpu", "cuda"]
"""Kinds that a simulation stands for."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceKind:
    """What a kind of device has."""

    name: str
    """Its device type in torch."""
    streams: bool = False
    """Whether it works beside the host, in streams with events."""
    page_locked: bool = False
    """Whether host memory can be locked for copies to it."""
    counted: bool = False
    """Whether torch counts what is allocated and reserved on it, and can give reserved memory back."""
    limited: bool = False
    """Whether a process can be held to a part of its memory."""
    fused_optimizers: bool = False
    """Whether torch updates all tensors of Adam, AdamW and SGD by one kernel there."""
    triton: bool = False
    """Whether kernels written in Triton run there."""
    planned: str | None = None
    """Name under which its memory is predicted and planned: `cpu`, or `local` for this machine's card; None: it is not."""
    seen: str = "never run by us: what torch's documentation says"
    """Where this was tried."""


def is_here(device: Any) -> bool:
    """Returns whether a device argument means one of this machine (`local`, `cpu`, None), not a card by its name."""
    name = getattr(device, "name", device)
    return name is None or str(name).strip().lower() in _HERE


def _card(name: str, **more: Any) -> DeviceKind:
    return DeviceKind(
        name=name, streams=True, page_locked=True, counted=True, limited=True, fused_optimizers=True, **more
    )


KINDS = {
    kind.name: kind
    for kind in (
        DeviceKind(name=CPU, fused_optimizers=True, planned=CPU, seen="every test"),
        _card(CUDA, triton=True, planned="local", seen="an H100, briefly; the pretend card"),
        _card(SIMULATED, seen="every test"),
        _card("xpu"),
        DeviceKind(name="mps", fused_optimizers=True),
    )
}
"""Device type -> what it has."""


def kind_of(device: torch.device) -> DeviceKind:
    """Returns what a device has; an unknown kind works in order and has nothing else."""
    return KINDS.get(device.type, DeviceKind(name=device.type))


def is_there(kind: str) -> bool:
    """Returns whether torch finds a device of a kind in this machine."""
    import torch

    if kind == CPU:
        return True
    module = getattr(torch, kind, None)
    return module is not None and bool(module.is_available())


def default_device() -> str:
    """Returns the device type that `auto` means: CUDA where there is one, else the CPU."""
    return CUDA if is_there(CUDA) else CPU


def module_of(device: torch.device) -> Any:
    """Returns torch's module for a device that works asynchronously, with `Stream` and `Event`; else None."""
    import torch

    return torch.get_device_module(device.type) if kind_of(device).streams else None


def name_of(device: torch.device) -> str:
    """Returns the name that the driver gives a device; its type where it has none."""
    module = _counting(device)
    return str(module.get_device_name(device)) if module else device.type.upper()


def computes_in_bf16(device: torch.device) -> bool:
    """Returns whether a device has bf16 units; torch's CPU kernels take bf16 on every machine."""
    module = module_of(device)
    asked = getattr(module, "is_bf16_supported", None)
    return True if asked is None else bool(asked(including_emulation=False))


def work_clock(device: torch.device) -> Callable[[], float]:
    """Returns the clock by which work on a device is timed, in seconds.

    On a processor with one thread of computation it stands while another process has the processor, so that a busy machine
    makes nothing slow; everywhere else it goes on, for there the work is waited for.
    """
    import torch

    return time.thread_time if device.type == CPU and torch.get_num_threads() == 1 else time.perf_counter


def wait_for(device: torch.device) -> None:
    """Makes the host wait until a device has done what was asked of it."""
    module = module_of(device)
    if module:
        module.synchronize(device)


# -- memory


def _counting(device: torch.device) -> Any:
    import torch

    return torch.get_device_module(device.type) if kind_of(device).counted else None


def memory_in_use(device: torch.device) -> tuple[int, int] | None:
    """Returns the bytes of tensors on a device, now and at most; None where torch does not count them."""
    module = _counting(device)
    return (module.memory_allocated(device), module.max_memory_allocated(device)) if module else None


def memory_peaks(device: torch.device) -> tuple[int, int] | None:
    """Returns the most bytes allocated and reserved since the last `begin_peaks`; None where torch does not count them."""
    module = _counting(device)
    return (module.max_memory_allocated(device), module.max_memory_reserved(device)) if module else None


def begin_peaks(device: torch.device) -> None:
    """Resets the peaks of a device to what is alive now."""
    module = _counting(device)
    if module:
        wait_for(device)
        module.empty_cache()
        module.reset_peak_memory_stats(device)


def forget_peaks(device: torch.device) -> None:
    """Resets the peaks of a device to what is alive now, and leaves all else as it is."""
    module = _counting(device)
    if module:
        module.reset_peak_memory_stats(device)


def give_back(device: torch.device) -> None:
    """Gives the allocator's unused memory back to a device."""
    module = _counting(device)
    if module:
        module.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Returns what tensors of this process can still take: the driver's free bytes and unused reserved ones."""
    module = _counting(device)
    free, _ = module.mem_get_info(device)
    return int(free + module.memory_reserved(device) - module.memory_allocated(device))


@contextlib.contextmanager
def limited(device: torch.device, allowed_bytes: int | None) -> Iterator[None]:
    """Context in which this process may reserve only so many bytes of a device; None: all.

    `device`: where there is no limit to be had, none is set.
    """
    if allowed_bytes is None or not kind_of(device).limited:
        yield
        return
    module = _counting(device)
    total = module.get_device_properties(device).total_memory
    module.set_per_process_memory_fraction(min(allowed_bytes / total, 1.0), device)
    try:
        yield
    finally:
        module.set_per_process_memory_fraction(1.0, device)


# -- random numbers


def generator_state(device: torch.device) -> torch.Tensor | None:
    """Returns the state of a device's generator without waiting for the device; None where it uses its host's."""
    module = module_of(device)
    return module.get_rng_state(device) if module else None


def set_generator_state(device: torch.device, state: torch.Tensor | None) -> None:
    """Restores a state of `generator_state`."""
    if state is not None:
        module_of(device).set_rng_state(state, device)


def seed_generator(device: torch.device, seed: int) -> None:
    """Seeds the generator that operators on a device draw from (the host's, where it has none)."""
    import torch

    (module_of(device) or torch.default_generator).manual_seed(seed)


def drawn_from(device: torch.device) -> bytes:
    """Returns the state of the generator that operators on a device draw from, outside of torch's memory."""
    import torch

    state = generator_state(device)
    if state is None:
        state = torch.default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())  # no operator: a simulated step takes no notice of it


def draw_from(device: torch.device, state: bytes) -> None:
    """Restores a state of `drawn_from`."""
    import torch

    found, module = torch.frombuffer(bytearray(state), dtype=torch.uint8), module_of(device)
    if module:
        module.set_rng_state(found, device)
    else:
        torch.default_generator.set_state(found)


def generator_states() -> dict[str, list[torch.Tensor]]:
    """Returns device type -> the state of each device's generator; an empty list for CUDA where there is none."""
    import torch

    found = {CUDA: torch.cuda.get_rng_state_all() if is_there(CUDA) else []}
    return found | ({"xpu": torch.xpu.get_rng_state_all()} if is_there("xpu") else {})


def set_generator_states(states: dict[str, Any]) -> None:
    """Restores all generators; those of another number of devices are left as they are."""
    import torch

    for kind in (CUDA, "xpu"):
        known = states.get(kind)
        module = getattr(torch, kind)
        if known and len(known) == module.device_count():
            module.set_rng_state_all(known)
