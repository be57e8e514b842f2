"""The fake accelerator: a device type of its own on which fake tensors run forward, backward, optimizer and offload.

It stands for a CUDA card. torch is told of it through a backend written in Python, so it needs no GPU and no CUDA build
of torch, and host and device can be told apart. In a run on `cuda`, tensors are on the device type `sim`, and kernels are
chosen as torch chooses them for CUDA; in one on `cpu` they are fake tensors there, so that torch makes its own choices.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable
from typing import Any

import torch

from snugfit.attributes import Change
from snugfit.fake_device.card_properties import NAME, ROOM_BYTES, card_properties, memory_statistics
from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.recording.generations import GENERATIONS, Capability


class Stream:
    """A stream of the fake accelerator: its number, and the runs that its next operator must wait for."""

    _made = 0
    device_index = 0
    device_type = 20
    """Number of PrivateUse1 among torch's device types."""

    def __init__(self, device: Any = None, priority: int = 0, *, number: int | None = None) -> None:
        """Makes a stream, numbered next where no number is given; device and priority mean nothing here."""
        if number is None:
            Stream._made += 1
            number = Stream._made
        self.number = number

    @property
    def device(self) -> torch.device:
        """The device it belongs to."""
        return torch.device(DEVICE_TYPE, 0)

    @property
    def stream_id(self) -> int:
        """Its number."""
        return self.number

    def wait_event(self, event: Event | None) -> None:
        """Makes what is queued from now on wait for an event."""
        if event is not None and event.run is not None:
            backend.observer("wait", self.number, event.run)

    def wait_stream(self, other: Stream) -> None:
        """Makes what is queued from now on wait for all that another stream has queued so far."""
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Returns an event at the end of what is queued so far."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits; a recording only notes it."""
        backend.observer("synchronize", self.number, None)

    def query(self) -> bool:
        """Returns whether all work is done."""
        return backend.observer("query", self.number, None) is not False

    def is_capturing(self) -> bool:
        """Returns whether work is captured into a graph; never."""
        return False

    def __enter__(self) -> Stream:
        """Makes it the current stream."""
        self._before = backend.current
        backend.current = self
        backend.observer("stream", self.number, None)
        return self

    def __exit__(self, *_: object) -> None:
        """Makes the stream before it current again."""
        backend.current = self._before
        backend.observer("stream", self._before.number, None)


