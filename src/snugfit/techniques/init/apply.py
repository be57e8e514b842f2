"""A model built on the host, on the device, or without memory, in the dtype its weights are held in."""

from __future__ import annotations

import contextlib
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch

from snugfit.errors import InputError, listed
from snugfit.private_torch.collectives import own_part
from snugfit.techniques.init.late import bring

Meant = Callable[[torch.nn.Module, torch.nn.Parameter], bool]


def _any_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> bool:
    return True


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Sets torch's default dtype for a while."""
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def parameters_on_meta(meant: Meant = _any_parameter) -> Iterator[None]:
    """Gives parameters no memory while a model is built; buffers are built for real.

    A parameter exists for the moment between its creation and its registration, so the host holds one at a time. One
    that is registered twice (tied weights) stays one.
    `meant`: which parameters, of which modules; any other becomes meta only where it is tied to one of these.
    """
    seen: dict[int, tuple[weakref.ref[torch.nn.Parameter], torch.nn.Parameter]] = {}

    def to_meta(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> torch.nn.Parameter | None:
        if parameter.is_meta:
            return None
        known = seen.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return known[1]
        if not meant(module, parameter):
            return None
        made = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        seen[id(parameter)] = (weakref.ref(parameter), made)
        return made

    handle = torch.nn.modules.module.register_module_parameter_registration_hook(cast(Callable[..., None], to_meta))
    try:
        yield
    finally:
        handle.remove()


def build(
    make: Callable[[], torch.nn.Module],
    *,
    init: str,
    device: torch.device,
    dtype: torch.dtype | None,
    first: bool = True,
) -> torch.nn.Module:
    """Builds a model in the way that `init` names.

    `dtype`: dtype of its floating-point parameters and buffers; None leaves them alone.
    `first`: whether this process is the first of those that train the model together, or alone. The others get their
    weights from it, and build none unless the constructor needs them.
    Returns the model: under `host` still on the host in its own dtype (`settle` moves it, once its weights are in),
    under `device` in place, under `meta` with parameters that have no memory (`give_memory` gives it).
    """
    if not first and init != "device":
        empty = without_weights(make)
        if empty is not None:
            return empty
    if init == "host":
        return make()
    if init == "device":
        with device, default_dtype(dtype):
            return make()
    with parameters_on_meta():
        return make()


def without_weights(make: Callable[[], torch.nn.Module], meant: Meant = _any_parameter) -> torch.nn.Module | None:
    """Builds a model whose parameters have no memory.

    Returns the model; None where its constructor looks at the values of parameters, or keeps copies of them.
    """
    try:
        with parameters_on_meta(meant), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pretrained values that go nowhere
            model = make()
    except Exception:  # whatever it is: built with values it happens again, or does not
        return None
    kept = (value for module in model.modules() for value in vars(module).values())
    return None if any(isinstance(value, torch.Tensor) and value.is_meta for value in kept) else model


def settle(model: torch.nn.Module, *, device: torch.device, dtype: torch.dtype | None) -> torch.nn.Module:
    """Moves a model to its device and dtype, one tensor at a time; reads the awaited ones, keeps what is there already.

    A wider dtype is cast before it moves, so the device never holds the wider one. What was moved is freed before the
    next one comes, unless somebody else holds it. Tied tensors stay tied, buffers too. Complex and integer tensors keep
    their dtype, and so do the float tables that modules of transformers do not save (`own_tables`).
    """
    bring(model, device, dtype)
    kept = {id(table) for table in own_tables(model)} if dtype is not None else set()
    buffers: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def final_dtype(tensor: torch.Tensor) -> torch.dtype:
        return tensor.dtype if dtype is None or not tensor.is_floating_point() or id(tensor) in kept else dtype

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        known = buffers.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if own_part(tensor) is not tensor:  # shared out already, and where its recipe wants it
            return tensor
        final = final_dtype(tensor)
        if tensor.is_meta:  # its values are another process's, and come later
            return tensor if tensor.dtype == final else tensor.to(final)
        if final.itemsize <= tensor.dtype.itemsize:
            made = tensor.to(final).to(device)
        else:
            made = tensor.to(device).to(final)
        # By `id`, checked with a weak reference: an id is used again once its tensor has died.
        if made is not tensor and not isinstance(tensor, torch.nn.Parameter):  # a parameter stays the same object
            buffers[id(tensor)] = (weakref.ref(tensor), made)
        return made

    # The hook of all modules would put new tensors in place also where nothing moves, which weights that others hold
    # (DistributedDataParallel's) do not bear.
    if all(
        one.device == device and one.dtype == final_dtype(one)
        for one in itertools.chain(model.parameters(), model.buffers())
    ):
        return model
    # By way of the hook of all modules: those that keep more than parameters and buffers (recurrent layers) extend it.
    model._apply(moved)  # type: ignore[no-untyped-call]
    return model


def own_tables(model: torch.nn.Module) -> list[torch.Tensor]:
    """Finds float buffers of transformers' modules that are not saved: angles of rotary positions and the like.

    The library leaves them in float32 whatever the dtype of the weights, and casts the products itself: in bf16 the angle at
    position 500 would be off by 0.09. Other libraries' modules expect their buffers in the dtype of their inputs.
    """
    return [
        buffer
        for module in model.modules()
        if type(module).__module__.startswith("transformers.")
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.is_floating_point() and name in module._non_persistent_buffers_set
    ]


def give_memory(model: torch.nn.Module, *, device: torch.device, dtype: torch.dtype | None) -> None:
    """Gives a model from `meta` its memory, without values; what is tied stays tied.

    `dtype`: dtype of floating-point tensors; None keeps the constructor's.
    """
    made: dict[torch.Tensor, torch.Tensor] = {}

    def with_memory(tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in made:
            target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            memory = torch.empty_strided(tensor.shape, tensor.stride(), dtype=target, device=device)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made[tensor] = torch.nn.Parameter(memory, tensor.requires_grad) if is_parameter else memory
        return made[tensor]

    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                # A buffer that no file holds is left to its module.
                if tensor is not None and tensor.is_meta and name not in module._non_persistent_buffers_set:
                    table[name] = with_memory(tensor)  # type: ignore[assignment]


@torch.no_grad()
def draw_rest(model: torch.nn.Module, names: Iterable[str]) -> None:
    """Lets modules make what no file holds (`names`); `InputError` where a module has no way to."""
    _remake_buffers(model)
    named = dict(model.named_parameters(remove_duplicate=False))
    unread = {named[name] for name in names}
    for prefix, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter in unread]
        if not own:
            continue
        reset = getattr(module, "reset_parameters", None)
        if reset is None or len(own) < len(list(module.parameters(recurse=False))):
            raise InputError(
                f"init='meta' cannot draw fresh values for {listed(names, 3)}: module {prefix!r} "
                f"({type(module).__name__}) has no reset_parameters for them. Use init='device' or init='host'."
            )
        reset()


def _remake_buffers(model: torch.nn.Module) -> None:
    """Makes those buffers again that were built from parameters on meta and that no file holds."""
    for prefix, module in model.named_modules():
        lost = [name for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta]
        if not lost:
            continue
        remake = getattr(module, "init_non_persistent_buffers", None)  # timm's name for just this
        if callable(remake):
            remake()
        left = [name for name in lost if (buffer := module._buffers[name]) is not None and buffer.is_meta]
        if left:
            raise InputError(
                f"init='meta' cannot build this model: buffer {listed(left, 3)} of {prefix or 'the model'} is made from "
                "parameters, which have no values while it is built. Use init='device' or init='host'."
            )
