"""Every use of torch that torch does not promise, in one place, so that a new torch is checked here and nowhere else.

What allocators did is in `allocators.py`, what the dispatcher knows of operators in `dispatcher.py`, fake tensors in
`fake_tensors.py`, and so on; all the rest here.

Each name here has a test of what is expected of it in `tests/cpu/private_torch/`, which `make test-torch VERSION=...`
runs with another torch. Written against torch 2.11 to 2.15. Importing it changes nothing; `register_backend` does,
and only the worker process calls it: from then on torch takes our Python backend for *the* accelerator of that process.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.nn import modules
from torch.utils import _python_dispatch, _pytree

from snugfit.attributes import attributes_set

TorchDispatchMode = _python_dispatch.TorchDispatchMode
current_mode = _python_dispatch._get_current_dispatch_mode
tree_leaves, tree_map = _pytree.tree_leaves, _pytree.tree_map
BatchNorm = modules.batchnorm._BatchNorm
NormBase = modules.batchnorm._NormBase
ConvNd = modules.conv._ConvNd
DropoutNd = modules.dropout._DropoutNd
InstanceNorm = modules.instancenorm._InstanceNorm

_META = torch.device("meta")
PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl
"""`__torch_dispatch__` of classes of tensors that dispatch as plain tensors do, parameters for example."""
PLAIN_FUNCTIONS = torch._C._disabled_torch_function_impl
"""`__torch_function__` of classes of tensors whose functions are those of plain tensors, fake ones for example."""
current_node: Callable[[], Any] = torch._C._current_autograd_node
"""Returns the autograd node that runs, None outside of backward."""
next_sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""Returns the number that the next autograd node of this thread will get."""


class DirectMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode whose `__torch_dispatch__` torch calls itself, with no function in between that keeps compilers out.

    Nothing compiles inside a recording, so the guard would only cost time; and `summed_in_place` looks at who called.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def is_hooked(module: torch.nn.Module) -> bool:
    """Returns whether a module's hooks may see what goes in or comes out, or look at it in backward."""
    own = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(own)


def hooks_everywhere() -> bool:
    """Returns whether there are hooks that see every module."""
    return bool(modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def remove_hook(handle: Any) -> None:
    """Removes a hook of all modules, also from the table of those with keywords, in which torch leaves it."""
    handle.remove()
    modules.module._global_forward_hooks_with_kwargs.pop(handle.id, None)


def without_modes() -> Any:
    """Returns a context in which operators run for real, whatever modes are active."""
    return _python_dispatch._disable_current_modes()


def empty_graph() -> Any:
    """Returns a graph of TorchScript with nothing in it."""
    return torch._C.Graph()


def make_state(optimizer: torch.optim.Optimizer) -> bool:
    """Makes the state of an optimizer's first step, where its class has torch's method for it.

    Returns whether it has.
    """
    make = getattr(optimizer, "_init_group", None)
    if make is None:
        return False
    lists = len(inspect.signature(make).parameters) - 1  # of what the step goes through, in parallel
    for group in optimizer.param_groups:
        make(group, *([] for _ in range(lists)))
    return True


def suggested_layout(tensor: torch.Tensor) -> torch.memory_format:
    """Returns the memory format that operators assume for a tensor whose strides allow several.

    Source: `c10/core/MemoryFormat.h`; torch's own Python version of it.
    """
    from torch._prims_common import suggest_memory_format

    found: torch.memory_format = suggest_memory_format(tensor)
    return found


def skip_dispatch_rules(mode_class: type) -> None:
    """Skips torch's search for rules of a dispatch mode's class, which costs as much as an operator."""
    from torch._library import simple_registry

    original = simple_registry.find_torch_dispatch_rule

    def find(operator: Any, dispatch_class: type) -> Any:
        return None if dispatch_class is mode_class else original(operator, dispatch_class)

    simple_registry.find_torch_dispatch_rule = find  # type: ignore[assignment]


def without_autocast(key: str) -> Any:
    """Returns a guard that skips a dispatch key such as AutocastPrivateUse1."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return torch._C._ExcludeDispatchKeyGuard(keys)


def below_autograd() -> Any:
    """Returns a guard under which operators reach the kernels below autograd."""
    return torch._C._AutoDispatchBelowAutograd()


def on_clearing_autocast_cache(callback: Callable[[], None]) -> None:
    """Calls a function whenever autocast drops its cache of cast weights (when the outermost one ends)."""
    original = torch.clear_autocast_cache

    def clear() -> None:
        callback()
        original()

    torch.clear_autocast_cache = clear


def on_storage_resize(callback: Callable[[torch.UntypedStorage], None]) -> AbstractContextManager[None]:
    """Context in which a callback gets each storage that Python has resized, as FSDP does with parameters."""
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        callback(storage)
        return result

    return attributes_set([torch.UntypedStorage], resize_=resize)


def hooks_of(weight: torch.Tensor) -> tuple[dict[int, Any], dict[int, Any]]:
    """Returns a parameter's hooks on its gradient, and those after accumulation.

    `weight`: the parameter. What is taken out of the dictionaries is not called, until it is put back.
    """
    before, after = weight._backward_hooks, getattr(weight, "_post_accumulate_grad_hooks", None)
    return ({} if before is None else before), ({} if after is None else after)


def parametrized(module: torch.nn.Module) -> tuple[str, ...] | None:
    """Returns the names of a module's parametrized tensors; None for a module without."""
    from torch.nn.utils import parametrize

    return tuple(module.parametrizations) if parametrize.is_parametrized(module) else None  # type: ignore[arg-type]


def plain_class(module: torch.nn.Module) -> type:
    """Returns the class that a parametrized module had before."""
    return type(module).__bases__[0]


def parametrize_again(module: torch.nn.Module, names: Sequence[str]) -> None:
    """Gives a module with the attributes of a parametrized one its class, for these tensors."""
    from torch.nn.utils import parametrize

    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)