class Event:
    """An event of the fake accelerator: the operator behind which it happens."""

    event_id = 0
    """A handle of the driver's; there is no driver."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        """Makes an event that was not recorded yet; torch's arguments mean nothing here."""
        self.run: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Marks the end of what is queued so far on a stream."""
        stream = stream or backend.current
        self.run = backend.observer("event", stream.number, None)

    def wait(self, stream: Stream | None = None) -> None:
        """Makes a stream wait for it."""
        (stream or backend.current).wait_event(self)

    def synchronize(self) -> None:
        """The host waits for it, unless it was never recorded."""
        if self.run is not None:
            backend.observer("synchronize", backend.current.number, self.run)

    def query(self) -> bool:
        """Returns whether it has happened; True where it was never recorded."""
        return self.run is None or backend.observer("query", backend.current.number, self.run) is not False

    @property
    def device(self) -> torch.device:
        """The device it belongs to."""
        return torch.device(DEVICE_TYPE, 0)

    def elapsed_time(self, other: Event) -> float:
        """Returns 0: a recording knows no time."""
        return 0.0


def _nothing(what: str, stream: int, value: Any) -> Any:
    """The observer when nothing is recorded."""
    return None


class RandomState:
    """A seed, and the number of operators that have drawn since, as on CUDA; no values are drawn."""

    def __init__(self, seed: int = 0) -> None:
        """Starts with nothing drawn."""
        self.seed, self.drawn = seed, 0

    def get(self) -> torch.Tensor:
        """Returns the state: 16 bytes on the host."""
        return torch.frombuffer(bytearray(struct.pack("<QQ", self.seed % 2**64, self.drawn)), dtype=torch.uint8)

    def set(self, state: torch.Tensor) -> None:
        """Takes back a state that `get` returned."""
        if type(state) is torch.Tensor:
            self.seed, self.drawn = struct.unpack("<QQ", bytes(state.tolist()))

    def draw(self) -> int:
        """Returns the seed for the numbers of one operator."""
        self.drawn += 1
        return hash((self.seed, self.drawn)) % 2**63


def _always(answer: Any) -> Any:
    """Makes a method that always returns the same value."""

    def method(self: Any, *_: Any, **__: Any) -> Any:
        return answer

    return method


class Backend:
    """What `torch.sim` is: the functions that torch and libraries ask of a device module."""

    def __init__(self) -> None:
        self.Stream, self.Event = Stream, Event
        self.default = Stream(number=0)
        self.current = self.default
        self.observer: Callable[[str, int, Any], Any] = _nothing
        self.memory: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns bytes allocated now and at most; set by the recorder."""
        self.of_card: Callable[[Callable[[Capability], Any]], Any] = lambda question: question(GENERATIONS[0])
        """Answers a question about the card's compute capability; set by the recorder, which notes who would differ."""
        self.kept_before = 0
        """The most bytes of tensors when the cache was emptied last."""
        self._initialized = False
        self.random = RandomState()
        """Where the device's random numbers stand; a card that computes counts there."""

    # There is one device; a recording keeps all of its history, and nothing is captured into a graph.
    is_initialized = is_available = _always(True)
    init = _lazy_init = set_device = reset_peak_memory_stats = reset_max_memory_allocated = _always(None)
    reset_accumulated_memory_stats = _record_memory_history = _dump_snapshot = start = stop = _always(None)
    set_per_process_memory_fraction = _always(None)  # its estimate is held against the whole card
    get_per_process_memory_fraction, memory_summary = _always(1.0), _always("")
    utilization = temperature = power_draw = clock_rate = memory_usage = _always(0)
    device_count, current_device = _always(1), _always(0)
    get_device_name = _always(NAME)
    _is_in_bad_fork = is_current_stream_capturing = _always(False)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Returns whether the card computes in bfloat16 (or emulates it)."""
        return bool(self.of_card(lambda capability: including_emulation or capability >= (8, 0)))

    def device(self, device: Any) -> Any:
        """Returns a context in which a device is current; there is one."""
        return contextlib.nullcontext()

    def get_device_capability(self, device: Any = None) -> Capability:
        """Returns the card's compute capability."""
        own: Capability = self.of_card(lambda capability: capability)
        return own

    def get_device_properties(self, device: Any = None) -> Any:
        """Returns what scripts ask of a card."""
        return self.of_card(card_properties)

    def manual_seed(self, seed: int) -> None:
        """Sets the seed, with nothing drawn."""
        self.random.seed, self.random.drawn = seed, 0

    manual_seed_all, seed, seed_all = manual_seed, _always(None), _always(None)

    def initial_seed(self) -> int:
        """Returns the seed."""
        return self.random.seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Returns a random state, for torch.utils.checkpoint."""
        return self.random.get()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Sets a random state."""
        self.random.set(state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Returns the random state of each device."""
        return [self.random.get()]

    def set_rng_state_all(self, states: Any) -> None:
        """Sets the random state of each device."""
        self.random.set(states[0])

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Returns the dtypes autocast offers on CUDA."""
        return [torch.float16, torch.bfloat16, torch.float32]

    def current_stream(self, device: Any = None) -> Stream:
        """Returns the current stream."""
        return self.current

    def default_stream(self, device: Any = None) -> Stream:
        """Returns the default stream."""
        return self.default

    def stream(self, stream: Stream | None) -> Any:
        """Returns a context in which a stream is current."""
        return stream if stream is not None else contextlib.nullcontext()

    def set_stream(self, stream: Stream) -> None:
        """Makes a stream the current one."""
        self.current = stream
        self.observer("stream", stream.number, None)

    def synchronize(self, device: Any = None) -> None:
        """The host waits for the device; the clock of a prediction needs to know."""
        self.observer("synchronize", -1, None)

    def empty_cache(self) -> None:
        """Notes that cached segments go back to the device."""
        self.observer("empty_cache", 0, None)
        self.kept_before = self.memory()[1]

    def memory_allocated(self, device: Any = None) -> int:
        """Returns bytes of tensors alive now."""
        return self.memory()[0]

    def memory_reserved(self, device: Any = None) -> int:
        """Returns what the allocator keeps at the least: the most bytes of tensors since the cache was emptied last."""
        now, most = self.memory()
        return most if most > self.kept_before else now

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Returns what is free and all there is, in bytes: more than any plan needs, whatever card it is."""
        return ROOM_BYTES - self.memory()[0], ROOM_BYTES

    def max_memory_allocated(self, device: Any = None) -> int:
        """Returns the most bytes of tensors alive so far."""
        return self.memory()[1]

    max_memory_reserved, get_memory_info = max_memory_allocated, mem_get_info

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """Returns the bytes that torch counts; numbers of blocks are all 0."""
        return memory_statistics(*self.memory(), self.memory_reserved())


backend = Backend()


@functools.cache
def of_any_accelerator() -> list[Change]:
    """Returns the replacements by which `torch.accelerator` asks this device for streams and memory."""
    # Torch's own ask C++ hooks, which a device of Python has not: some refuse, others read its streams as something else.
    of_backend = (name for name in torch.accelerator.__all__ if hasattr(backend, name))
    found = [name for name in of_backend if any(part in name for part in ("memory", "cache", "stream", "synchronize"))]
    # Functions of their own, and always the same: Dynamo knows those of `torch.accelerator` and of a device apart.
    return [(torch.accelerator, name, functools.partial(getattr(backend, name))) for name in found]
