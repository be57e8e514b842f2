"""How objects travel to a simulation that no pickler takes, although training code holds them.

- a module with parametrizations (weight_norm, spectral_norm): its class is made anew on the other side;
- an optimizer: with what its class holds of its own, which torch leaves out (LBFGS's list of parameters);
- a lazy parameter or buffer: as one without a shape, which the simulation's first look at the batch gives it;
- `torch.ops`, `torch.classes`, what is found in them, locks and weak references: as the same thing over there;
- a module of a class of its own (`torch.backends`): by the name under which it is imported;
- a progress bar of tqdm: as one that shows nothing;
- code that goes by value: with the file that it is in, which messages name and cloudpickle leaves out since 3.1.3;
- an enum of an extension (pybind11's, which pickle cannot read back) and its class: by where it is imported from;
- anything else that cannot be pickled, or not be read back (an open file, a running generator, a logger of a run): as a
  stand-in that lets the rest work, and says what it is and where when something asks it for anything.
"""

from __future__ import annotations

import enum
import functools
import importlib
import operator
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tqdm.std import tqdm

from snugfit import private_torch
from snugfit.errors import CannotSimulateError

Reduced = tuple[Any, ...]
_LOCKS: dict[type, Callable[[], Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
}


_OF_ALL_OPTIMIZERS = frozenset(vars(torch.optim.SGD([torch.zeros(0)])))


class StandIn:
    """Takes the place of something that stayed where it was."""

    def __init__(self, kind: str, path: str = "") -> None:
        """Remembers the type that cannot travel, and where the object is."""
        self.__dict__["_what"] = f"{path}, an object of type {kind}" if path else f"an object of type {kind}"

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise CannotSimulateError(
            f"the step uses {self.__dict__['_what']}, which cannot travel to the simulation's process. "
            "Leave it out of the simulated loss, forward and model (a step without logging, for example), or make it where "
            "it is used."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    __call__ = __setattr__ = __iter__ = __next__ = __enter__ = __getitem__ = __len__ = _refuse


def reduce(value: Any) -> Reduced | None:
    """Returns how to pickle an object that needs help (for `reducer_override`); None for those that do not."""
    kind = type(value)
    if kind in _LOCKS:
        return _LOCKS[kind], ()
    if kind is types.CodeType:
        import cloudpickle

        return _code, (*cloudpickle.Pickler.dispatch_table[kind](value), value.co_filename)
    if kind is weakref.ReferenceType:
        alive = value()
        return (weakref.ref, (alive,)) if alive is not None else (_dead_reference, ())
    if isinstance(value, tqdm):
        return functools.partial(tqdm, total=value.total, disable=True), ()
    if isinstance(value, torch.optim.Optimizer) and kind.__getstate__ is torch.optim.Optimizer.__getstate__:
        # Made blank and filled later, so that optimizers and modules that refer to each other can travel.
        kept = {name: one for name, one in vars(value).items() if name not in _OF_ALL_OPTIMIZERS and not callable(one)}
        return _blank, (kind,), (value.__getstate__(), kept), None, None, _fill_optimizer
    if isinstance(value, torch.nn.Module):
        names = private_torch.parametrized(value)
        if names is not None:
            return _blank, (private_torch.plain_class(value),), (vars(value), names), None, None, _fill
        return None
    if isinstance(value, type):  # code names the class itself, which is not where it says
        return (_member, _import_path(value)) if _is_foreign_enum(value) else None
    if _is_foreign_enum(kind) and getattr(value, "name", None) in kind.__members__:
        module, name = _import_path(kind)
        return _member, (module, f"{name}.{value.name}")
    path = private_torch.registry_path(value)
    if path is not None:
        return _from_registry, path
    if (
        isinstance(value, types.ModuleType)
        and sys.modules.get(value.__name__) is value
        and kind is not types.ModuleType
    ):
        return importlib.import_module, (value.__name__,)
    return None


def stand_in(value: Any, paths: Mapping[int, str], *, always: bool = False) -> Reduced | None:
    """Returns a stand-in for an object that cannot be pickled; `always`: it is known not to survive pickling.

    It is what `reducer_override` returns; None where the object can be pickled, its parts apart.
    """
    import cloudpickle

    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType | types.MethodType):
        return None
    own = cloudpickle.Pickler.dispatch_table.get(type(value))  # code objects, cells, files and the like
    try:
        if not always and not isinstance(value, threading.Thread):  # whose parts are the interpreter's
            value.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if own is None else own(value)
            return None
    except Exception:
        pass
    return StandIn, (name_of(value), paths.get(id(value), ""))


def name_of(value: Any) -> str:
    """Returns the type of an object, with its module."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _import_path(kind: type) -> tuple[str, str]:
    """Returns a module and name under which a class can be imported, whatever the class itself says."""
    names = {kind.__name__, kind.__qualname__, f"_{kind.__name__}"}
    elsewhere = sorted(one for one in sys.modules.items() if one[0] not in ("__main__", "__mp_main__"))
    modules = [(kind.__module__, sys.modules.get(kind.__module__)), *elsewhere]
    found = ((path, name) for path, one in modules for name in names if getattr(one, "__dict__", {}).get(name) is kind)
    return next(found, (kind.__module__, kind.__qualname__))


def _code(make: Callable[..., types.CodeType], parts: tuple[Any, ...], file: str) -> types.CodeType:
    return make(*parts).replace(co_filename=file)


def _is_foreign_enum(kind: Any) -> bool:
    return isinstance(getattr(kind, "__members__", None), dict) and not issubclass(kind, enum.Enum)


def _member(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


def _blank(kind: Any) -> Any:
    return kind.__new__(kind)


def _fill_optimizer(optimizer: torch.optim.Optimizer, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    of_all, own = state
    optimizer.__setstate__(of_all)
    vars(optimizer).update(own)


def _fill(module: torch.nn.Module, state: tuple[dict[str, Any], tuple[str, ...]]) -> None:
    attributes, names = state
    module.__setstate__(attributes)  # type: ignore[no-untyped-call]
    private_torch.parametrize_again(module, names)


def _dead_reference() -> Any:
    """A weak reference to something that is gone."""

    class Gone:
        pass

    return weakref.ref(Gone())


def _from_registry(*path: str) -> Any:
    found: Any = torch
    for name in path:
        found = getattr(found, name)
    return found
