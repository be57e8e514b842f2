"""Turns skeletons (meta tensors) into fake tensors on a device, inside a recording, so that their memory is counted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from snugfit.errors import warn
from snugfit.operators.operator_call import extent
from snugfit.private_torch import hooks_of, sparse_layouts
from snugfit.techniques.batches import map_tensors
from snugfit.techniques.init.apply import own_tables, parameters_on_meta
from snugfit.techniques.init.late import is_awaited

UNHOOKED = (
    "hooks that the model came with on its weights (register_hook, register_post_accumulate_grad_hook) are not run, and "
    "what they do is not predicted. In a training script they are: snugfit estimate train.py."
)


class Materialiser:
    """Makes one fake storage for every storage of a skeleton, however many tensors share it."""

    def __init__(self) -> None:
        self._storages: dict[tuple[int, torch.device], torch.Tensor] = {}
        self._tensors: dict[tuple[int, torch.device], torch.Tensor] = {}
        self._keep: list[torch.Tensor] = []

    def tensor(self, meta: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the fake tensor (or parameter) for a meta tensor, the same one every time; others as they are."""
        if meta.device.type != "meta":
            return meta
        known = self._tensors.get((id(meta), device))
        if known is not None:
            return known
        if meta.layout is not torch.strided:
            return self._sparse(meta, device, dtype)
        storage = meta.untyped_storage()
        key = (storage._cdata, device)
        elements = storage.nbytes() // meta.dtype.itemsize
        dtype = dtype or meta.dtype
        own = meta.storage_offset() == 0 and extent(meta.shape, meta.stride()) == elements
        if key in self._storages:
            base = self._storages[key]
            flat = base.view(-1) if base.is_contiguous() else torch.as_strided(base, (elements,), (1,), 0)
            fake = torch.as_strided(flat.view(dtype), meta.shape, meta.stride(), meta.storage_offset())
        elif own:
            fake = torch.empty_strided(meta.shape, meta.stride(), dtype=dtype, device=device)
            self._storages[key] = fake
        else:
            base = torch.empty(elements, dtype=dtype, device=device)
            self._storages[key] = base
            fake = torch.as_strided(base, meta.shape, meta.stride(), meta.storage_offset())
        if isinstance(meta, torch.nn.Parameter):
            if any(hooks_of(meta)):
                warn(UNHOOKED)
            fake = torch.nn.Parameter(fake, meta.requires_grad)
        elif meta.requires_grad:
            fake.requires_grad_()
        self._tensors[(id(meta), device)] = fake
        self._keep.append(meta)
        return fake

    def _sparse(self, meta: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
        """Returns the fake matrix for a sparse one, on fake tensors of its parts."""
        *places, values = sparse_layouts.parts_of(meta)
        parts = [self.tensor(place, device) for place in places] + [self.tensor(values, device, dtype)]
        fake = sparse_layouts.sparse_fake(
            parts[-1].fake_mode,  # type: ignore[attr-defined]
            parts,
            meta.shape,
            meta.layout,
            coalesced=sparse_layouts.is_coalesced(meta),
        )
        self._tensors[(id(meta), device)] = fake
        self._keep.append(meta)
        return fake

    def module(
        self,
        model: torch.nn.Module,
        device: torch.device,
        dtype: torch.dtype | None = None,
        *,
        weights: bool = True,
        late: bool = False,
    ) -> None:
        """Gives a skeleton fake parameters and buffers, in place; tied ones stay tied.

        `weights`: whether parameters get memory, too.
        `late`: whether those that are awaited get none.
        `dtype`: dtype of floating-point ones; None: as in the skeleton.
        """
        kept = {id(table) for table in own_tables(model)}

        def fake(meta: torch.Tensor) -> torch.Tensor:
            if (not weights and isinstance(meta, torch.nn.Parameter)) or (late and is_awaited(meta)):
                return meta
            cast = dtype is not None and meta.is_floating_point() and id(meta) not in kept
            return self.tensor(meta, device, dtype if cast else None)

        change_tensors(model, fake)

    def optimizer(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        """Gives an optimizer that travelled with its model the fake parameters and fake state, in place."""
        change_optimizer(optimizer, lambda tensor: self.tensor(tensor, device))

    def tree(self, value: Any, device: torch.device | Callable[[torch.Tensor], torch.device]) -> Any:
        """Returns a nesting (tuples, lists, dicts, dataclasses) with fake tensors in place of meta ones.

        `device`: where they are, or a function that says so for each.
        """

        def one(leaf: torch.Tensor) -> torch.Tensor:
            if leaf.device.type != "meta":
                leaf = sparse_layouts.without_memory(leaf)
                self._keep.append(leaf)
            return self.tensor(leaf, device(leaf) if callable(device) else device)

        return map_tensors(value, one)


def change_tensors(model: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replaces a model's parameters, buffers and tensors in plain attributes."""
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for table in tables:
            for name, tensor in list(table.items()):
                if isinstance(tensor, torch.Tensor):
                    table[name] = change(tensor)


def change_optimizer(optimizer: torch.optim.Optimizer, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replaces an optimizer's parameters and state, in lists of its own too (LBFGS has one)."""
    for group in optimizer.param_groups:
        group["params"] = [change(parameter) for parameter in group["params"]]
    for name, value in list(vars(optimizer).items()):
        if type(value) is list and value and all(isinstance(one, torch.Tensor) for one in value):
            vars(optimizer)[name] = [change(parameter) for parameter in value]
    states = dict(optimizer.state)
    optimizer.state.clear()
    for parameter, state in states.items():
        optimizer.state[change(parameter)] = map_tensors(state, change)


def remembered(model: torch.nn.Module, *optimizers: object) -> Callable[[], None]:
    """Returns a function that restores a skeleton and its optimizers to what they are now, for another recording."""
    modules = [(module, type(module), _tables_copied(vars(module))) for module in model.modules()]
    given = [
        (
            one,
            dict(vars(one)),
            _groups_copied(one.param_groups),
            {weight: dict(kept) for weight, kept in one.state.items()},
        )
        for one in optimizers
        if isinstance(one, torch.optim.Optimizer)
    ]

    def restore() -> None:
        for module, kind, attributes in modules:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(_tables_copied(attributes))
        for one, attributes, groups, states in given:
            vars(one).update(attributes)
            one.param_groups[:] = _groups_copied(groups)
            one.state.clear()
            one.state.update({weight: dict(kept) for weight, kept in states.items()})

    return restore


def _groups_copied(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**group, "params": [*group["params"]]} for group in groups]


def _tables_copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a module, with its tables of parameters, modules and hooks copied."""
    return {name: copy.copy(value) if isinstance(value, dict) else value for name, value in attributes.items()}


def fill(
    model: torch.nn.Module,
    captured: Iterable[torch.Tensor] = (),
    optimizers: Iterable[torch.optim.Optimizer] = (),
) -> torch.nn.Module:
    """Gives a skeleton sensible values, in place: weights random ones, all else 1, or 0 for an index.

    `captured`: tensors that are held elsewhere.
    """
    generator = torch.Generator().manual_seed(0)
    made: dict[int, torch.Tensor] = {}

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        if id(tensor) not in made and tensor.layout is not torch.strided:
            made[id(tensor)] = sparse_layouts.filled(tensor)
        if id(tensor) not in made:
            weight, number = isinstance(tensor, torch.nn.Parameter), tensor.is_floating_point() or tensor.is_complex()
            if weight and number:
                values = torch.randn(tensor.shape, generator=generator) * 0.05 + (tensor.dim() == 1)  # norms are near 1
            else:
                values = torch.full(tensor.shape, int(number or tensor.dtype == torch.bool))
            kept = values.to(tensor.dtype).requires_grad_(tensor.requires_grad)
            made[id(tensor)] = torch.nn.Parameter(kept.detach(), tensor.requires_grad) if weight else kept
        return made[id(tensor)]

    change_tensors(model, filled)
    for tensor in captured:
        if tensor.is_meta:
            torch.utils.swap_tensors(tensor, filled(tensor))  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        change_optimizer(optimizer, filled)
    return model


def filled_batch(batch: Any, generator: torch.Generator | None = None) -> Any:
    """Returns a batch with random values that any model takes: whole numbers are 0 or 1, masks mask nothing."""

    def values(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        if tensor.layout is not torch.strided:
            return sparse_layouts.filled(tensor)
        if tensor.dtype == torch.bool:
            return torch.ones(tensor.shape, dtype=tensor.dtype)
        if tensor.is_floating_point() or tensor.is_complex():
            return torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
        return torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.dtype)

    return map_tensors(batch, values)


def without_memory(make: Callable[[str], torch.nn.Module]) -> torch.nn.Module:
    """Builds a model whose parameters have no memory.

    `make`: builds the model; told `meta` when everything is to be made without memory, and `cpu` when that failed,
    because the constructor reads values: then parameters lose their memory one by one as they are registered.
    """
    try:
        with torch.device("meta"):
            return make("meta")
    except Exception:
        with parameters_on_meta():
            return make("cpu")
