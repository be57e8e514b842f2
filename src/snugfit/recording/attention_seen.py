"""Which attention kernels a recording took: read off its operators. Imports no torch."""

from __future__ import annotations

from snugfit.recording.trace import Trace

_NAMES = {
    "aten._scaled_dot_product_flash_attention.default": "flash",
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "flash",
    "aten._scaled_dot_product_cudnn_attention.default": "cudnn",
    "aten._scaled_dot_product_efficient_attention.default": "memory-efficient",
    "aten._safe_softmax.default": "math",
}
"""Operator -> kernel, as people call it; the math path is made of other operators, and only it takes this softmax."""


def attention_seen(trace: Trace) -> dict[str, int]:
    """Returns which kernels of torch's attention ran, and in how many modules.

    Kernel -> number of modules; empty where the model has no attention, or writes it out by itself (eager).
    """
    modules: dict[str, set[str]] = {}
    seen = dict.fromkeys((run.operator, run.module) for run in trace.runs)
    for operator, module in (*seen, *trace.taken_apart):
        name = _NAMES.get(operator)
        if name is not None:
            modules.setdefault(name, set()).add(module)
    return {name: len(places) for name, places in sorted(modules.items())}
