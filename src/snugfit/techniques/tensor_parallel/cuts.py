"""What is cut in a model, and how: the plan that it brings, or the pairs of layers that are found in its blocks."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from torch import nn

from snugfit.errors import InputError, listed
from snugfit.techniques.blocks import find_blocks
from snugfit.techniques.linear_layers import is_linear, tied_weights
from snugfit.techniques.tensor_parallel.pairs import Pair, any_pairs_in, pairs_in, shape_of

COLUMNS, GATHERED, ROWS, SPLIT, PARTLY_SEEN = (
    "columns",
    "columns, gathered",
    "rows",
    "rows, of the whole",
    "seen in part",
)
_STYLES = {
    "colwise": COLUMNS,
    "colwise_rep": GATHERED,
    "colwise_gather_output": GATHERED,
    "rowwise": ROWS,
    "rowwise_rep": SPLIT,
    "rowwise_split_input": SPLIT,
    "replicated_with_grad_allreduce": PARTLY_SEEN,
}
"""Words of transformers' plans."""
_MOST = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Cuts:
    """Which layers of a model are cut, and how."""

    styles: Mapping[str, str]
    """Module -> how it is cut."""
    counts: tuple[tuple[str, str, int], ...] = ()
    """Module, attribute, and the number of what it counts that one part has."""
    pairs: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Modules cut by their outputs, and the one cut by its inputs that these feed."""
    whole: tuple[str, ...] = ()
    """Layers of the first block that stay whole, by their names in it."""


def cuts_of(model: nn.Module, degree: int) -> Cuts:
    """Returns how a model is cut into `degree` parts, with or without values; `InputError` where it cannot be."""
    brought = _brought(model)
    return _found(model, degree) if not brought else _checked(model, brought, degree)


# -- a plan that the model brings


def _brought(model: nn.Module) -> dict[str, str]:
    """The model's own plan, as module name -> word; of nested modules with a plan, the outermost's."""
    for place, module in model.named_modules():
        plan = getattr(module, "tp_plan", None) or getattr(module, "_tp_plan", None)
        if isinstance(plan, Mapping) and plan:
            return _inside_blocks(model, f"{place}." if place else "", plan)
    return {}


def _inside_blocks(model: nn.Module, start: str, plan: Mapping[str, str]) -> dict[str, str]:
    blocks = tuple(f"{name}." for name in find_blocks(model))
    found = {}
    for name, _ in model.named_modules():
        if name.startswith(blocks):
            own = re.sub(r"\.\d+(?=\.|$)", ".*", name.removeprefix(start))
            if own in plan:
                found[name] = plan[own]
    return found


def _checked(model: nn.Module, plan: Mapping[str, str], degree: int) -> Cuts:
    foreign = sorted({word for word in plan.values() if word not in _STYLES})
    if foreign:
        raise InputError(
            f"the plan that {type(model).__name__} brings for tensor_parallel asks for {listed(foreign, 4)}, which is not "
            "carried out here. Use shard='full'."
        )
    styles, units = {name: _STYLES[word] for name, word in plan.items()}, 0
    for name, style in styles.items():
        if style != PARTLY_SEEN:
            units = math.gcd(units, _units(model, name, by_outputs=style in (COLUMNS, GATHERED)))
    _refuse_unless(degree, [number for number in range(2, _MOST + 1) if units % number == 0], model)
    beside: dict[str, dict[str, list[str]]] = {}
    for name, style in styles.items():
        beside.setdefault(name.rpartition(".")[0], {}).setdefault(style, []).append(name)
    pairs = [(tuple(one.get(COLUMNS, ())), one[ROWS][0]) for one in beside.values() if len(one.get(ROWS, ())) == 1]
    return Cuts(styles, pairs=tuple(pairs))


def _units(model: nn.Module, name: str, *, by_outputs: bool) -> int:
    """The number of equal units of a layer that must not be cut inside: heads, or single numbers."""
    layer, owner = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
    if not isinstance(layer, nn.Linear):
        raise InputError(
            f"the plan that {type(model).__name__} brings for tensor_parallel cuts {name!r}, which is no nn.Linear. Use "
            "shard='full'."
        )
    size = layer.out_features if by_outputs else layer.in_features
    head = getattr(owner, "head_dim", None) or getattr(owner, "head_size", None)
    return size // head if isinstance(head, int) and size % head == 0 else size


# -- pairs found by trying


def _found(model: nn.Module, degree: int) -> Cuts:
    blocks = find_blocks(model)
    tied = tied_weights(model)
    known: dict[object, tuple[list[Pair], list[Pair]]] = {}
    styles: dict[str, str] = {}
    counts: list[tuple[str, str, int]] = []
    together: list[tuple[tuple[str, ...], str]] = []
    lacking: list[tuple[nn.Module, list[Pair]]] = []
    whole: tuple[str, ...] | None = None
    for prefix, block in blocks.items():
        shape = shape_of(block)
        # Blocks that are built alike are tried once.
        if shape not in known:
            known[shape] = pairs_in(block, degree), any_pairs_in(block)
        pairs, possible = known[shape]
        if {pair.row for pair in possible} - {pair.row for pair in pairs}:
            lacking.append((block, possible))
        for pair in pairs:
            inside = pair.inside(prefix)
            names = (*inside.columns, inside.row)
            if any(weight in tied for name in names for weight in model.get_submodule(name).parameters()):
                continue
            styles.update(dict.fromkeys(inside.columns, COLUMNS), **{inside.row: ROWS})
            counts += inside.counts
            together.append((inside.columns, inside.row))
        if whole is None and pairs:
            cut = {name for pair in pairs for name in (*pair.columns, pair.row)}
            whole = tuple(name for name, module in block.named_modules() if is_linear(module) and name not in cut)
    if lacking:
        block, possible = lacking[0]
        rows = {pair.row for pair in possible}
        degrees = [number for number in range(2, _MOST + 1) if rows <= {pair.row for pair in pairs_in(block, number)}]
        _refuse_unless(degree, degrees, model)
    if not styles:
        raise InputError(
            f"tensor_parallel finds nothing to cut in {type(model).__name__}: it brings no plan (tp_plan), and no block of "
            "it has linear layers that feed another one element by element, or head by head. Use shard='full'."
        )
    return Cuts(styles, tuple(counts), tuple(together), whole or ())


def _refuse_unless(degree: int, degrees: list[int], model: nn.Module) -> None:
    if degree not in degrees:
        words = f"give {listed([str(one) for one in degrees], 12)}" if degrees else "use shard='full'"
        raise InputError(
            f"tensor_parallel={degree} does not divide the heads and layers of {type(model).__name__} into equal parts; "
            f"{words}."
        )