def lazy_parameter(kind: type, dtype: torch.dtype, requires_grad: bool) -> Any:
    """Returns a lazy parameter or buffer (of class `kind`) that waits for its shape."""
    keywords = {"requires_grad": requires_grad, "device": _META, "dtype": dtype}
    return kind(**keywords)


def registry_path(value: Any) -> tuple[str, ...] | None:
    """Returns the path from torch to something in `torch.ops` or `torch.classes`; None for all else."""
    kind = type(value)
    if kind.__module__ == "torch._classes":
        return ("classes",) if value is torch.classes else ("classes", value.name)
    if kind.__module__ != "torch._ops":
        return None
    if value is torch.ops:
        return ("ops",)
    return "ops", *(value.name if isinstance(value, torch._ops._OpNamespace) else str(value)).split(".")


def rounds_to_tf32(operator: str, is_product: bool) -> bool:
    """Returns whether a float32 operator computes in TF32 on a card that has it."""
    if is_product:
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
    return operator.startswith("aten.convolution") and bool(torch.backends.cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]


def source_line(skip: tuple[str, ...]) -> str:
    """Returns `file:line` of the innermost frame that is neither torch's nor in the given folders, or nothing."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename == "<frozen runpy>":  # what lies outside of `python -m` started the process, and is nobody's code
            return ""
        if _is_a_persons(filename, skip):
            return f"{filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@functools.cache
def _is_a_persons(filename: str, skip: tuple[str, ...]) -> bool:
    written_by_torch = f"{os.sep}torchinductor_" in filename
    return not written_by_torch and not filename.startswith((f"{torch.__path__[0]}{os.sep}", *skip, "<"))


@contextmanager
def nothing_above(gradients: bool | None) -> Iterator[None]:
    """Context in which operators reach their kernels directly: no mode, no autograd, no autocast, random state kept.

    `gradients`: whether gradients count as recorded, for kernels that ask; None as False.
    """
    with ExitStack() as around:
        around.enter_context(_python_dispatch._disable_current_modes())
        around.enter_context(torch._C.DisableTorchFunction())
        around.enter_context(torch._C._DisableAutocast())
        around.enter_context(below_autograd())
        around.enter_context(torch.set_grad_enabled(bool(gradients)))
        state = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


def processor_settings() -> tuple[str, ...]:
    """Returns torch's switches, besides threads, by which CPU kernels are chosen."""
    onednn = torch.backends.mkldnn
    precisions = [getattr(getattr(onednn, part, None), "fp32_precision", "") for part in ("matmul", "conv", "rnn")]
    return (
        f"onednn={torch._C._get_mkldnn_enabled()}",
        f"fp32={','.join(map(str, precisions))}",
        f"deterministic={torch.are_deterministic_algorithms_enabled()}",
    )


def processor_capability() -> str:
    """Returns the widest instructions that torch and oneDNN use here, ignoring limits by environment variables."""
    for name, supported in (
        ("AMX", "_is_amx_tile_supported"),
        ("AVX512_BF16", "_is_avx512_bf16_supported"),
    ):
        if getattr(torch.cpu, supported, bool)():
            return name
    return str(torch.backends.cpu.get_cpu_capability())


def give_numbers(batches: Any, changed: Callable[[list[int]], list[int]]) -> None:
    """Lets a pass through a loader read other samples than its sampler names; `changed` gets the numbers of a batch."""
    own = batches._next_index
    batches._next_index = lambda: changed(own())


def compiler_memory_budget(share: float) -> Any:
    """Returns a context in which the compiler keeps at most this share (0 to 1) of the activations."""
    import torch._functorch.config as compiler

    return compiler.patch(activation_memory_budget=share)


def forget_compiled(model: torch.nn.Module) -> None:
    """Makes a module run eagerly again after `module.compile`."""
    model._compiled_call_impl = None
