"""Which module of the model is running, in forward and in backward.

Forward is told by hooks on every module call. Backward is told by autograd's sequence numbers: every node is numbered when
it is made, so the numbers at the start and end of a module's forward say whose nodes they are. (That needs backward to
run in the thread of forward; the recorder sees to it.)
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from snugfit.private_torch import next_sequence


class ModulePath:
    """Knows the dotted path of the module that runs; a context manager that hooks every module of the process."""

    def __init__(self) -> None:
        """Knows no names yet."""
        self.stack: list[str] = []
        """Paths of the modules whose forward is under way, outermost first."""
        self._names: dict[int, str] = {}
        self._owners: dict[int, str] = {}
        self._owned: dict[int, list[int]] = {}
        """Identity of a watched model -> those of its parameters."""
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._numbers: list[int] = [0]
        self._paths: list[str] = [""]
        self._hooks: list[Any] = []

    def watch(self, model: torch.nn.Module, prefix: str = "") -> None:
        """Takes the names of a model's modules and of the modules that own its parameters.

        Args:
            model: The model; not kept alive: a script that drops its model must get its memory back.
            prefix: What its names begin with.
        """
        owners: dict[int, str] = {}
        for name, module in model.named_modules():
            path = ".".join(filter(None, (prefix, name)))
            key = id(module)
            self._names[key] = path
            self._alive[key] = weakref.ref(module, lambda _, key=key: self._forget(key))  # type: ignore[misc]
            for parameter in module._parameters.values():
                if parameter is not None:
                    owners.setdefault(id(parameter), path)  # a tied one belongs to the first
        # One that is watched again may have new parameters, and what it had before may be gone: another tensor, such as a
        # share of a weight, may have that identity now. (A weak reference would bar torch from swapping a parameter.)
        for gone in self._owned.get(id(model), ()):
            self._owners.pop(gone, None)
        self._owned[id(model)] = list(owners)
        self._owners.update(owners)

    def _forget(self, key: int) -> None:
        self._alive.pop(key, None)
        self._names.pop(key, None)

    def knows(self, module: torch.nn.Module) -> bool:
        """Returns whether a module was watched."""
        return id(module) in self._names

    def name_of(self, module: torch.nn.Module) -> str:
        """Returns the path of a module that was watched; empty for others."""
        return self._names.get(id(module), "")

    def of_node(self, node: Any) -> str:
        """Returns the path of the module in whose forward an autograd node was made.

        Args:
            node: The node that runs.

        Returns:
            A dotted path; empty outside of all modules.
        """
        number = node._sequence_nr()
        if number > self._numbers[-1] + (1 << 40) or number < 0:
            variable = getattr(node, "variable", None)
            return self._owners.get(id(variable), "")
        return self._paths[bisect_right(self._numbers, number) - 1]

    def owner(self, parameter: torch.Tensor) -> str:
        """Returns the path of the module that owns a parameter; empty for one of no known model.

        Args:
            parameter: The parameter.
        """
        return self._owners.get(id(parameter), "")

    def _entered(self, module: torch.nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():  # a compiled model is one piece of code, in which no module is called
            return
        path = self._names.get(id(module))
        if path is None:
            path = type(module).__name__
            if self.stack and self.stack[-1]:
                path = f"{self.stack[-1]}.{path}"
        self.stack.append(path)
        self._point(path)

    def _left(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self.stack:
            self.stack.pop()
        self._point(self.stack[-1] if self.stack else "")

    def _point(self, path: str) -> None:
        number = next_sequence()
        if number == self._numbers[-1]:
            self._paths[-1] = path
        else:
            self._numbers.append(number)
            self._paths.append(path)

    def __enter__(self) -> ModulePath:
        """Hooks every module."""
        self._point("")
        self._hooks = [
            register_module_forward_pre_hook(self._entered),
            register_module_forward_hook(self._left, always_call=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
