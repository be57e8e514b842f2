"""What torch.compile's compiler (inductor) is made of, as far as a simulation has to know it.

Inductor writes Python code that makes buffers, reuses and drops them, and calls generated kernels and library operators in
between. In a simulation all of that runs as it is, on fake tensors; only the kernels are neither compiled nor run.

Source: `torch/_inductor/codegen/wrapper.py`, `async_compile.py`, `codegen/common.py` and `torch/_dynamo/device_interface.py`
of torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from snugfit.attributes import replaced

Kernel = Callable[[list[torch.Tensor], list[torch.Tensor]], None]
"""Told what a generated kernel writes and what it only reads."""
_PROCESSORS = 108
"""Multiprocessors of the card that code is written for: they decide into how many parts a long reduction is split."""
_TRITON_SIGNATURE = re.compile(r"^def triton_\w+\(([^)]*)\)", re.MULTILINE)


def kernels_stand_in(kernel: Kernel) -> list[tuple[Any, str, Any]]:
    """Returns replacements (owner, name, value) that run inductor's code on fake tensors; `kernel` is called instead."""
    from torch._dynamo import trace_rules
    from torch._dynamo.guards import CheckFunctionManager
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
    from torch._inductor.async_compile import AsyncCompile

    def of_cpp(_: Any, argtypes: Sequence[str], source_code: str) -> Any:
        reads = [one.startswith("const ") for one in argtypes]
        return lambda *arguments: _told(kernel, arguments, reads)

    def of_triton(_: Any, kernel_name: str, source_code: str, device_str: str = "") -> Any:
        found = _TRITON_SIGNATURE.search(source_code)
        reads = [name.strip().startswith("in_ptr") for name in found[1].split(",")] if found else []
        return types.SimpleNamespace(run=lambda *arguments, **_: _told(kernel, arguments, reads))

    made = CheckFunctionManager.__init__

    def made_under_modes(*given: Any, **by_name: Any) -> None:
        """Real tensors have other dispatch keys where a mode looks on, as it does when a guard is asked."""
        with ExitStack() as around:
            for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot):
                around.enter_context(torch._C._IncludeDispatchKeyGuard(key))
            made(*given, **by_name)

    guards, rules = torch._C._dynamo.guards, trace_rules.get_torch_obj_rule_map()
    with replaced([(torch.overrides, "has_torch_function", torch._C._has_torch_function)]):
        TorchInGraphFunctionVariable._get_handlers()  # made once as well
    return [
        (CheckFunctionManager, "__init__", made_under_modes),
        # Made once a process, of torch as it is, before anything of it is replaced; a process group has it forgotten.
        (trace_rules, "get_torch_obj_rule_map", functools.cache(lambda: rules)),
        (AsyncCompile, "cpp_pybinding", of_cpp),
        (AsyncCompile, "triton", of_triton),
        # Written in C++ for speed, these go past dispatch modes and subclasses.
        (guards, "_empty_strided_cpu", lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)),
        (guards, "_reinterpret_tensor", _reinterpreted),
    ]


def _told(kernel: Kernel, arguments: Sequence[Any], reads: Sequence[bool]) -> None:
    # What is no tensor is a size, or a number of the host that is read before the card's kernel starts.
    # A signature ends with what is known when it is compiled.
    pairs = zip(arguments, reads[: len(arguments)], strict=True)
    tensors = [(one, read) for one, read in pairs if isinstance(one, torch.Tensor)]
    kernel([one for one, read in tensors if not read], [one for one, read in tensors if read])


def _reinterpreted(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, int(tensor.storage_offset()) + offset)


def never_compile(*functions: Any) -> None:
    """Keeps torch.compile away from functions and all that they call; a decorator would change the caller."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    for function in functions:
        set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def nothing_kept() -> Any:
    """Returns a context in which inductor caches nothing, starts no processes and checks no addresses."""
    from torch._inductor import config

    return config.patch(
        {"force_disable_caches": True, "compile_threads": 1, "size_asserts": False, "alignment_asserts": False}
    )


def processor_is_known() -> None:
    """Finds out, once a process and by a C++ compiler, for which instructions of this processor inductor writes code."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    pick_vec_isa()


