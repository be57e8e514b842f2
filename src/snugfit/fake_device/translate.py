"""Hand-written code says "cuda"; in a simulation that reaches the fake accelerator.

`tensor.cuda()`, `to("cuda")`, `device="cuda"`, `torch.autocast("cuda")`, `torch.amp.GradScaler("cuda")`, `tensor.is_cuda`
and the functions of `torch.cuda` that training code calls (`is_available`, `synchronize`, `empty_cache`, memory statistics,
streams and events) are led to `torch.sim` while the context is open. What cannot be translated is the text of a device:
`tensor.device.type` is `sim`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from snugfit.attributes import Change, replaced
from snugfit.device_kinds import CPU, CUDA
from snugfit.fake_device import multihead_kernels
from snugfit.fake_device.accelerator import Backend, backend
from snugfit.fake_device.old_types import converted, old_types
from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.private_torch.backward_errors import backward_under
from snugfit.private_torch.fake_tensors import FAKES
from snugfit.private_torch.library_classes import replace_data

numbers_named: set[int] = set()
"""Which cards code has named by number: there is one."""


def device_of(value: Any) -> Any:
    """Returns the fake device for a CUDA device or its name, and anything else as it is."""
    if isinstance(value, str) and (value == CUDA or value.startswith(f"{CUDA}:")):
        return _card(value.partition(":")[2])
    if isinstance(value, torch.device) and value.type == CUDA:
        return _card(value.index)
    return value


def _card(number: Any) -> torch.device:
    """The fake device in place of a card, whose number is noted."""
    if str(number).isdecimal():
        numbers_named.add(int(number))
    return torch.device(DEVICE_TYPE, 0)


class _CudaMeansSim(TorchFunctionMode):
    """Changes CUDA devices among the arguments of torch functions."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a torch function on the fake device where it asks for CUDA."""
        kwargs = kwargs or {}
        if func in _TRANSLATED:
            if func is torch.Tensor.cuda:
                blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
                device = kwargs.get("device", args[1] if len(args) > 1 else None)
                card = _card(device) if device is None or isinstance(device, int) else device_of(device)
                return args[0].to(card, non_blocking=blocking)
            if func == _IS_CUDA:
                return args[0].device.type == DEVICE_TYPE
            if func is torch.Tensor.type:
                made = converted(args[0], args[1]) if len(args) > 1 else None
                return func(*args, **kwargs) if made is None else made
            if func in _CTC:
                return func(*_of_ctc_on_card(*args), **kwargs)
            if func is torch.device:  # its type and its index may come apart
                return device_of(func(*args, **kwargs))
            fakes = [type(one) in FAKES for one in args[:2]]
            if any(fakes) and (not all(fakes) or args[0].device.type != args[1].device.type):
                return replace_data(*args)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": device_of(kwargs["device"])}
        for argument in args:
            if isinstance(argument, _DEVICE_LIKE):
                args = tuple(map(device_of, args))
                break
        return func(*args, **kwargs)


_PLACES = (torch.cuda, torch.cuda.random, torch.cuda.memory, torch.cuda.profiler)
"""Modules by which code asks for functions of the card: some by the one in which torch defines them."""
_DEVICE_LIKE = (str, torch.device)
_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_CTC = (torch.ctc_loss, torch.nn.functional.ctc_loss)
_TRANSLATED = frozenset({torch.Tensor.cuda, torch.Tensor.type, *_CTC, torch.device, _IS_CUDA, _SET_DATA})


def _of_ctc_on_card(log_probs: torch.Tensor, *given: Any) -> Sequence[Any]:
    """Returns what `torch.ctc_loss` was given, with labels and lengths where the card's version brings them by itself."""
    if log_probs.device.type != DEVICE_TYPE:
        return log_probs, *given
    moved = [torch.as_tensor(one, device=log_probs.device) for one in given[:3]]
    return log_probs, *moved, *given[3:]


def told(function: Callable[..., Any], tell: Callable[[torch.Tensor], None]) -> list[Change]:
    """Returns the replacement that reports every result of a torch function, such as `torch.isfinite`."""

    def telling(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not torch.compiler.is_compiling():  # what is traced has no values, and is no result yet
            tell(result)
        return result

    return [(torch, function.__name__, telling)]


def pool_on_host(as_host: Callable[[], AbstractContextManager[None]]) -> list[Change]:
    """Returns the replacement that counts the host pool of a simulated CPU run as host memory."""
    from snugfit.techniques.host_pool import HostPool

    original = HostPool.empty

    def empty(self: Any, shape: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> torch.Tensor:
        before, self.device = self.device, torch.device("meta")
        try:
            with as_host():
                return original(self, shape, dtype, *args, **kwargs)
        finally:
            self.device = before

    return [(HostPool, "empty", empty)]


def names_of_cuda() -> list[str]:
    """Returns the names of `torch.cuda` that the fake accelerator answers to as well."""
    own = [*vars(Backend), "Stream", "Event"]
    return [name for name in own if not name.startswith("__") and any(hasattr(place, name) for place in _PLACES)]


@contextmanager
def cuda_means_sim() -> Iterator[None]:
    """Context in which everything that says "cuda" reaches the fake accelerator."""
    from torch.amp import autocast_mode, grad_scaler

    names = names_of_cuda()
    changes: list[Change] = [
        (place, name, getattr(backend, name)) for place in _PLACES for name in names if hasattr(place, name)
    ]
    autocast_init = autocast_mode.autocast.__init__
    scaler_init = grad_scaler.GradScaler.__init__

    def make_autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        autocast_init(self, DEVICE_TYPE if device_type == CUDA else device_type, *args, **kwargs)

    def make_scaler(self: Any, device: str = CUDA, *args: Any, **kwargs: Any) -> None:
        if not isinstance(device, str):
            device, args = CUDA, (device, *args)  # type: ignore[unreachable]
        scaler_init(self, DEVICE_TYPE if device == CUDA else device, *args, **kwargs)

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            kind = torch.device(device).type
            return super().__new__(cls, CPU if kind in (CUDA, DEVICE_TYPE) else device)  # type: ignore[call-arg]

        def set_state(self, new_state: torch.Tensor) -> Any:
            """Keeps the state where the new one has no values: it went over the card, from the first process to all."""
            return self if type(new_state) in FAKES else super().set_state(new_state)

    changes += old_types()
    changes.append((torch, "Generator", Generator))
    changes.append((torch.overrides, "has_torch_function", multihead_kernels.has_torch_function))
    changes.append((autocast_mode.autocast, "__init__", make_autocast))
    changes.append((grad_scaler.GradScaler, "__init__", make_scaler))
    numbers_named.clear()
    mode = _CudaMeansSim()
    changes += backward_under(mode)
    with replaced(changes), mode:
        yield
