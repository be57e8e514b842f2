"""What a step leaves behind: the tensors of two steps that are still alive when three more have ended.

Looked for only while memory is known to grow, for a few steps, since every operator passes through Python meanwhile. What
both steps left is what grows; it is named by the module and the line that made it, and by what holds it.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from snugfit.installed import is_installed
from snugfit.private_torch import PLAIN_DISPATCH, TorchDispatchMode, current_mode, current_node
from snugfit.recorder.module_path import ModulePath
from snugfit.techniques.batches import tensors_of

MADE_IN = 2
"""Steps whose tensors are noted."""
STEPS = 5
"""Steps until it is seen which of them stay."""
_STANDARD = sysconfig.get_paths()["stdlib"]
_OURS = str(Path(__file__).parents[1])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Survivors:
    """Tensors of one place that stay alive, step for step."""

    per_step_bytes: int
    """Bytes that each step leaves."""
    line: str
    """File and line that made them, empty where no Python code did."""
    module: str
    """Dotted path of the module that made them; empty outside of all modules."""
    operator: str
    """The operator that made the largest of them."""

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        return f"{self.operator}{where}{' at ' if self.line else ''}{self.line}"


class _Made(NamedTuple):
    storage: weakref.ref[Any]
    step: int
    size_bytes: int
    place: tuple[str, str]
    operator: str


class SurvivorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches from `begin` to `end`; the caller says when steps end."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules = ModulePath()
        for model in models:
            self._modules.watch(model)
        self._step = 0
        self._on = False
        self._seen: dict[int, _Made] = {}
        self._around: set[types.FrameType] = set()

    def begin(self) -> None:
        """Begins to watch, at the end of a step; the code that is running now is the loop."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            self._around.add(frame)
            frame = frame.f_back
        self._modules.__enter__()
        self._on = True
        super().__enter__()  # type: ignore[no-untyped-call]

    def step_ended(self) -> bool:
        """Notes the end of a step; whether enough was seen."""
        self._step += 1
        if self._step == MADE_IN:
            self._off()
        return self._step >= STEPS

    def end(self) -> list[Survivors]:
        """Ends watching, and returns what grows, the most first."""
        self._off()
        if self._step < STEPS:
            return []
        found: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0] * MADE_IN)
        largest: dict[tuple[str, str], tuple[int, str]] = {}
        for made in self._living():
            found[made.place][made.step] += made.size_bytes
            largest[made.place] = max(largest.get(made.place, (0, "")), (made.size_bytes, made.operator))
        rows = [
            Survivors(per_step_bytes=min(sizes), line=line, module=module, operator=largest[line, module][1])
            for (line, module), sizes in found.items()
            if min(sizes)
        ]
        return sorted(rows, key=lambda row: -row.per_step_bytes)

    def holder(self) -> str:
        """Returns what in Python holds tensors that stay: `a list of 40 (losses)`; empty where nothing is found."""
        staying = {key for key, made in self._seen.items() if made.storage() is not None}
        tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor and _storage_of(one) in staying]
        holders: dict[int, list[Any]] = {}
        for tensor in tensors:
            for container in gc.get_referrers(tensor):
                if isinstance(container, list | dict | collections.deque) and container is not tensors:
                    holders.setdefault(id(container), [container, 0])[1] += 1
        for container, held in sorted(holders.values(), key=lambda row: -row[1]):
            name = _name_of(container, holders)
            if held >= MADE_IN and (name or len(container) > STEPS):
                return f"a {type(container).__name__} of {len(container)}{f' ({name})' if name else ''}"
        return ""

    def _off(self) -> None:
        if not self._on:
            return
        self._on = False
        self._modules.__exit__(None, None, None)
        if current_mode() is self:  # else another mode lies over it, and it lets all pass from now on
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._around.clear()

    def _living(self) -> list[_Made]:
        return [made for made in self._seen.values() if made.storage() is not None]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operator and notes what it made."""
        result = func(*args, **(kwargs or {}))
        if not self._on:
            return result
        for tensor in tensors_of(result):
            if tensor.layout is not torch.strided or type(tensor).__torch_dispatch__ is not PLAIN_DISPATCH:
                continue
            storage = tensor.untyped_storage()
            known = self._seen.get(storage._cdata)
            if known is not None and known.storage() is storage:
                continue
            place = self._line(), self._module()
            self._seen[storage._cdata] = _Made(weakref.ref(storage), self._step, storage.nbytes(), place, str(func))
        return result

    def _module(self) -> str:
        if self._modules.stack:
            return self._modules.stack[-1]
        node = current_node()
        return "" if node is None else self._modules.of_node(node)

    def _line(self) -> str:
        """The innermost line of the person's own code in the step or its loop; else of a library that is not torch."""
        frame: types.FrameType | None = sys._getframe(2)
        library = ""
        while frame is not None:
            path = frame.f_code.co_filename
            installed = is_installed(path)
            if not installed and not path.startswith((_STANDARD, _OURS, "<")):
                return f"{path}:{frame.f_lineno}"
            if frame in self._around:
                break
            if not library and installed and "-packages/torch/" not in path:
                library = f"{path}:{frame.f_lineno}"
            frame = frame.f_back
        return library


def _storage_of(tensor: torch.Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, fake
        return None


def _name_of(container: Any, ours: dict[int, list[Any]]) -> str:
    """The name under which a function that runs, an object or a module has a container."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:  # what a function that runs has in its variables says nothing about it
        name = next((name for name, value in frame.f_locals.items() if value is container), "")
        if name:
            return name
        frame = frame.f_back
    for owner in gc.get_referrers(container):
        if isinstance(owner, types.FrameType):
            table = owner.f_locals
        elif isinstance(owner, dict):
            table = owner
        elif isinstance(owner, list) or id(owner) in ours:
            continue
        else:
            table = getattr(owner, "__dict__", {})
        name = next((key for key, value in table.items() if value is container and isinstance(key, str)), "")
        if not name or name == "container":
            continue
        whole = owner if isinstance(owner, dict | types.FrameType) else type(owner).__name__
        return f"{whole}.{name}" if isinstance(whole, str) else name
    return ""
