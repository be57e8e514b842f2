"""Operators of `torch.distributed`, as a dispatch mode sees them: their arguments, their results, and what is waited for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

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


def result_of(operator: Any, args: Sequence[Any], wait: Callable[[], None]) -> Any:
    """Returns the result of a collective under way: outputs, if any, and a work that calls `wait`."""

    def waited(timeout: Any) -> bool:
        wait()
        return True

    work = torch._C._distributed_c10d.PythonCallbackWork(waited).boxed()
    return (args[0], work) if len(operator._schema.returns) > 1 else work


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


class Watch(Protocol):
    """Told of what `fully_shard` does with the units of a model."""

    def gradients(self, weights: list[Any], here: list[bool]) -> None:
        """Called before a unit's summed gradients arrive; `here`: whether this process has one, by parameter."""

    def before(self, number: int, way: str) -> None:
        """Called before a unit, by number, asks the other processes for something.

        `way`: "collects the weights", "adds up the gradients"; "misses the backward pass", where its gradients have
        come without it being collected for them; or "has other weights", where somebody has put some in their place.
        """

    def whole(self, weights: list[tuple[Any, Any]], *, there: bool) -> None:
        """Called when a unit was collected (`there`) and before it is freed, with each share and its whole."""


def watch_shared_out(model: torch.nn.Module, watch: Watch) -> None:
    """Makes `fully_shard` send zeros for parameters that have a gradient only in other processes.

    Torch sends only what is there, and processes with other gradients than the others then wait in vain, or mix them
    up. (`set_reduce_scatter_unused_params`, of torch 2.14, does not tell which they were.) A unit without any gradient
    sends none: it is used once more, and they come then.
    """
    from torch.distributed.fsdp import FSDPModule

    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for number, module in enumerate(modules):
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)  # a single group, by another name, in the first versions
        for group in [state._fsdp_param_group] if groups is None else groups:
            if group is not None:
                # On the instance, where `fully_shard` finds them before those of the class: other models' units stay as
                # they are.
                vars(group).update(
                    post_backward=functools.partial(_filled, group, group.post_backward, watch, number),
                    unshard=functools.partial(_collected, group, group.unshard, watch, number),
                    _to_unsharded=functools.partial(_came, group, group._to_unsharded, watch),
                    _to_sharded=functools.partial(_goes, group, group._to_sharded, watch),
                )


def _collected(group: Any, unshard: Callable[..., None], watch: Watch, number: int, *args: Any) -> None:
    for param in group.fsdp_params:
        # Weights that are lent for a call (torch.func.functional_call) lie in the module's own table.
        info = param._module_info
        weight = info.module._parameters.get(info.param_name)
        if weight is not param.sharded_param and weight is not getattr(param, "_unsharded_param", None):
            watch.before(number, "has other weights")
    watch.before(number, "collects the weights")
    unshard(*args)


def _came(group: Any, to_unsharded: Callable[[], None], watch: Watch) -> None:
    to_unsharded()
    watch.whole([(param.sharded_param, param._unsharded_param) for param in group.fsdp_params], there=True)


def _goes(group: Any, to_sharded: Callable[[], None], watch: Watch) -> None:
    if group.is_unsharded:
        watch.whole([(param.sharded_param, param._unsharded_param) for param in group.fsdp_params], there=False)
    to_sharded()


def _filled(group: Any, post_backward: Callable[..., None], watch: Watch, number: int, *args: Any) -> None:
    params = [param for param in group.fsdp_params if group.reduce_grads and hasattr(param, "_unsharded_param")]
    trained = [param for param in params if param._unsharded_param.requires_grad]
    there = [
        param._unsharded_param.grad is not None or param.unsharded_accumulated_grad is not None for param in trained
    ]
    if any(there):
        # Torch has not seen this unit's backward pass begin, in which it collects the weights once more.
        unseen = group._training_state.name != "PRE_BACKWARD"
        watch.before(number, "misses the backward pass" if unseen else "adds up the gradients")
        for param, here in zip(trained, there, strict=True):
            if not here:
                whole = param._unsharded_param
                whole.grad = torch.zeros_like(whole, dtype=getattr(whole, "grad_dtype", None))
        watch.gradients([param.sharded_param for param in trained], there)
    post_backward(*args)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what this process holds of a sharded tensor; any other tensor as it is."""
    found: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
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


def init_alone(ranks: int, number: int, device_type: str) -> None:
    """Makes this process one of `ranks` that do not exist, by torch's own fake process group."""
    from torch.testing._internal.distributed import fake_pg

    if device_type not in dist.Backend.backend_capability["fake"]:
        dist.Backend.backend_capability["fake"].append(device_type)
        dist.Backend.default_device_backend_map.setdefault(device_type, "fake")
    dist.init_process_group("fake", rank=number, world_size=ranks, store=fake_pg.FakeStore())


def forget_shares(model: torch.nn.Module) -> None:
    """Makes torch forget that it sharded a model whose modules are plain again."""
    from torch.distributed._composable_state import _module_state_mapping

    for module in model.modules():
        _module_state_mapping.pop(module, None)


def meshes_with_numbers() -> list[tuple[Any, str, Any]]:
    """Returns replacements for methods of meshes that would read process numbers from tensors."""

    def outside(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return method(*args, **kwargs)

        return called

    names = ("__init__", "__getitem__", "_flatten", "_unflatten", "get_group", "get_local_rank", "get_coordinate")
    found = {name: vars(DeviceMesh).get(name) for name in names}
    return [(DeviceMesh, name, outside(method)) for name, method in found.items() if method is not None]


class OwnChunk:
    """The pieces of a tensor, like `torch.chunk`'s for all processes, each cut only when it is asked for."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._size = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, number: int) -> torch.Tensor:
        """Returns the piece of one process; an empty tensor where none is left for it."""
        start = number * self._size
        left = self._tensor.size(self._dim) - start
        if left <= 0 and number:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._size, left))


def only_own_chunks() -> tuple[Any, str, Any]:
    """Returns replacements for torch's cutting of parameters for all processes, when one needs only its own."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    return (_fsdp_param, "_chunk_with_empty", OwnChunk)


def shares_by_storage() -> tuple[Any, str, Any]:
    """Returns replacements for how torch recognises its own shares by address.

    Fake tensors have no addresses, so each share of odd size would be padded and copied once more.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    pad_again = FSDPParam.reset_sharded_param

    def reset(self: Any) -> None:
        weight = getattr(self._module_info.module, self._module_info.param_name)
        shares = (self._sharded_param_data, weight._local_tensor)
        if weight is not self.sharded_param or len({one.untyped_storage()._cdata for one in shares}) > 1:
            pad_again(self)  # type: ignore[no-untyped-call]

    return (FSDPParam, "reset_sharded_param", reset)


@functools.cache
def gathering() -> tuple[Any, ...]:
    """Returns the operators of `fully_shard` that put collected parameters where the model finds them."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives  # defines them

    assert _fsdp_collectives is not None
    return (torch.ops.fsdp.split_with_sizes_copy.default,)


def knows_groups() -> bool:
    """Returns whether there are process groups, so that DTensors and collectives may occur."""
    return dist.is_available() and dist.is_initialized()


def store_of_launcher(timeout: Any) -> Any:
    """Returns the store that torch elastic holds for the processes it has started."""
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://", timeout=timeout))[0]
