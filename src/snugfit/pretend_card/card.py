"""A pretend card: what a recording would take down is carried out, with a memory of its own and real numbers.

It is a recorder whose events are not kept. So it takes the kernels, casts and workspaces that the simulation takes, from
the same code; what it adds are numbers, an end of memory at the very operator that finds none, and streams whose work is
done when somebody waits for it. Host tensors are ordinary ones.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from snugfit import private_torch
from snugfit.attributes import replaced
from snugfit.fake_device.accelerator import RandomState, backend
from snugfit.fake_device.personality import DEVICE_TYPE, Personality
from snugfit.pretend_card.memory import CardMemory
from snugfit.pretend_card.ranks import CardRanks
from snugfit.pretend_card.streams import Streams
from snugfit.pretend_card.values import arguments, work_of
from snugfit.private_torch import collectives, python_backend
from snugfit.private_torch.fake_tensors import FAKES, FakeTensor
from snugfit.recorder.fake_calls import LIFT
from snugfit.recorder.rank_operators import NOT_OF_RANKS
from snugfit.recorder.recorder import Recorder
from snugfit.techniques.batches import tensors_in
from snugfit.values.read_values import ReadValues

_aten = torch.ops.aten
_copy, _to_copy = _aten.copy_.default, _aten._to_copy.default
_device = torch.ops.prim.device.default
_set_swaps = torch.__future__.set_swap_module_params_on_conversion
_POISON = 0xFF
"""Byte that fills a block when it is handed out: not a number in every floating-point dtype, -1 in whole numbers."""


class RealValues(ReadValues):
    """Answers questions about values with the values, for which the host waits."""

    _card: PretendCard

    def of(self, card: PretendCard) -> None:
        """Sets whose values they are."""
        self._card = card

    def carry(self, *_: Any) -> None:
        """Does nothing: values need not be remembered."""

    def number(self, tensor: torch.Tensor, module: str) -> Any:
        """Returns the only value of a tensor."""
        return self._card.read(tensor).item()

    def compared(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], module: str) -> bool:
        """Returns whether two tensors hold the same, or nearly."""
        return bool(func(*map(self._card.read, args[:2]), *args[2:], **kwargs))

    def count(self, tensor: torch.Tensor, operator: str, module: str) -> int:
        """Returns how many values are not zero."""
        return int(self._card.read(tensor).count_nonzero())

    def sized(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], module: str) -> Any:
        """Makes room for a result whose size depends on values, by running the operator first."""
        if torch.Tag.dynamic_output_shape not in func.tags:
            return None
        card = self._card
        card.wait()
        made = func(*arguments(args, card.find), **{name: arguments(one, card.find) for name, one in kwargs.items()})
        if isinstance(made, torch.Tensor):
            return lambda empty: empty(tuple(made.shape), made.dtype)
        return lambda empty: tuple(empty(tuple(one.shape), one.dtype) for one in made)


class PretendCard(Recorder):  # type: ignore[no-untyped-call]
    """This process's card while it is entered."""

    answers = RealValues
    values: RealValues

    def __init__(
        self,
        personality: Personality,
        capacity_bytes: int | None,
        *,
        seed: int,
        eager: bool,
    ) -> None:
        """Makes an empty card.

        `capacity_bytes`: what it has for this process's segments; None for no end.
        `seed`: of the order in which streams go on, and of the numbers that operators draw.
        `eager`: whether operators are carried out at once.
        """
        self.streams = Streams(seed, eager=eager)
        self.memory = CardMemory(capacity_bytes, wait_for_all=self._wait_for_all, on_block=self._poison)
        super().__init__(personality, builder=self.memory)  # type: ignore[arg-type]
        self.values.of(self)
        self._pinned: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.ranks = CardRanks(self.streams, self.find)
        self._random = RandomState(seed)
        self.sync_debug_mode: int | str = "default"

    def __enter__(self) -> PretendCard:
        """Puts the card into this process."""
        # `_initialized`: so torch.utils.checkpoint keeps the card's random state.
        changes = [
            (backend, "random", self._random),
            (backend, "_initialized", True),
            # Loaders lock their batches in a thread of their own, where no mode is.
            (torch.Tensor, "pin_memory", lambda tensor, *_: self._pin(tensor.clone())),
            (torch.Tensor, "is_pinned", lambda tensor, *_: tensor.untyped_storage() in self._pinned),
            (FakeTensor, "__deepcopy__", lambda *given: self._copied(*given)),
            (FakeTensor, "__reduce_ex__", lambda *given: self._reduced(*given)),
        ]
        self._entered.enter_context(replaced(changes))
        # A parameter that moves to a card stays the same object, and so tied; one that turns into a fake one must be told.
        self._entered.callback(_set_swaps, torch.__future__.get_swap_module_params_on_conversion())
        _set_swaps(True)
        self._entered.enter_context(collectives.before_groups_change(self._leave_ranks))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Removes the card; other ranks get what they still wait for, unless an error ends the run."""
        if error == (None, None, None):
            self._leave_ranks()
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operator on the card, or on the host where the card has no part in it."""
        if func is _device and type(args[0]) in FAKES:  # more than half of all calls
            return args[0].fake_device
        kwargs = kwargs or {}
        found = self._of_ranks(func, types, args, kwargs)
        if found is not NOT_OF_RANKS:
            return found
        tensors = tensors_in((*args, *kwargs.values()))
        ours = [type(tensor) in FAKES for tensor in tensors]
        device = kwargs.get("device")
        to_card = device is not None and torch.device(device).type == DEVICE_TYPE
        if not to_card and not any(ours):
            if func is LIFT and args[0].device.type == DEVICE_TYPE:
                return super().__torch_dispatch__(
                    _to_copy, types, (python_backend.given_values(args[0]),), {"device": args[0].device}
                )
            return self._on_host(func, args, kwargs)
        if func is _to_copy and device is not None and not to_card:
            return self._to_host(args[0], kwargs)
        if func is _copy and not ours[0]:
            return self._copy_to_host(*args)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _collective(self, func: Any, args: Sequence[Any]) -> Any:
        """Queues a collective of the card's tensors; a host collective runs behind all queued ones."""
        if any(type(tensor) in FAKES for tensor in tensors_in(args)):
            return self.ranks.issue(func, args, lambda: self._notes.stream)
        self.ranks.finish()
        return NOT_OF_RANKS

    def wait(self) -> None:
        """Makes the host wait for the current stream; an error under `torch.cuda.set_sync_debug_mode("error")`."""
        if self.sync_debug_mode == "error":
            raise RuntimeError("called a synchronizing operation on the pretend card")
        self.streams.finish(self.streams.mark(self._notes.stream))

    # -- the host's side

    def _on_host(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Runs an operator of the host; page-locked memory is ordinary memory with a mark."""
        if kwargs.get("pin_memory"):
            return self._pin(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self._pinned.add(tensor.untyped_storage())
        return tensor

    def _to_host(self, source: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """Copies to new host memory: page-locked, and still under way on return, where the copy may be."""
        later = bool(kwargs.get("non_blocking"))
        like = self.find(source)
        host = torch.empty_like(like, dtype=kwargs.get("dtype"), memory_format=kwargs.get("memory_format"))
        return self._copy_to_host(self._pin(host) if later else host, source, later)

    def _copy_to_host(self, host: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        values = self.find(source)
        self.streams.put(self._notes.stream, lambda: host.copy_(values))
        if not (non_blocking and host.untyped_storage() in self._pinned):
            self.wait()
        return host

    # -- the card's side

    def find(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the CPU tensor with a tensor's numbers; host tensors are copied now unless page-locked."""
        if type(tensor) not in FAKES:
            # Ordinary host memory may change before the queue comes to it. Page-locked memory is read late, as by a
            # card.
            return tensor if tensor.untyped_storage() in self._pinned else tensor.clone()
        return self.memory.twin(tensor, self._ledger.number(tensor))

    def _ran(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
        """Queues an operator, after poison for the blocks that it got."""
        work = work_of(func, args, kwargs, result, self.find)
        if work is not None:
            if torch.Tag.nondeterministic_seeded in func.tags:
                work = self._with_numbers_drawn(work)
            self.streams.put(self._notes.stream, work)
        return result

    def _with_numbers_drawn(self, work: Any) -> Any:
        """Fixes the random numbers of an operator when it is queued, as on a card."""
        number = backend.random.draw()

        def seeded() -> None:
            before = torch.default_generator.get_state()
            torch.default_generator.manual_seed(number)
            try:
                work()
            finally:
                torch.default_generator.set_state(before)

        return seeded

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor's numbers, for which the host waits."""
        values = self.find(tensor)
        self.wait()
        return values

    @staticmethod
    def _copied(tensor: torch.Tensor, memo: dict[int, torch.Tensor]) -> torch.Tensor:
        if id(tensor) not in memo:
            copied = tensor.detach().clone()
            is_weight = isinstance(tensor, torch.nn.Parameter)
            memo[id(tensor)] = torch.nn.Parameter(copied, tensor.requires_grad) if is_weight else copied
        return memo[id(tensor)]

    def _reduced(self, tensor: torch.Tensor, protocol: int) -> Any:
        """Pickles a host tensor with the tensor's numbers."""
        with private_torch.without_modes():
            values = self.read(tensor).clone()
        kept = torch.nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else values
        return kept.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def _poison(self, address: int, nbytes: int, stream: int) -> None:
        # By the memory's own method: a queued call keeps alive the pages that it writes to.
        self.streams.put(stream, functools.partial(self.memory.fill, address, nbytes, _POISON))

    def _leave_ranks(self) -> None:
        with private_torch.without_modes():
            self.ranks.leave()

    def _wait_for_all(self) -> None:
        with private_torch.without_modes():
            self.streams.finish_all()

    def _on_backend(self, what: str, stream: int, value: Any) -> Any:
        if what == "event":
            return self.streams.mark(stream)
        if what == "wait":
            return self.streams.wait(stream, value)
        if what not in ("synchronize", "query"):
            return super()._on_backend(what, stream, value)
        mark = value if value is not None else self.streams.mark(stream)
        if what == "query":
            return self.streams.reached(mark)
        if stream < 0:
            return self._wait_for_all()
        with private_torch.without_modes():
            return self.streams.finish(mark)
