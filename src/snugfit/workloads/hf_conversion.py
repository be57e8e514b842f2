"""Which tensors of a file make up each weight of a model of transformers, where the two are named or cut otherwise.

Files hold each expert of a mixture by itself, and models stack them; older files have other names. transformers says how
one becomes the other (`get_model_conversion_mapping`) and does it for a whole model at once. Here it is done for one weight,
at the moment when it is asked for.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a weight is made of."""

    target: str
    """Its name in the model."""
    names: tuple[str, ...]
    """Names of tensors in the file."""
    patterns: tuple[str | None, ...]
    """For each, which of the converter's patterns it matches."""
    converter: Any
    """What makes the weight of them; None: it is the only one."""
    model: Any

    def read(self, copied: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """Returns the weight; `copied` reads a tensor of the file by name."""
        if self.converter is None:
            return copied(self.names[0])
        converter = copy.deepcopy(self.converter)
        for name, pattern in zip(self.names, self.patterns, strict=True):
            converter.add_tensor(self.target, name, pattern, lambda name=name: copied(name))
        made: Any = converter.convert(self.target, model=self.model, config=self.model.config)[self.target]
        weight: torch.Tensor = made[0] if isinstance(made, list) else made
        return weight


def sources_of(model: Any, names: Iterable[str]) -> dict[str, Source] | None:
    """Returns what each weight is made of; `names` are those of all tensors in the file.

    Name in the model's state -> its source; None where a tensor of the file belongs nowhere, or to several weights.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    state = model.state_dict()
    mapping = get_model_conversion_mapping(model)
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    of_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    found: dict[str, list[tuple[str, str | None]]] = {}
    for name in sorted(names, key=dot_natural_key):  # experts in the order of their numbers
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if target not in state and name in state:
            target, pattern = name, None
        if target not in state or (pattern is not None and len(of_pattern[pattern].target_patterns) > 1):
            return None
        found.setdefault(target, []).append((name, pattern))
    if any(len(parts) > 1 and None in [pattern for _, pattern in parts] for parts in found.values()):
        return None
    return {
        target: Source(
            target=target,
            names=tuple(name for name, _ in parts),
            patterns=tuple(pattern for _, pattern in parts),
            converter=None if parts[0][1] is None else of_pattern[parts[0][1]],
            model=model,
        )
        for target, parts in found.items()
    }
