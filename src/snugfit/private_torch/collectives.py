"""Operators of `torch.distributed`, as a dispatch mode sees them: their arguments, their results, and what is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import _disable_current_modes

COLLECTIVES, FUNCTIONAL = "c10d", "_c10d_functional"
"""Namespaces of the operators that reach a process group, and of those that make their results and call the former."""


def register_process_group(name: str, device_type: str) -> None:
    """Gives a kind of device, and the host beside it, a process group of their own, which is gloo's.

    Args:
        name: Its name among the backends of `init_process_group`.
        device_type: The kind of device.
    """
    dist.Backend.register_backend(name, dist.ProcessGroupGloo, devices=["cpu", device_type])


def group_of(script: Any) -> dist.ProcessGroup:
    """Returns the process group among an operator's arguments."""
    return dist.ProcessGroup.unbox(script)


def is_average(script: Any) -> bool:
    """Returns whether a reduction among an operator's arguments is one that divides by the number of ranks.

    Raises:
        NotImplementedError: It multiplies by a factor, which torch does not tell.
    """
    kind = script.op()
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM.value:  # type: ignore[attr-defined]
        raise NotImplementedError("the pretend card has no PREMUL_SUM; reduce by SUM and multiply the result.")
    return bool(kind == dist.ReduceOp.RedOpType.AVG.value)  # type: ignore[attr-defined]


def sum_of_ranks() -> Any:
    """Returns the reduction SUM as an operator takes it."""
    return torch.classes.c10d.ReduceOp()


def start(operator: Any, args: Sequence[Any]) -> Any:
    """Starts a collective on CPU tensors; returns its work, with `wait`.

    Args:
        operator: The overload.
        args: Its positional arguments.
    """
    with _disable_current_modes():
        made = operator(*args)
    return dist.Work.unbox(made[-1] if isinstance(made, tuple) else made)


def result_of(operator: Any, args: Sequence[Any], wait: Callable[[], None]) -> Any:
    """Returns what a collective returns that is under way: its outputs where it returns them, and a work.

    Args:
        operator: The overload.
        args: Its positional arguments.
        wait: Called when the work is waited for.
    """

    def waited(timeout: Any) -> bool:
        wait()
        return True

    work = torch._C._distributed_c10d.PythonCallbackWork(waited).boxed()
    return (args[0], work) if len(operator._schema.returns) > 1 else work


@contextmanager
def before_groups_change(callback: Callable[[], None]) -> Iterator[None]:
    """Calls a function before the host waits for other ranks because a process group is made or given up.

    Args:
        callback: The function.

    Yields:
        Nothing.
    """
    make, destroy = distributed_c10d._new_process_group_helper, dist.destroy_process_group

    def made(*args: Any, **kwargs: Any) -> Any:
        callback()
        return make(*args, **kwargs)

    def destroyed(*args: Any, **kwargs: Any) -> None:
        callback()
        destroy(*args, **kwargs)

    distributed_c10d._new_process_group_helper = made
    dist.destroy_process_group = destroyed
    try:
        yield
    finally:
        distributed_c10d._new_process_group_helper = make
        dist.destroy_process_group = destroy


def replicate(module: torch.nn.Module, **settings: Any) -> Any:
    """Lets several processes train one module, each holding all of it, by the machinery of `fully_shard`.

    Args:
        module: The module.
        **settings: mesh, mp_policy, offload_policy.
    """
    from torch.distributed._composable.replicate_with_fsdp import replicate as torch_replicate

    return torch_replicate(module, **settings)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what this process holds of a tensor that several share out; of any other one, itself."""
    found: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def init_alone(ranks: int, number: int, device_type: str) -> None:
    """Makes this process one of several, the others of which do not exist: torch's own fake process group.

    Args:
        ranks: How many there are.
        number: Which one this is.
        device_type: The kind of device, beside the host, that collectives may be asked of.
    """
    from torch.testing._internal.distributed import fake_pg

    if device_type not in dist.Backend.backend_capability["fake"]:
        dist.Backend.backend_capability["fake"].append(device_type)
        dist.Backend.default_device_backend_map.setdefault(device_type, "fake")
    dist.init_process_group("fake", rank=number, world_size=ranks, store=fake_pg.FakeStore())


def knows_groups() -> bool:
    """Returns whether there are process groups, so that DTensors and collectives may come."""
    return dist.is_available() and dist.is_initialized()
