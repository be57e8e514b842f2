"""The repeated blocks of a model, found by structure and never by the model's name.

A block is a module with children that stands, with others of its class, as an element of a `Sequential`, `ModuleList` or
`ModuleDict` anywhere in the model: the layers of a transformer, the bottlenecks of a ResNet. Of nested repeats the
outermost counts. Where no container holds repeats, sibling attributes of one class do (the inception modules); where those
do not either, a `Sequential` in a container is a block too (the stages of many a U-Net).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from snugfit.errors import InputError, did_you_mean
from snugfit.techniques.spellings import meant, suggestion

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the repeated blocks by name, in the order of the model; none where nothing repeats.

    Name -> block, each block once even where it is shared; empty when nothing repeats.
    """
    for in_containers_only, sequences in ((True, False), (False, False), (True, True)):
        elements = dict(_elements(model, in_containers_only, sequences))
        counts = Counter(type(module) for module in elements.values())
        repeated = {name: module for name, module in elements.items() if counts[type(module)] > 1}
        if repeated:
            return _outermost(repeated, model)
    return {}


def named_blocks(model: nn.Module, names: tuple[str, ...], *, field: str) -> dict[str, nn.Module]:
    """Returns the modules that a person named; `InputError` for unknown names, and for one inside another."""
    modules = dict(model.named_modules())
    unknown = [name for name in names if name not in modules or not name]
    if unknown:
        blocks = list(find_blocks(model)) or list(modules)[1:9]
        is_word = len(names) == 1 and meant(field, unknown[0], ())
        tail = f"{suggestion(field, unknown[0], ())} Its blocks: {', '.join(blocks[:12])}." if is_word else ""
        raise InputError(
            f"{field}: the model has no module named {', '.join(map(repr, unknown))}; "
            f"{tail or did_you_mean(unknown[0], blocks[:12])}"
        )
    for name in names:
        inside = [other for other in names if other.startswith(name + ".")]
        if inside:
            raise InputError(f"module {inside[0]!r} lies inside {name!r}; name only one of them.")
    return {name: modules[name] for name in names}


def chosen_blocks(model: nn.Module, choice: str | tuple[str, ...], *, field: str) -> dict[str, nn.Module]:
    """Returns the blocks that the value of a field means; `InputError` where the model has none, or fewer than K."""
    if isinstance(choice, tuple):
        return named_blocks(model, choice, field=field)
    blocks = find_blocks(model)
    if not blocks:
        raise InputError(
            f"{field}={choice!r} found no repeated blocks in {type(model).__name__}: no container holds several modules "
            f"of one class. Name the modules instead, for example {field}={next(_with_children(model), 'features')!r}."
        )
    kind, _, number = choice.partition(":")
    if kind == "every":
        return {name: block for at, (name, block) in enumerate(blocks.items()) if at % int(number) == 0}
    if kind == "blocks":
        if int(number) > len(blocks):
            raise InputError(f"{field}={choice!r}, but the model has {len(blocks)} blocks; give at most that many.")
        return dict(list(blocks.items())[: int(number)])
    return blocks


def has_forward(module: nn.Module) -> bool:
    """Returns whether a module can be called, which containers cannot."""
    return type(module).forward is not nn.Module.forward


def callable_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the outermost modules inside a module that can be called, with their names."""
    for name, child in module.named_children():
        if has_forward(child):
            yield name, child
        else:
            yield from ((f"{name}.{part}", inner) for part, inner in callable_parts(child))


def is_adapted(module: nn.Module) -> bool:
    """Returns whether a module is one layer with an adapter beside it (peft's wrapper), which is no block."""
    return isinstance(getattr(module, "base_layer", None), nn.Module)


def _elements(model: nn.Module, in_containers_only: bool, sequences: bool) -> Iterator[tuple[str, nn.Module]]:
    """What may be a block; `sequences`: whether those are, too, which have a forward method beside what they hold."""
    for name, module in model.named_modules():
        if in_containers_only and not isinstance(module, _CONTAINERS):
            continue
        for child_name, child in module.named_children():
            held = isinstance(child, _CONTAINERS) and not (sequences and isinstance(child, nn.Sequential))
            if held or is_adapted(child):
                continue
            if any(True for _ in child.children()):
                yield (f"{name}.{child_name}" if name else child_name), child


def _outermost(blocks: dict[str, nn.Module], model: nn.Module) -> dict[str, nn.Module]:
    kept: dict[str, nn.Module] = {}
    for name, module in model.named_modules():  # their order is that of the model, containers of containers included
        parents = (name[:at] for at, letter in enumerate(name) if letter == ".")
        if name in blocks and not any(parent in blocks for parent in parents):
            kept[name] = module
    return kept


def _with_children(model: nn.Module) -> Iterator[str]:
    return (name for name, child in model.named_children() if any(True for _ in child.children()))
