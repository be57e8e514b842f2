"""Blocks that a model never calls: what acts on a block when it is called does nothing there, and that is said once.

Such a model calls parts of its blocks, or uses their weights itself. A block that is left out by chance (layer drop) is no
such case, so it takes two things to tell: a gradient has reached the blocks, and none of them was called by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from snugfit.errors import UncalledBlocksWarning, listed, warn
from snugfit.techniques.base import Setup
from snugfit.techniques.blocks import callable_parts


class _Around(Protocol):
    called: bool
    """Whether the block was called."""


class Calls:
    """Watches the first step for calls of the blocks that a technique acts on."""

    def __init__(self, setup: Setup, field: str) -> None:
        """Knows no block yet; `field` is the one by which they were chosen."""
        self._field, self._alone = field, setup.ranks is None
        self._blocks: dict[str, tuple[nn.Module, _Around]] = {}
        self._begun = self._trained = self._judged = False
        self._hooks: list[RemovableHandle] = []

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a wrapped model takes no hooks along."""
        return {**vars(self), "_hooks": []}

    def watch(self, name: str, block: nn.Module, around: _Around) -> None:
        """Remembers a block, and what stands around its forward method."""
        self._blocks[name] = block, around

    def begin(self) -> None:
        """Called before a forward pass of training: from the first one on, a gradient of the blocks is noticed."""
        if torch.compiler.is_compiling() or self._begun:
            return
        self._begun = True
        if not self._alone:  # there, nobody may hook a weight, and a step ends for all of them together
            self._trained = True
            return
        weights = (weight for block, _ in self._blocks.values() for weight in block.parameters())
        self._hooks = [
            weight.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for weight in weights
            if weight.requires_grad and weight.is_leaf
        ]

    def _arrived(self, _: Tensor) -> None:
        self._trained = True
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Context of a step, or of a pass; warns at its end if that is the first that tells."""
        yield
        if self._judged or not self._trained:
            return
        self._judged = True
        if not self._blocks or any(around.called for _, around in self._blocks.values()):
            return
        parts = [
            f"{name}.{part}"
            for name, (block, _) in self._blocks.items()
            for part, inner in callable_parts(block)
            if any(True for _ in inner.children())
        ]
        instead = (
            f"Name modules that it calls, perhaps some of {listed(parts)}" if parts else "Name modules that it calls"
        )
        warn(
            f"{self._field} has no effect: in the first step the model called none of the blocks it is for "
            f"({listed(self._blocks, 2)}). It calls parts of them, or uses their weights itself. {instead}; or set "
            f"{self._field}='none'.",
            UncalledBlocksWarning,
        )
