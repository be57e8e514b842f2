"""Answers to code that reads values out of tensors of a simulation, or lets them decide on sizes.

The rule is that of `assumptions.py`; who asks does not matter, but for a library's search with beams.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from snugfit import private_torch
from snugfit.errors import CannotSimulateError
from snugfit.private_torch.fake_tensors import FakeTensor
from snugfit.values import fake_failure
from snugfit.values.assumptions import Assumptions
from snugfit.values.beam_search import TO_THE_END, beams_may_go_on
from snugfit.values.carried_values import CARRIES, DECIDES, EQUAL, FACTS, IS_ALL_TRUE, NOTHING_THERE
from snugfit.values.chance import Chance, Stance
from snugfit.values.even_choices import EVENLY
from snugfit.values.known_values import is_even, known_value, random_value, says_how_many
from snugfit.values.value_sizes import ValueSizes

ANSWER = "the training step was told that losses and gradients are finite"
CHECKS = "checks that a library makes of values (torch._check) were taken to hold"
DRAWN = "where random numbers decide, they were drawn once"
ALL_SELECTED = "what masks select of small tensors (64 KiB and less) was taken to be all of it"
ASSERTED = "assertions of the code (assert) about values were taken to hold"
_SMALL_BYTES = 2**16
_READ = "reading a number out of a tensor (.item(), float(), int(), bool(), if)"
_MOST_READS, _MOST_SECONDS = 10_000, 60
"""Numbers that one line reads, and their time, after which what it waits for is not going to come."""
_MOST_DECIDING = 4096
"""Elements of an argument that is worked out where it may decide alone."""


class Ledger(Protocol):
    """What a recorder remembers of tensors of one element."""

    def value(self, tensor: torch.Tensor) -> float | None:
        """Returns what one holds in a run where all goes well; None where that is not known."""

    def set_value(self, tensor: torch.Tensor, value: float) -> None:
        """Remembers it."""


class ReadValues:
    """Answers the questions about values of one recording."""

    def __init__(self, assumptions: Assumptions, ledger: Ledger, answered: set[str]) -> None:
        """Takes what may be assumed; `answered` gets every assumption that is used.

        `ledger`: knows what tensors of one truth value hold.
        """
        self.assumptions = assumptions
        self.sizes = ValueSizes(self)
        self.chance = Chance()
        """What random numbers are taken to be."""
        self.draws = False
        """Whether random numbers that are read are drawn, as on the host of a script, and not tried from least to most."""
        self.told: Callable[[torch.dtype], Any] | None = None
        """Answers in place of the assumptions, while a library's code runs that is known to ask."""
        self.ledger = ledger
        self.answered = answered
        self.held = ""
        self._reads: dict[str, tuple[int, float]] = {}
        """By line: how many numbers it has read by now, and when the first."""

    @contextmanager
    def holding(self, why: str) -> Iterator[None]:
        """Context in which conditions on values hold.

        `why`: what is assumed, in words; empty: they are asked about again.
        """
        before, self.held = self.held, why
        try:
            yield
        finally:
            self.held = before

    def selecting(self, tensor: torch.Tensor) -> AbstractContextManager[None]:
        """Returns the context in which masks select of a tensor: of a small one all, unless an assumption was given."""
        small = tensor.nbytes <= _SMALL_BYTES and self.assumptions.nonzero is None
        return self.holding(self.held or ALL_SELECTED) if small else contextlib.nullcontext()

    def is_true(self, tensor: torch.Tensor) -> None:
        """Marks a tensor of one truth value as true in a run where all goes well."""
        self.ledger.set_value(tensor, 1.0)

    def carry(
        self, func: Any, args: Sequence[Any], sources: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]
    ) -> None:
        """Records what is known of an operator's results from what is known of its arguments."""
        if func in FACTS or func is IS_ALL_TRUE:
            self._fact(func, args, copies[0])
        known = [value for value in map(self.ledger.value, sources) if value is not None]
        if len(known) < len(sources):
            decides = DECIDES.get(func)
            if decides is not None and any(self._is_all(one, decides) for one in sources):
                self.ledger.set_value(copies[0], decides)
            return
        if func in EQUAL:
            self.ledger.set_value(copies[0], float((known[0] == args[1]) is EQUAL[func]))
        count, made = CARRIES.get(func, (0, min))
        if count == len(known):
            self.ledger.set_value(copies[0], made(known))
        elif func in NOTHING_THERE and known[0] == 0.0:
            self.ledger.set_value(copies[0], 0.0)

    def _is_all(self, tensor: torch.Tensor, value: float) -> bool:
        """Whether all elements of a tensor are known to hold a value, 1 being a truth value's."""
        if value and tensor.dtype != torch.bool:
            return False
        truth = self.ledger.value(tensor)
        if truth is not None:
            return truth == value
        small = type(tensor) in (FakeTensor, torch.Tensor) and tensor.numel() <= _MOST_DECIDING
        exact = self.exact(tensor) if small else None
        if exact is None:
            return False
        with private_torch.without_modes():
            return bool((exact == value).all())

    def _fact(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Records what an operator makes of finite numbers."""
        if func is IS_ALL_TRUE:
            if self.ledger.value(args[0]) is None and known_value(args[0]) is None:
                self.ledger.set_value(result, 1.0)
                self.answered.add(self.held or CHECKS)
            return
        found = FACTS[func](args) if self.assumptions.loss_finite else None
        if found is not None:
            self.ledger.set_value(result, found)

    def number(self, tensor: torch.Tensor, module: str) -> Any:
        """Returns the number of a tensor with one element; `CannotSimulateError` where nothing says what it is."""
        if self.told is not None:
            return self.told(tensor.dtype)
        exact = self.exact(tensor)
        if exact is not None:
            return exact.item()
        truth = self.ledger.value(tensor)
        if truth is not None:
            if tensor.dtype == torch.bool:
                self.answered.add(ANSWER)
            return bool(truth) if tensor.dtype == torch.bool else int(truth) if _whole(tensor) else truth
        if self.held and tensor.dtype == torch.bool:
            self.answered.add(self.held)
            return True
        random = self._random(tensor)
        if random is not None:
            return random.item()
        return self.assumed(tensor.dtype, _READ, module)

    def compared(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], module: str) -> bool:
        """Returns whether two tensors hold the same values (nearly, by `allclose`), or raises `CannotSimulateError`."""
        exact = [self.exact(tensor) for tensor in args[:2]]
        if exact[0] is not None and exact[1] is not None:
            with private_torch.without_modes():
                return bool(func(*exact, *args[2:], **kwargs))
        return bool(self.assumed(torch.bool, str(func), module))

    def array(self, tensor: torch.Tensor, what: str) -> Any:
        """Returns a NumPy array in place of values, or raises `CannotSimulateError`; `what` asks for it."""
        import numpy

        exact = self.exact(tensor)
        if exact is not None:
            return exact.numpy()
        truth = self.ledger.value(tensor)
        random = self._random(tensor) if truth is None else None
        if random is not None:
            return random.numpy()
        value = self.assumed(tensor.dtype, what, "") if truth is None else truth
        with private_torch.without_modes():
            kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        return numpy.full(tuple(tensor.shape), value, dtype=kind)

    def exact(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the values of a tensor that follow from code and from what the host has read; None where none do."""
        if not isinstance(tensor, FakeTensor):
            return tensor.detach()
        constant = tensor.constant
        if constant is not None:
            return constant
        return known_value(tensor)

    def _random(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor of random numbers is taken to hold, unless an assumption was given for it."""
        given = self.assumptions.said
        said = {torch.bool: given.branch, torch.int64: given.integer}.get(tensor.dtype)
        value_at = random_value(tensor) if said is None else None
        even = value_at is not None and is_even(tensor)
        if value_at is None or (even and tensor.dtype != torch.bool and not says_how_many(tensor)):
            return None
        if self.draws or even:
            return self.drawn(tensor, value_at)
        with private_torch.without_modes():
            return self.chance.answer(value_at, fake_failure.place_outside())

    def drawn(self, tensor: torch.Tensor, value_at: Callable[[Stance], torch.Tensor]) -> torch.Tensor:
        """Returns values with the random numbers behind them as they are drawn once, and names that."""
        self.answered.add(EVENLY if is_even(tensor) else DRAWN)
        return value_at("drawn")

    def assumed(self, dtype: torch.dtype, what: str, module: str) -> Any:
        """Returns what is assumed of a number of a type, or raises `CannotSimulateError`; `what` asks for it."""
        given = self.assumptions
        if self.told is not None:
            return self.told(dtype)
        if dtype.is_floating_point:
            if not given.loss_finite:
                raise fake_failure.no_value(what, module, "loss_finite")
            place = fake_failure.place_outside()
            self._counted(place)
            self.answered.add(ANSWER if not place else f"assumed loss_finite: a number read at {place} counts as 1.0")
            return 1.0
        if dtype == torch.bool:
            if beams_may_go_on():
                self.answered.add(TO_THE_END)
                return True
            asserted = fake_failure.asserted()
            if asserted is not None:
                self.answered.add(ASSERTED)
                return asserted
            if given.branch is None:
                raise fake_failure.no_value(what, module, "branch=true")
            self.answered.add(
                f"assumed branch={str(given.branch).lower()}: {fake_failure.place_in_words('a condition on values')}"
            )
            return given.branch
        if given.integer is None or dtype.is_complex:
            raise fake_failure.no_value(what, module, "integer=8")
        where = fake_failure.place_in_words("a whole number read out of a tensor")
        self.answered.add(f"assumed integer={given.integer}: {where}")
        return given.integer

    def _counted(self, place: str) -> None:
        """Counts a number that was read, and ends a loop that waits for another one."""
        count, began = self._reads.get(place, (0, time.monotonic()))
        self._reads[place] = count + 1, began
        if count > _MOST_READS and time.monotonic() - began > _MOST_SECONDS:
            raise CannotSimulateError(
                f"{place} has read {count} numbers in {_MOST_SECONDS} s and more, each of which counts as "
                "1.0 in an estimate: a loop that waits for a smaller one does not end. Bound its turns, or measure the run."
            )


def _whole(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()
