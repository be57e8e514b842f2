"""Values that follow from the code alone, although tensors of a simulation have none.

A mask made of `torch.full` and `triu`, positions from `arange`, the comparison of two of them: nothing in these depends on
data or weights. For such a tensor the operator that made it is remembered, with its arguments; only when somebody reads a
value, the operators run again, on real tensors of the host. What is remembered holds no simulated tensor, so no lifetime
changes. Random numbers are followed in the same way; what they are taken to be is said by `chance.py`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from snugfit import private_torch
from snugfit.private_torch import dispatcher
from snugfit.private_torch.fake_tensors import FAKES
from snugfit.techniques.batches import tensors_in
from snugfit.values.chance import OVERWRITES, SOURCES, Stance, stand_in
from snugfit.values.even_choices import COUNTS, Steps, choices, judges

MOST_ELEMENTS = 2**23
"""Larger tensors are not worked out."""
_MOST_WRITTEN = 4096
"""Larger tensors of written numbers are data."""
_MOST_STEPS = 300
_NAME = "_snugfit_known"
_WRITES = "_snugfit_writes"
"""On a storage: how often it was written to. Torch's own counts leave out lists, inference, and what `.data` leads to."""
_LIKE = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "fill_", "zero_"})
"""Operators that look at the layout of their argument only."""
_NOT_WRITTEN = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"})


NOT_RANDOM, EVEN, RANDOM = range(3)
"""What values follow from: the code alone, choices that are taken to be even as well, random numbers as well."""
_draws = itertools.count()


def restart_draws() -> None:
    """Begins a recording: the same code draws the same numbers in each."""
    global _draws
    _draws = itertools.count()


class Made:
    """How a tensor was made: an operator and its arguments, other tensors among them as they were made.

    Of a random operator, shape and dtype of the result and a seed stand in the place of keyword arguments. `random`: whether
    there is one among the steps, or a choice that was taken to be even.
    """

    __slots__ = ("args", "func", "index", "kwargs", "random", "steps")

    def __init__(
        self, func: Any, args: Any, kwargs: Any, steps: int, index: int | None = None, random: int = NOT_RANDOM
    ) -> None:
        self.func, self.args, self.kwargs, self.steps, self.index, self.random = (
            func,
            args,
            kwargs,
            steps,
            index,
            random,
        )


class _Blank:
    """Stands for a tensor of which only the layout matters."""

    __slots__ = ("dtype", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def follow(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], result: Any
) -> None:
    """Remembers how the result of an operator was made, if its values follow from the code."""
    if _writes_lists(func):
        _follow_list(func, args, kwargs)
        return
    _remember(func, args, kwargs, tensors, result)
    chosen = choices(func, args, result)
    if chosen is not None and _made(chosen[0]) is None and _may_be_known(chosen[0]):
        _note(chosen[0], _evenly(chosen[1]))
    if func._schema.is_mutable:
        _count_writes(func, args, kwargs)


def _remember(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], result: Any
) -> None:
    for tensor in tensors:
        unknown = type(tensor) in FAKES and _NAME not in tensor.__dict__
        if unknown and (not args or tensor is not args[0] or not _reads_layout(func)):  # most operators end here
            return
    drawn, like = func in SOURCES, _reads_layout(func)
    results = result if isinstance(result, list | tuple) else (result,)
    if not (drawn or _deterministic(func)) or not all(_may_be_known(one) for one in results):
        return
    written = func._schema.is_mutable
    if written and (not args or result is not args[0]):
        return
    try:
        first = [_Blank(args[0])] if like else _remembered(args[:1])
        given = (*first, *_remembered(args[1:]))
        named = {name: _remembered(value) for name, value in kwargs.items()}
    except LookupError:
        return
    if drawn:
        named = {"shape": tuple(result.shape), "dtype": result.dtype, "seed": next(_draws)}
    steps, random = _steps_to((given, named.values()))
    random = RANDOM if drawn else random
    if steps <= _MOST_STEPS and not (random == EVEN and judges(func, args)):
        for index, one in enumerate(results):
            made = Made(func, given, named, steps, None if one is result else index, random)
            # Masks and labels are followed further than random or many real numbers: through the whole training.
            further = not one.dtype.is_floating_point or (not random and one.numel() <= _MOST_WRITTEN)
            if not further and func.is_view and _writes_of(one)[1]:
                continue
            _note(one, made, written)
            if written and further and one._base is not None:
                _write_through(one, made, one._base)


