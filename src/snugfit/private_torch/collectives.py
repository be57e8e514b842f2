"""Operators of `torch.distributed`, as a dispatch mode sees them: their arguments, their results, and what is waited for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

_T = TypeVar("_T")
COLLECTIVES, FUNCTIONAL = "c10d", "_c10d_functional"
"""Namespaces of the operators that reach a process group, and of those that make their results and call the former."""


def register_process_group(name: str, device_type: str) -> None:
    """Registers a backend of `init_process_group` for a kind of device and the host, carried out by gloo."""
    dist.Backend.register_backend(name, dist.ProcessGroupGloo, devices=["cpu", device_type])


def named_arguments(operator: Any, args: Sequence[Any]) -> dict[str, Any]:
    """Returns a collective's positional arguments by name; omitted ones are not in the result."""
    return dict(zip((argument.name for argument in operator._schema.arguments), args, strict=False))


def group_of(script: Any) -> dist.ProcessGroup:
    """Returns the process group among an operator's arguments."""
    return dist.ProcessGroup.unbox(script)


def is_average(script: Any) -> bool:
    """Returns whether a reduction divides by the number of ranks; `NotImplementedError` for one with a factor."""
    kind = script.op()
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM.value:  # type: ignore[attr-defined]
        raise NotImplementedError("the pretend card has no PREMUL_SUM; reduce by SUM and multiply the result.")
    return bool(kind == dist.ReduceOp.RedOpType.AVG.value)  # type: ignore[attr-defined]


def sum_of_ranks() -> Any:
    """Returns the reduction SUM as an operator takes it."""
    return torch.classes.c10d.ReduceOp()


def start(operator: Any, args: Sequence[Any]) -> Any:
    """Starts a collective on CPU tensors; returns its work, with `wait`."""
    with _disable_current_modes():
        made = operator(*args)
    return dist.Work.unbox(made[-1] if isinstance(made, tuple) else made)


def result_of(
    operator: Any,
    args: Sequence[Any],
    wait: Callable[[], None],
    future: Callable[[], list[torch.Tensor]] = lambda: [],
) -> Any:
    """Returns the result of a collective under way: outputs, if any, and a work that calls `wait`.

    `future`: called where DDP asks for what will come; returns the tensors it has issued.
    """
    work = _UnderWay(wait, future).boxed()
    return (args[0], work) if len(operator._schema.returns) > 1 else work


class _UnderWay(dist.Work):
    """The work of a collective that nobody carries out, until it is waited for."""

    _all: ClassVar[set[_UnderWay]] = set()
    """Torch keeps its own half of a work only, which cannot call this one once it is gone."""

    def __init__(self, wait: Callable[[], None], future: Callable[[], list[torch.Tensor]]) -> None:
        super().__init__()
        self._wait, self._future = wait, future
        self._all.add(self)

    def wait(self, timeout: Any = None) -> bool:
        """Says that it is waited for."""
        self._over()
        return True

    def _over(self) -> None:
        self._all.discard(self)
        self._wait()

    def get_future(self) -> Any:
        """Returns its tensors as if they had come: only DDP asks so, and waits for all of them at the end of backward."""
        future: Any = torch.futures.Future()
        future.set_result(self._future())
        torch.autograd.Variable._execution_engine.queue_callback(self._over)
        return future


@contextmanager
def before_groups_change(callback: Callable[[], None]) -> Iterator[None]:
    """Context in which a callback runs before the host waits for other ranks to make or destroy a group."""
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


def own_part(tensor: _T) -> _T:
    """Returns what this process holds of a sharded tensor; anything else as it is."""
    found: _T = getattr(tensor, "_local_tensor", tensor)
    return found


def lying_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns a sharded tensor laid out as another one; partial sums are added up. Plain tensors come back as they are."""
    placements = getattr(other, "placements", None)
    if placements is None or getattr(tensor, "placements", placements) == placements:
        return tensor
    found: torch.Tensor = tensor.redistribute(placements=placements)  # type: ignore[attr-defined]
    return found


def forget_layouts() -> None:
    """Clears torch's caches for sharded tensors, names of groups included."""
    from torch.distributed.tensor import debug

    debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


@functools.cache
def styles_of_transposed() -> tuple[Any, Any]:
    """Returns torch's ways to cut a linear layer (by outputs, by inputs) for one with a transposed matrix."""
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    def cut(style: Any, module: torch.nn.Module, mesh: DeviceMesh, placements: dict[int, Any]) -> torch.nn.Module:
        def partition(_: str, layer: torch.nn.Module, mesh: DeviceMesh) -> None:
            for name, weight in list(layer.named_parameters()):
                part = distribute_tensor(weight, mesh, [placements[weight.dim()]], src_data_rank=None)
                layer.register_parameter(name, torch.nn.Parameter(part, requires_grad=weight.requires_grad))

        takes, gives = style._prepare_input_fn, style._prepare_output_fn
        return distribute_module(
            module,
            mesh,
            partition,
            functools.partial(takes, style.input_layouts, style.desired_input_layouts),
            functools.partial(gives, style.output_layouts, style.use_local_output),
        )

    class Columns(ColwiseParallel):
        def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
            # The matrix is [inputs, outputs]: outputs are its dimension 1, and the only one of the bias.
            return cut(self, module, device_mesh, {2: Shard(1), 1: Shard(0)})

    class Rows(RowwiseParallel):
        def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
            self.desired_input_layouts = (Shard(-1),)
            return cut(self, module, device_mesh, {2: Shard(0), 1: Replicate()})

    return Columns, Rows


def taken_apart(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Returns this process's part of a tensor, and a function that makes the sharded one of it again."""
    part = own_part(tensor)
    if part is tensor:
        return part, lambda again: again
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    mesh, placements, shape, stride = tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()
    return part, lambda again: DTensor.from_local(again, mesh, placements, run_check=False, shape=shape, stride=stride)


def knows_groups() -> bool:
    """Returns whether there are process groups, so that DTensors and collectives may occur."""
    return dist.is_available() and dist.is_initialized()


def store_of_launcher(timeout: Any) -> Any:
    """Returns the store that torch elastic holds for the processes it has started."""
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://", timeout=timeout))[0]
