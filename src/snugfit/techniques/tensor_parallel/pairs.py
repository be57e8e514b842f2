"""Pairs of linear layers that can be cut, found by trying: a part of a block must come out as its part of the whole.

A block runs on the CPU with figures in place of its layers: one column times one row of random numbers, so that layers of
any width cost nothing, and whether there are weights yet does not matter. Where a layer's input, in the run of a part, is
that part of its input in the run of the whole, and everything else comes out as in the whole, the layers before it can be
cut by their outputs and this one by its inputs. Names and kinds of modules play no role. Numbers of heads that a module
keeps as attributes are divided where it comes out right only so.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit import private_torch
from snugfit.techniques.batches import tensors_of
from snugfit.techniques.linear_layers import is_linear

_SAMPLES, _TOKENS = 2, 3
_MOST_LAYERS, _MOST_COUNTS = 4, 3
_LARGE = 2**16
_FEW = (2, 3, 5, 7)
"""Degrees to try: what can be cut at all can nearly always be cut by one of these."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Layers that are cut together: the first ones by outputs, the last one by inputs."""

    columns: tuple[str, ...]
    """Names of those cut by their outputs."""
    row: str
    """Name of the one cut by its inputs."""
    counts: tuple[tuple[str, str, int], ...]
    """Attributes that say how many there are of something, and the number in one part: module, attribute, number."""

    def inside(self, prefix: str) -> Pair:
        """Returns the same pair, by the names that the module around it uses."""
        counts = tuple((_joined(prefix, name), attribute, number) for name, attribute, number in self.counts)
        return Pair(tuple(_joined(prefix, one) for one in self.columns), _joined(prefix, self.row), counts)


def pairs_in(block: nn.Module, degree: int) -> list[Pair]:
    """Returns the layers of a block, on any device, with values or without, that can be cut into `degree` parts."""
    with private_torch.without_modes(), torch.enable_grad():
        return _pairs_in(block, degree)


def any_pairs_in(block: nn.Module) -> list[Pair]:
    """Returns the layers of a block that can be cut into some number of parts, whichever."""
    found: dict[str, Pair] = {}
    for degree in _FEW:
        found.update({pair.row: pair for pair in pairs_in(block, degree) if pair.row not in found})
    return list(found.values())


def shape_of(block: nn.Module) -> object:
    """Returns a key that is equal for blocks which are built alike."""
    return tuple(
        (name, type(module), tuple(sorted(_numbers(module).items())), tuple(w.shape for w in module.parameters(False)))
        for name, module in block.named_modules()
    )


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _numbers(module: nn.Module) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if type(value) is int and not name.startswith("_")}


def _pairs_in(block: nn.Module, degree: int) -> list[Pair]:
    layers = {name: module for name, module in block.named_modules() if name and is_linear(module)}
    if len(layers) < 2 or any("forward" in vars(module) for module in block.modules()):
        return []
    whole = next(_runs(block, layers), None)
    if whole is None:  # it takes more than one tensor, or another kind: perhaps its parts do not
        return [pair.inside(name) for name, child in block.named_children() for pair in _pairs_in(child, degree)]
    found: list[Pair] = []
    free: list[str] = []
    for name in whole.order:
        pair = _pair_before(whole, free, name, degree)
        if pair is None:
            free.append(name)
        else:
            found.append(pair)
            free.clear()
    return found


def _pair_before(whole: _Run, free: Sequence[str], row: str, degree: int) -> Pair | None:
    """The layers just before one that can be cut with it; None where there are none."""
    # The fewest layers and the fewest attributes that will do: a cut that needs neither is found first.
    ways = [tuple(free[-count:]) for count in range(1, min(len(free), _MOST_LAYERS) + 1)]
    sizes = {name: len(whole.vectors[name][1]) for name in free} | {row: len(whole.vectors[row][0])}
    ways = [columns for columns in ways if all(sizes[name] % degree == 0 for name in (*columns, row))]
    for size in range(_MOST_COUNTS + 1):
        for columns in ways:
            for counts in itertools.combinations(whole.counts_of((*columns, row), degree), size):
                if all(whole.comes_out(columns, row, counts, part, degree) for part in range(degree)):
                    return Pair(columns, row, counts)
    return None


class _Wrong(Exception):
    """Raised when a part did not come out as its part of the whole."""


class _Figure(nn.Module):
    """Stands in for a linear layer, or for one part of it, with random numbers of rank one."""

    def __init__(self, name: str, vectors: tuple[Tensor, ...], run: _Run) -> None:
        super().__init__()
        self.name, self.run, self.vectors = name, run, vectors
        inputs, outputs, bias = vectors
        self.in_features, self.out_features, self.nf = len(inputs), len(outputs), len(outputs)
        self.weight, self.bias = inputs[:1].expand(len(outputs), len(inputs)), bias

    def forward(self, value: Tensor) -> Tensor:
        return self.run.passed(self.name, self.vectors, value)


