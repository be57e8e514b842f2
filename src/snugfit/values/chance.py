"""Random numbers that decide what a step does: layers dropped as a whole, an augmentation now and then, a random length.

A random tensor's values are not known, but the range is that they are drawn from. Where code asks for one, or for what
follows from one, all random numbers behind it stand at their middle, at their least or at their most: `torch.rand(()) < 0.1`
is False, and would be True at the least. A step is recorded with everything at its middle first, which is the likelier
answer to a condition; then each place in the code that would answer otherwise is tried so, and what takes most memory is
kept. In training every answer comes up sooner or later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

Stance = Literal["middle", "least", "most", "drawn"]
STANCES: tuple[Stance, ...] = ("middle", "least", "most")
MOST_TRIED = 8
"""Answers other than the middle one that are tried, each by a recording of its own."""
_DEVIATIONS = 4.0
"""How far from its mean a normal number stands at its least and most, in standard deviations."""
_NEARLY_ONE = 1 - 2**-20
_aten = torch.ops.aten


def _uniform(numbers: Sequence[float]) -> tuple[float, float, float]:
    low, high = (*numbers, *(0.0, 1.0)[len(numbers) :])  # torch leaves defaults at the end out of a call
    return low, (low + high) / 2, low + (high - low) * _NEARLY_ONE


def _normal(numbers: Sequence[float]) -> tuple[float, float, float]:
    mean, deviation = (*numbers, *(0.0, 1.0)[len(numbers) :])
    return mean - _DEVIATIONS * deviation, mean, mean + _DEVIATIONS * deviation


def _whole(numbers: Sequence[float]) -> tuple[float, float, float]:
    low, high = (0, *numbers)[-2:]
    return low, (low + high - 1) // 2, high - 1


def _truth(probability: Any) -> tuple[Any, Any, Any]:
    p = torch.as_tensor(probability)
    return p >= 1, p >= 0.5, p > 0


_SPANS: dict[Any, Callable[[Sequence[float]], tuple[float, float, float]]] = {
    _aten.rand.default: _uniform,
    _aten.rand.generator: _uniform,
    _aten.rand_like.default: _uniform,
    _aten.uniform_.default: _uniform,
    _aten.randn.default: _normal,
    _aten.randn.generator: _normal,
    _aten.randn_like.default: _normal,
    _aten.normal_.default: _normal,
    _aten.normal.float_float: _normal,
    _aten.randint.default: _whole,
    _aten.randint.generator: _whole,
    _aten.randint.low: _whole,
    _aten.randint.low_generator: _whole,
    _aten.randint_like.default: _whole,
    _aten.randint_like.low_dtype: _whole,
    _aten.random_.to: _whole,
    getattr(_aten.random_, "from"): _whole,
}
"""Operator -> least, middle and most of what it draws, by the numbers among its arguments."""
_TRUTHS: dict[Any, int | None] = {
    _aten.bernoulli.default: 0,
    _aten.bernoulli.p: None,
    _aten.bernoulli_.float: None,
    _aten.bernoulli_.Tensor: 1,
}
"""Operator that draws zeros and ones -> which argument has the probabilities; None: a number among them."""
_ORDERS = frozenset({_aten.randperm.default, _aten.randperm.generator})
SOURCES = frozenset({*_SPANS, *_TRUTHS, *_ORDERS})
"""Operators whose results can stand in for what they draw."""
OVERWRITES = frozenset(
    func for func in SOURCES if func._schema.is_mutable or func._opname.endswith("_like") or func is _aten.bernoulli.p
)
"""Those of them that look at the layout of their first argument only."""


def stand_in(
    func: Any, args: Sequence[Any], shape: Sequence[int], dtype: torch.dtype, seed: int, stance: Stance
) -> torch.Tensor:
    """Returns what a random operator is assumed to have drawn: its middle, least or most; or draws by `seed`."""
    if stance == "drawn":
        return _drawn(func, args, shape, torch.Generator().manual_seed(seed)).to(dtype)
    if func in _ORDERS:
        return torch.arange(shape[0], dtype=dtype)
    least, middle, most = _truth(_probability(func, args)) if func in _TRUTHS else _SPANS[func](_numbers(args))
    value = {"least": least, "middle": middle, "most": most}[stance]
    return torch.empty(tuple(shape), dtype=dtype).copy_(torch.as_tensor(value))


def _drawn(func: Any, args: Sequence[Any], shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    if func in _ORDERS:
        return torch.randperm(shape[0], generator=generator)
    if func in _TRUTHS:
        probability = torch.as_tensor(_probability(func, args)).float()
        return torch.bernoulli(probability.expand(tuple(shape)), generator=generator)
    least, middle, most = _SPANS[func](_numbers(args))
    if _SPANS[func] is _whole:
        return torch.randint(int(least), int(most) + 1, tuple(shape), generator=generator)
    if _SPANS[func] is _normal:
        return middle + (most - middle) / _DEVIATIONS * torch.randn(tuple(shape), generator=generator)
    return least + (most - least) * torch.rand(tuple(shape), generator=generator)


def _probability(func: Any, args: Sequence[Any]) -> Any:
    place = _TRUTHS[func]
    return args[place] if place is not None else (*_numbers(args), 0.5)[0]


def _numbers(args: Sequence[Any]) -> list[Any]:
    return [number for number in args if type(number) in (int, float)]


@dataclasses.dataclass(slots=True)
class _Seen:
    """What was read at one place of the code."""

    taken: torch.Tensor
    """What it was taken to be, the first time."""
    least: torch.Tensor
    most: torch.Tensor
    others: tuple[Stance, ...]
    """Stances that give another answer."""


class Chance:
    """Which random numbers one recording assumes (middle, least, most), by the place in the code that asks."""

    def __init__(self, stances: Mapping[str, Stance] | None = None) -> None:
        """Takes place -> stance; all other places get the middle."""
        self.stances = dict(stances or {})
        self._seen: dict[str, _Seen] = {}

    def answer(self, value_at: Callable[[Stance], torch.Tensor], place: str) -> torch.Tensor:
        """Returns values that follow from random numbers, worked out by `value_at` for the place that asks."""
        # All three are worked out, although one is returned: where they differ, another recording is worth a try.
        values = {stance: value_at(stance) for stance in STANCES}
        taken = values[self.stances.get(place, "middle")]
        others = tuple(stance for stance in STANCES if not torch.equal(values[stance], values["middle"]))
        if others:
            seen = self._seen.setdefault(place, _Seen(taken, values["least"], values["most"], ()))
            seen.others = tuple(dict.fromkeys((*seen.others, *others)))
        return taken

    def alternatives(self) -> list[tuple[str, Stance]]:
        """Returns the places that would have got another answer from other numbers, and which stance gives it."""
        return [(place, stance) for place, seen in self._seen.items() for stance in seen.others]

    def otherwise(self, place: str, stance: Stance) -> Chance:
        """Returns the same assumptions with another stance at one place."""
        return Chance({**self.stances, place: stance})

    def in_words(self) -> list[str]:
        """Returns what was assumed, for the estimate."""
        return [_in_words(place, seen) for place, seen in self._seen.items()]


def _in_words(place: str, seen: _Seen) -> str:
    where = f" at {place}" if place else ""
    why = "of the answers that were tried, the one that takes most memory"
    if seen.taken.numel() != 1:
        return f"assumed random numbers{where}: {why}"
    if seen.taken.dtype == torch.bool:
        return f"assumed a random condition{where} is {bool(seen.taken)}: {why}"
    low, value, high = (one.item() for one in (seen.least, seen.taken, seen.most))
    return f"assumed a random number{where} is {value:.4g}, drawn from {low:.4g} to {high:.4g}: {why}"
