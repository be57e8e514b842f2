"""`torch.compile` in code that is watched: left out, or done on fake tensors where that was asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from snugfit.attributes import Change

EAGER = (
    "torch.compile is left out: the step is counted as it runs eagerly. A compiled one mostly takes less memory and time; "
    "measure it to know."
)
_GRAPHS = (
    "what CUDA graphs keep for themselves is not predicted: torch.compile was simulated without its mode and options."
)
_UPDATES = (
    "torch.compile was left out of the optimizer's update, which is counted as it runs eagerly: compiled it takes less."
)


def uncompiled(left_out: Callable[[], None]) -> list[Change]:
    """Returns what makes `torch.compile` give back what it is given; `left_out` is called where that is used."""
    import torch

    from snugfit.fake_device.library_kernels import compiled_parameter_update

    def as_it_is(model: Any = None, *_: Any, **__: Any) -> Any:
        if model is None:
            return as_it_is
        if model is compiled_parameter_update:
            return model
        if isinstance(model, torch.nn.Module):
            left_out()
            inside = object.__new__(type(model))  # of the same weights: scripts ask for it until it has none in it
            vars(inside).update(vars(model))
            vars(model)["_orig_mod"] = inside
            return model

        @functools.wraps(model)
        def called(*args: Any, **kwargs: Any) -> Any:  # libraries compile functions that nobody calls
            left_out()
            return model(*args, **kwargs)

        return called

    return [(torch, "compile", as_it_is), (torch.nn.Module, "compile", lambda *_, **__: left_out())]


def compiled(note: Callable[[str], None]) -> list[Change]:
    """Returns what makes `torch.compile` compile for fake tensors; `note` is told of what is left out."""
    import torch

    from snugfit.fake_device.library_kernels import compiled_parameter_update

    original, inside = torch.compile, list[Any]()

    def as_asked(model: Any = None, *, mode: Any = None, options: Any = None, **given: Any) -> Any:
        if model is None:
            return functools.partial(as_asked, mode=mode, options=options, **given)
        if model is compiled_parameter_update:
            return model
        if options is not None or mode not in (None, "default"):
            note(_GRAPHS)
        code: Any = original(model, **given)
        if isinstance(model, torch.nn.Module):
            return code

        @functools.wraps(model)
        def called(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # as part of another
                return model(*args, **kwargs)
            inside.append(model)
            try:
                return code(*args, **kwargs)
            finally:
                inside.pop()

        return called

    def in_place(module: torch.nn.Module, *_: Any, **given: Any) -> None:
        """Compiles what is inside of the hooks of a module, by which it is watched; torch compiles them with it."""
        vars(module)["forward"] = as_asked(module.forward, **given)

    def eagerly(step: Callable[..., Any]) -> Callable[..., Any]:
        """The update of an optimizer, which torch would begin while it traces, where nothing is recorded."""

        def update(*args: Any, **kwargs: Any) -> Any:
            if inside:
                note(_UPDATES)
            return step(*args, **kwargs)

        return functools.wraps(step)(torch.compiler.disable(update))  # type: ignore[no-untyped-call]

    # Of all classes, as the first optimizer of each has the hooks of a step put around its update; or has had.
    around = torch.optim.Optimizer.profile_hook_step
    steps: dict[type, Any] = {one: vars(one).get("step") for one in vars(torch.optim).values() if isinstance(one, type)}
    updates: list[Change] = [(one, "step", eagerly(step)) for one, step in steps.items() if hasattr(step, "hooked")]
    updates.append((torch.optim.Optimizer, "profile_hook_step", staticmethod(lambda step: eagerly(around(step)))))
    return [(torch, "compile", as_asked), (torch.nn.Module, "compile", in_place), *updates]


def is_traced() -> bool:
    """Whether this is being compiled: a hook that goes on then becomes part of the code, with guards on all it reads."""
    import torch

    return torch.compiler.is_compiling()


def compiled_from(module: Any) -> Any:
    """Returns what was compiled into a module, or the module itself where it is none of the compiler's."""
    return dict(module.named_children()).get("_orig_mod", module)