class _Run:
    """A run of a whole block, and of its parts beside it."""

    def __init__(self, block: nn.Module, layers: Mapping[str, nn.Module], width: int) -> None:
        self.block, self.layers = block, layers
        self.generator = torch.Generator(device="cpu").manual_seed(0)
        # With a gradient, as without one modules may take ways of their own, past their layers.
        self.value = self._drawn(_SAMPLES, _TOKENS, width).requires_grad_() * 1.0
        self.vectors = {name: self._vectors(layer) for name, layer in layers.items()}
        self.others: dict[int, Tensor] = {}
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}
        self.order: list[str] = []
        self.part: tuple[tuple[str, ...], str, int, int] | None = None
        self.output = self._output(())
        self.order = [name for name in dict.fromkeys(self.order) if self.order.count(name) == 1]

    def _drawn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64, device="cpu")

    def _vectors(self, layer: nn.Module) -> tuple[Tensor, ...]:
        outputs, inputs = layer.get_parameter("weight").shape
        if not isinstance(layer, nn.Linear):  # GPT-2's Conv1D holds its matrix the other way round
            outputs, inputs = inputs, outputs
        return self._drawn(inputs) / inputs**0.5, self._drawn(outputs), self._drawn(outputs)

    def counts_of(self, names: Sequence[str], degree: int) -> list[tuple[str, str, int]]:
        """Attributes, of modules that hold these layers, whose numbers may count what is cut (heads)."""
        owners = dict.fromkeys(name.rpartition(".")[0] for name in names)
        return [
            (owner, attribute, value // degree)
            for owner in owners
            for attribute, value in _numbers(self.block.get_submodule(owner)).items()
            if value > 1 and value % degree == 0
        ]

    def comes_out(
        self, columns: tuple[str, ...], row: str, counts: Sequence[tuple[str, str, int]], part: int, degree: int
    ) -> bool:
        """Returns whether running one part of some layers gives that part of the whole result."""
        self.part = columns, row, part, degree
        try:
            found = self._output(counts)
        except Exception:  # a part that does not fit fails in any way it likes
            return False
        finally:
            self.part = None
        return len(found) == len(self.output) and all(map(_alike, found, self.output))

    def passed(self, name: str, vectors: tuple[Tensor, ...], value: Tensor) -> Tensor:
        """What a layer, or its part, returns for its input."""
        inputs, outputs, bias = vectors
        if self.part is not None:
            columns, row, part, degree = self.part
            # The part has come as far as the row: its input must be its part of the whole. What the sum over all parts
            # would give is known from the whole run, and the block goes on from there.
            if name == row:
                before, after = self.seen[name]
                if not _alike(value, _part(before, part, degree)):
                    raise _Wrong
                return after
            if name in columns:
                outputs, bias = _part(outputs, part, degree), _part(bias, part, degree)
        if value.shape[-1] != len(inputs):
            raise _Wrong
        # Rank one: the layer is one column times one row, so its cost does not depend on its size.
        found = (value * inputs).sum(-1, keepdim=True) * outputs + bias
        if self.part is None:
            self.order.append(name)
            self.seen[name] = value, found
        return found

    def _output(self, counts: Sequence[tuple[str, str, int]]) -> list[Tensor]:
        made = self._made(self.block, "")
        for name, attribute, number in counts:
            setattr(made.get_submodule(name), attribute, number)
        return [one.detach().clone() for one in tensors_of(made(self.value))]

    def _made(self, module: nn.Module, name: str) -> nn.Module:
        """A copy of a module with `_Figure`s for its layers and small numbers for its other tensors."""
        if name in self.layers:
            return _Figure(name, self.vectors[name], self)
        made = copy.copy(module)
        attributes = vars(made)
        for key, value in vars(module).items():
            attributes[key] = type(value)() if key.endswith("_hooks") and isinstance(value, dict) else value
        attributes["training"] = False
        attributes["_parameters"] = {
            key: weight if weight is None else nn.Parameter(self._number(weight), requires_grad=False)
            for key, weight in module._parameters.items()
        }
        attributes["_buffers"] = {
            key: one if one is None else self._number(one) for key, one in module._buffers.items()
        }
        attributes["_modules"] = {
            key: one if one is None else self._made(one, _joined(name, key)) for key, one in module._modules.items()
        }
        return made

    def _number(self, tensor: Tensor) -> Tensor:
        """Reproducible numbers for a tensor; a large one repeats a few."""
        if id(tensor) not in self.others:
            if not tensor.is_floating_point():
                made = torch.ones((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)
            elif tensor.numel() <= _LARGE:
                made = self._drawn(*tensor.shape)
            else:
                made = self._drawn(tensor.shape[0], *(1 for _ in tensor.shape[1:])).expand(tensor.shape)
            self.others[id(tensor)] = made
        return self.others[id(tensor)]


def _runs(block: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[_Run]:
    """Runs of the whole block, on inputs of the widths that its layers take."""
    widths = dict.fromkeys(
        layer.get_parameter("weight").shape[isinstance(layer, nn.Linear)] for layer in layers.values()
    )
    for width in widths:
        try:
            run = _Run(block, layers, width)
        except Exception:  # a module that is called wrongly fails in any way it likes
            continue
        if run.order and all(map(_is_sound, run.output)):
            yield run


def _is_sound(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _part(tensor: Tensor, part: int, degree: int) -> Tensor:
    size = tensor.shape[-1] // degree
    return tensor.narrow(-1, part * size, size)


def _alike(one: Any, other: Any) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-9, atol=1e-12)