def forget_all() -> None:
    """Forgets everything compiled in this process, graph breaks, and whether Triton was of any use."""
    from torch.utils import _triton

    torch._dynamo.reset()
    _triton.has_triton.cache_clear()
    torch._dynamo.utils.counters.clear()


def graphs_made() -> int:
    """Returns how many graphs were compiled in this process since `forget_all`."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def graph_breaks() -> list[str]:
    """Returns why graphs broke since `forget_all`, as the first line of torch's reason, but where code asks for it."""
    reasons = [reason.splitlines()[0] for reason in torch._dynamo.utils.counters["graph_break"] if reason]
    return [reason for reason in reasons if "torch.compiler.disable" not in reason]


def device_stands_in(name: str, capability: tuple[int, int]) -> list[tuple[Any, str, Any]]:
    """Registers a device for which inductor writes as for a CUDA card of this capability; returns replacements."""
    from torch._dynamo import device_interface
    from torch._inductor import compile_fx, cpu_vec_isa, scheduler, utils
    from torch._inductor.codegen import common, triton, wrapper
    from torch._inductor.fx_passes import joint_graph
    from torch.utils import _triton

    properties = types.SimpleNamespace(
        name=name, major=capability[0], minor=capability[1], multi_processor_count=_PROCESSORS, warp_size=32,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    )  # fmt: skip

    class Interface(device_interface.DeviceInterface):
        Event, Stream = torch.Event, torch.Stream

        class Worker:
            get_device_properties = staticmethod(lambda device=None: properties)
            current_device = staticmethod(lambda: 0)

        get_device_properties = staticmethod(lambda device=None: properties)
        get_compute_capability = staticmethod(lambda device=None: capability[0] * 10 + capability[1])
        current_device = staticmethod(lambda: 0)
        device_count = staticmethod(lambda: 1)
        is_available = staticmethod(lambda: True)
        is_triton_capable = staticmethod(lambda device=None: True)
        raise_if_triton_unavailable = staticmethod(lambda device=None: None)
        is_bf16_supported = staticmethod(lambda including_emulation=False: True)
        synchronize = staticmethod(lambda device=None: None)
        get_raw_stream = staticmethod(lambda device_idx: 0)

    class Words(common.DeviceOpOverrides):
        """What generated code writes to be on the right device, where there is only one."""

        def import_get_raw_stream_as(self, name: str) -> str:
            return f"{name} = lambda index: 0"

        def set_device(self, device_idx: Any) -> str:
            return "pass"

        def synchronize(self) -> str:
            return "pass"

        def device_guard(self, device_idx: Any) -> str:
            return "__import__('contextlib').nullcontext()"

    patterns_of_host = joint_graph.lazy_init
    deduce = joint_graph.UniformValueConstantFolder._deduce_value

    def deduce_on_host(self: Any, node: Any) -> Any:
        """Values that are equal everywhere are found by making one, for which this device has no memory."""
        if node.target is torch.ops.prims.device_put.default:
            return self.env[node.args[0]]
        given = node.kwargs
        if given.get("device") is not None:
            node.kwargs = {**given, "device": torch.device("cpu")}
        try:
            return deduce(self, node)
        finally:
            node.kwargs = given

    device_interface.register_interface_for_device(name, Interface)
    common.register_device_op_overrides(name, Words())
    common.register_backend_for_device(name, triton.TritonScheduling, wrapper.PythonWrapperCodegen)
    return [
        (utils, "GPU_TYPES", [name]),
        (scheduler, "has_triton", _triton.has_triton_package),  # older ones ask devices that they know by name
        (joint_graph.UniformValueConstantFolder, "_deduce_value", deduce_on_host),
        (joint_graph, "lazy_init", lambda input_device=None, *_: patterns_of_host(torch.device("cpu"))),
        (compile_fx, "get_input_idxs_to_check", lambda inputs, static: []),  # for inputs that are not aligned
        # For single numbers of the host no compiler is asked what this processor knows.
        (cpu_vec_isa, "pick_vec_isa", lambda: cpu_vec_isa.invalid_vec_isa),
        (_triton, "triton_hash_with_backend", lambda: ""),
        (torch.cuda, "get_device_properties", lambda device=None: properties),
        (device_interface.CudaInterface, "is_available", staticmethod(lambda: False)),
    ]