def _evenly(steps: Steps) -> Made:
    made: tuple[Made, ...] = ()
    for number, (func, args) in enumerate(steps, 1):
        made = (Made(func, (*made, *args), {}, number, random=EVEN),)
    return made[0]


def _may_be_known(result: Any) -> bool:
    return type(result) in FAKES and result.layout is torch.strided and result.numel() <= MOST_ELEMENTS


def _write_through(view: torch.Tensor, made: Made, base: torch.Tensor) -> None:
    """Remembers of a known tensor what is written to a part of it: to a row, or the diagonal of a mask."""
    whole = _made(base)
    if whole is None or base.storage_offset() or not base.is_contiguous():
        return
    place = list(view.shape), list(view.stride()), view.storage_offset()
    steps, random = _steps_to((whole, made))
    if steps <= _MOST_STEPS:
        scattered = Made(torch.ops.aten.as_strided_scatter.default, (whole, made, *place), {}, steps, random=random)
        _note(base, scattered, written=True)


@functools.cache
def _writes_lists(func: Any) -> bool:
    return bool(func._opname.startswith("_foreach_") and func._schema.is_mutable)


def _follow_list(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Forgets what was known of tensors in lists that are written to, of which torch counts no writes in a simulation.

    Steps that are counted up stay known: optimizers divide by what follows from them.
    """
    for place, _ in dispatcher.places_written(func):
        for number, tensor in enumerate(args[place]):
            before = _made(tensor)
            tensor.__dict__.pop(_NAME, None)
            _count_write(tensor)
            if before is None or func._opname != "_foreach_add_" or before.steps >= _MOST_STEPS:
                continue
            more = args[1][number] if isinstance(args[1], list | tuple) else args[1]
            with contextlib.suppress(LookupError):
                given = before, _remembered(more)
                steps, random = _steps_to(given)
                _note(tensor, Made(torch.ops.aten.add.Tensor, given, dict(kwargs), steps, random=random))


def remembering(make: Any) -> Any:
    """Returns `torch.tensor` that remembers the numbers with which it fills a tensor of a device, below all modes."""

    @functools.wraps(make)
    def tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, list | tuple) and tensors_in((data,)):
            data = _as_numbers(data)
        made = make(data, *args, **kwargs)
        known = type(made) in FAKES and made.numel() <= _MOST_WRITTEN
        if known and not tensors_in((data,)):
            with private_torch.without_modes():
                values = torch.tensor(data, dtype=made.dtype, device="cpu")
            _note(made, Made(None, values, None, 0))
        return made

    return tensor


def _as_numbers(data: Any) -> Any:
    """Returns lists with the values of fake tensors in their place, which torch would read below all modes."""
    if isinstance(data, list | tuple):
        return [_as_numbers(one) for one in data]
    return data.item() if type(data) in FAKES and data.numel() == 1 else data


def _reads_layout(func: Any) -> bool:
    """Whether an operator looks at the layout of its first argument only."""
    return func._opname in _LIKE or func in OVERWRITES


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the values of a tensor of the recording; None where they depend on data or chance."""
    made = _made(tensor)
    return None if made is None or made.random else _values(made, "middle")


def random_value(tensor: torch.Tensor) -> Callable[[Stance], torch.Tensor] | None:
    """Returns a function that works out values which follow from code and random numbers or choices alone; else None."""
    made = _made(tensor)
    return functools.partial(_values, made) if made is not None and made.random else None


def is_even(tensor: torch.Tensor) -> bool:
    """Returns whether choices that are taken to be even decide on the values of a tensor, and no random numbers."""
    made = _made(tensor)
    return made is not None and made.random == EVEN


def says_how_many(tensor: torch.Tensor) -> bool:
    """Returns whether the values of a tensor follow from how many there are of something."""
    made = _made(tensor)
    left, seen = [] if made is None else [made], set[int]()
    while left:
        step = left.pop()
        if step.func is None or id(step) in seen:
            continue
        if step.func._opname in COUNTS:
            return True
        seen.add(id(step))
        left += _parts((step.args, step.kwargs.values()))
    return False


def _values(made: Made, stance: Stance) -> torch.Tensor:
    with private_torch.without_modes():
        values: torch.Tensor = _work_out(made, {}, stance)
    return values


@functools.cache
def _deterministic(func: Any) -> bool:
    drawn = torch.Tag.nondeterministic_seeded in func.tags
    return func.namespace in ("aten", "prims") and not drawn and func._opname not in _NOT_WRITTEN


@functools.cache
def _sizes_itself(func: Any) -> bool:
    """Whether the values of an operator's arguments decide how large its result is; indices are no masks by then."""
    return torch.Tag.dynamic_output_shape in func.tags and func is not torch.ops.aten.index.Tensor


def _note(tensor: torch.Tensor, made: Made, written: bool = False) -> None:
    """Notes how a tensor was made; `written`: by a write that is counted afterwards."""
    storage, writes = _writes_of(tensor)
    tensor.__dict__[_NAME] = made, (storage, writes + int(written))


def _made(tensor: torch.Tensor) -> Made | None:
    found = tensor.__dict__.get(_NAME)
    return None if found is None or found[1] != _writes_of(tensor) else found[0]


def _count_writes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    for place, name in dispatcher.places_written(func):
        for tensor in tensors_in((args[place] if place < len(args) else kwargs.get(name),)):
            _count_write(tensor)


def _count_write(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        return
    setattr(tensor.untyped_storage(), _WRITES, _writes_of(tensor)[1] + 1)


def _writes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Which memory a tensor has, and how often it was written to."""
    storage = tensor.untyped_storage()
    return storage._cdata, getattr(storage, _WRITES, 0)


def _remembered(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if type(value) not in FAKES:
            # torch.tensor(..., device=...) makes its values below all modes; other classes are made of several tensors.
            if value.device.type != "cpu" or type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise LookupError
            return Made(None, value.detach().clone(), None, 0)
        made = _made(value)
        if made is None:
            raise LookupError
        return made
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return type(value)(_remembered(part) for part in value) if type(value) in (list, tuple) else value


def _parts(value: Any) -> list[Made]:
    if isinstance(value, Made):
        return [value]
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return []
    return [made for part in value for made in _parts(part)]


def _steps_to(given: Any) -> tuple[int, int]:
    """How many steps lead to an operator with these arguments, itself included, and whether one of them is random."""
    parts = _parts(given)
    return 1 + max((part.steps for part in parts), default=0), max((part.random for part in parts), default=NOT_RANDOM)


def _work_out(made: Made, done: dict[Any, Any], stance: Stance) -> Any:
    if made.func is None:
        return made.args
    if stance != "drawn" and made.random and _sizes_itself(made.func):
        stance, done = "drawn", done.setdefault("drawn", {})  # of other numbers, shapes behind it would not agree
    key = id(made) if made.index is None else (id(made.args), made.func)
    if key not in done:
        args = _real(made.args, done, stance)
        if made.func in SOURCES:
            done[key] = stand_in(made.func, args, **made.kwargs, stance=stance)
            return done[key]
        if made.func._schema.is_mutable:
            args = (args[0].clone(), *args[1:])
        done[key] = made.func(*args, **{name: _real(value, done, stance) for name, value in made.kwargs.items()})
    return done[key] if made.index is None else done[key][made.index]


def _real(value: Any, done: dict[Any, Any], stance: Stance) -> Any:
    if isinstance(value, Made):
        return _work_out(value, done, stance)
    if isinstance(value, _Blank):
        return torch.empty(value.shape, dtype=value.dtype)
    return type(value)(_real(part, done, stance) for part in value) if type(value) in (list, tuple) else value
