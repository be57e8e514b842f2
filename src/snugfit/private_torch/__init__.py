"""Every use of torch that torch does not promise, in one place, so that a new torch is checked here and nowhere else.

What allocators did is in `allocators.py`, what the dispatcher knows of operators in `dispatcher.py`, and so on; all the rest
here.

Each name here has a test of what is expected of it in `tests/cpu/test_private_torch.py`, which `make test-torch VERSION=...`
runs with another torch. Written against torch 2.11 to 2.15. Importing this file changes nothing; `register_backend` does,
and only the worker process calls it: from then on torch takes our Python backend for *the* accelerator of that process.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.nn import modules
from torch.utils import _python_dispatch, _pytree

from snugfit.attributes import attributes_set
from snugfit.errors import CannotSimulateError
from snugfit.private_torch.backward_errors import BackendGuard, keep_errors_of_backward
from snugfit.private_torch.dispatcher import claim_kernel, has_kernel

FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
TorchDispatchMode = _python_dispatch.TorchDispatchMode
current_mode = _python_dispatch._get_current_dispatch_mode
tree_leaves, tree_map = _pytree.tree_leaves, _pytree.tree_map
BatchNorm = modules.batchnorm._BatchNorm
NormBase = modules.batchnorm._NormBase
ConvNd = modules.conv._ConvNd
DropoutNd = modules.dropout._DropoutNd
InstanceNorm = modules.instancenorm._InstanceNorm
DATA_DEPENDENT = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
"""Raised by an operator whose result depends on values that fake tensors do not have."""
UNSUPPORTED = (
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedFakeTensorException,
    NotImplementedError,
)
"""Raised by an operator without a fake version."""

_make_subclass = torch.Tensor._make_subclass
_forbid_data_access = torch._C._set_throw_on_mutable_data_ptr
_META = torch.device("meta")
PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl
"""`__torch_dispatch__` of classes of tensors that dispatch as plain tensors do, parameters for example."""
PLAIN_FUNCTIONS = torch._C._disabled_torch_function_impl
"""`__torch_function__` of classes of tensors whose functions are those of plain tensors, fake ones for example."""
current_node: Callable[[], Any] = torch._C._current_autograd_node
"""Returns the autograd node that runs, None outside of backward."""
next_sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""Returns the number that the next autograd node of this thread will get."""


def new_fake_mode() -> FakeTensorMode:
    """Returns a fake mode that takes real tensors as arguments, too."""
    return FakeTensorMode(allow_non_fake_inputs=True)


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


def without_modes() -> Any:
    """Returns a context in which operators run for real, whatever modes are active."""
    return _python_dispatch._disable_current_modes()


def in_fake_mode() -> bool:
    """Returns whether a fake mode is entered; it lies under all modes of ours, whichever was entered first."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def forget_conversions(mode: FakeTensorMode) -> None:
    """Drops a fake mode's weak references to tensors it has seen, which keep modules from swapping them."""
    converter = mode.fake_tensor_converter.meta_converter
    converter.tensor_memo.clear()
    converter.storage_memo.clear()


class FakeFactory:
    """Makes fake tensors from their layout alone, several times faster than their constructor.

    All fake tensors of one device start with the same attributes; they are copied from one made the ordinary way.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        """Starts without templates; tensors belong to `mode`."""
        self.mode = mode
        self._attributes: dict[torch.device, dict[str, Any]] = {}

    def wrap(self, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Returns a fake tensor that claims to be on a device and shares the storage of a meta tensor."""
        attributes = self._attributes.get(device)
        if attributes is None:
            attributes = dict(FakeTensor(self.mode, meta, device).__dict__)
            self._attributes[device] = attributes
        fake: torch.Tensor = _make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        fake.__dict__.update(attributes)
        _forbid_data_access(fake)
        return fake

    def empty(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Returns a new fake tensor with a storage of its own; strides in elements."""
        return self.wrap(torch.empty_strided(shape, stride, dtype=dtype, device=_META), device)

    def view(
        self, base: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Returns a fake tensor on the storage of another; strides and offset in elements."""
        # In inference mode, too, a view of an ordinary tensor is one: it shares the count of writes.
        with torch.inference_mode(mode=False) if _made_for_inference(base) else nullcontext():
            meta = torch.empty(0, dtype=dtype, device=_META)
            meta.set_(base.untyped_storage(), offset, shape, stride)
            return self.wrap(meta, base.fake_device)  # type: ignore[attr-defined]


def _made_for_inference(base: torch.Tensor) -> bool:
    """Whether a new tensor would be an inference tensor, while this one is not."""
    return torch.is_inference_mode_enabled() and not base.is_inference()


def viewed(factory: FakeFactory, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Returns the views of a fake tensor that an operator makes, by its meta kernel; None where it makes none.

    Where only one tensor takes part, the fake mode does the same by a way that takes twenty times as long.
    """
    if not operator.is_view or operator.namespace != "aten" or not args or type(args[0]) is not FakeTensor:
        return None
    base, *others = args
    if base.constant is not None or base.layout is not torch.strided or torch.is_inference_mode_enabled():
        return None
    if any(isinstance(other, torch.Tensor) for other in (*others, *kwargs.values())):
        return None
    with without_modes():
        meta = torch.empty(0, dtype=base.dtype, device=_META)
        meta.set_(base.untyped_storage(), base.storage_offset(), base.shape, base.stride())
        try:
            made = operator(meta, *others, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError, IndexError):
            return None  # the fake mode says what is wrong
    several = isinstance(made, list | tuple)
    views = [factory.wrap(view, base.fake_device) for view in (made if several else (made,))]
    return type(made)(views) if several else views[0]


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


_ALONE = (4, 2)
"""Counts of references to a tensor, and to its storage, that nobody but the autograd engine holds, as a dispatch mode sees
them."""


def summed_in_place(args: Sequence[Any]) -> bool:
    """Returns whether autograd adds up gradients here (args of `aten.add.Tensor`), which a real run does in place.

    Gradients that reach a node from several sides are added into the first of them, where nobody else holds that. For
    tensor subclasses, as fake tensors are, the engine makes a new tensor instead.

    Source: `torch/csrc/autograd/input_buffer.cpp`, can_accumulate_inplace and accumulate.
    """
    if torch._C._current_graph_task_id() == -1 or len(args) != 2:
        return False
    if sys._getframe(2).f_code.co_name != "_engine_run_backward":  # a Python kernel or hook inside of backward
        return False
    total, share = args
    if type(total) is not type(share) or type(total) not in (FakeTensor, torch.Tensor):
        return False
    if total.shape != share.shape or total.dtype != share.dtype:
        return False
    counts = total._use_count(), torch._C._storage_Use_Count(total.untyped_storage()._cdata)
    return counts == _ALONE and _is_dense(total)


def check_summed_in_place() -> None:
    """Raises if `summed_in_place` fails with this torch: it goes by reference counts; predictions would be too high."""
    found: list[bool] = []

    class Watch(DirectMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor:
                found.append(summed_in_place(args))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad(), Watch():  # type: ignore[no-untyped-call]
        value = torch.ones(2, requires_grad=True) * 1
        torch.stack([value * 2, value * 3]).sum().backward()  # type: ignore[no-untyped-call]
    if found != [True]:
        raise CannotSimulateError(
            f"torch {torch.__version__} sums gradients in a way that this version of snugfit does not know, so predictions "
            "would be wrong. Use a torch that README.md names, or a newer snugfit."
        )


def _is_dense(tensor: torch.Tensor) -> bool:
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return reach == tensor.numel()


def register_backend(name: str, module: Any) -> None:
    """Registers the pure-Python accelerator; once in a process. `module` becomes `torch.<name>`."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(name, backend_module=module, device_guard=BackendGuard())
    keep_errors_of_backward()
    claim_kernel("aten::empty_strided", _empty_for_values)
    claim_kernel("aten::_copy_from", _copy_values)
    for update in ("aten::_fused_sgd_", "aten::_fused_adagrad_"):  # torch 2.11 to 2.15 has these for Adam only
        if not has_kernel(update, "Meta"):
            claim_kernel(update, _update_in_place, "Meta")


def amend_fake(operator: Any, amend: Callable[[Any, Sequence[Any]], Any]) -> None:
    """Changes what an operator's fake version returns: `amend` gets the result and the positional arguments."""
    from torch._subclasses import fake_impls

    original = fake_impls.op_implementations_dict[operator]

    def amended(mode: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(mode, func, *args, **kwargs)
        with mode:
            return amend(result, args)

    fake_impls.op_implementations_dict[operator] = amended


def suggested_layout(tensor: torch.Tensor) -> torch.memory_format:
    """Returns the memory format that operators assume for a tensor whose strides allow several.

    Source: `c10/core/MemoryFormat.h`; torch's own Python version of it.
    """
    from torch._prims_common import suggest_memory_format

    found: torch.memory_format = suggest_memory_format(tensor)
    return found


def replace_fake(operator: Any, make: Callable[..., Any]) -> None:
    """Replaces an operator's fake version; `make` gets the arguments as fake tensors."""
    from torch._subclasses import fake_impls

    def made(mode: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return make(*args, **kwargs)

    fake_impls.op_implementations_dict.pop(operator, None)  # a later torch may have one of its own
    fake_impls.register_op_impl(operator)(made)


def _empty_for_values(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, **_: Any) -> torch.Tensor:
    """Receives the values of `torch.tensor(..., device=...)`, which torch makes below all modes."""
    made: torch.Tensor = torch._C._acc.create_empty_tensor(tuple(size), dtype)
    return made


def _update_in_place(*_: Any, **__: Any) -> None:
    """One fused kernel that changes weights and state in place and allocates nothing."""


def _copy_values(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copies nothing: fake tensors have no values. A card with values keeps them beside the tensor."""
    target._given_values = source  # type: ignore[attr-defined]
    return target


def given_values(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the CPU tensor from which torch made one of the accelerator, for `torch.tensor(..., device=...)`."""
    values: torch.Tensor = tensor._given_values  # type: ignore[attr-defined]
    return values


def skip_dispatch_rules(mode_class: type) -> None:
    """Skips torch's search for rules of a dispatch mode's class, which costs as much as an operator."""
    from torch._library import simple_registry

    original = simple_registry.find_torch_dispatch_rule

    def find(operator: Any, dispatch_class: type) -> Any:
        return None if dispatch_class is mode_class else original(operator, dispatch_class)

    simple_registry.find_torch_dispatch_rule = find  # type: ignore[assignment]


def let_optimizers_take_fakes() -> None:
    """Makes optimizers and clipping choose multi-tensor kernels for fake tensors, as for real ones."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for types in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        if FakeTensor not in types:
            types.append(FakeTensor)


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
    return not filename.startswith((f"{torch.__path__[0]}{os.sep}", *skip, "<"))


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


def compiler_memory_budget(share: float) -> Any:
    """Returns a context in which the compiler keeps at most this share (0 to 1) of the activations."""
    import torch._functorch.config as compiler

    return compiler.patch(activation_memory_budget=share)


def forget_compiled(model: torch.nn.Module) -> None:
    """Makes a module run eagerly again after `module.compile`."""
    model._compiled_call_impl = None
