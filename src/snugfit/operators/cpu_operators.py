"""What operators of a CPU run take inside themselves, and the layouts of their results: asked of this machine.

Which kernels run, and what scratch they take, depends on the processor's instructions, the threads, the libraries that torch
was built with, shapes, layouts and types. No table could follow that. So every call that is new is made once for real
(`operator_truth`), a large one at smaller sizes (`operator_shrink`), and the answer is kept (`operator_cache`).

What the machine returns also corrects the simulation: where torch's fake version of an operator has results of another
layout or size (oneDNN's LSTM keeps a workspace that torch shows as empty), the real ones are taken.

Not asked, and counted as taking nothing inside: operators that talk to other processes or to files.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from snugfit import private_torch
from snugfit.errors import SnugfitWarning
from snugfit.operators import operator_shrink
from snugfit.operators.kernels import AFTER_ALL, InnerBytes
from snugfit.operators.operator_cache import OperatorCache
from snugfit.operators.operator_call import BY_GRADIENT, describe
from snugfit.operators.operator_costs import OperatorCost
from snugfit.operators.operator_seconds import processors_are_short
from snugfit.operators.operator_shrink import Size
from snugfit.operators.operator_truth import CannotRun, Result, Truth, results_of
from snugfit.processor import Processor, this_processor
from snugfit.recording.operator_run import SPARSE_PRODUCT
from snugfit.techniques.batches import tensors_in

_AGAIN_SECONDS = 0.5
"""How long a process times again, once the machine is quiet, what was timed while it was busy."""
_ELSEWHERE = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor", "rpc", "profiler")
"""Libraries of operators that reach beyond this process."""
_NOT_RUN = (
    "_local_scalar_dense", "from_file", "record_stream", "set_", "resize_", "resize_as_", "_resize_output_", "_pin_memory",
    "_assert_async", "_assert_scalar", "_print", "fused_kernel", SPARSE_PRODUCT,
)  # fmt: skip


class Inner(NamedTuple):
    """What is known of a call: what it takes inside, and its real results."""

    spaces: tuple[InnerBytes, ...]
    """What it takes inside, in order."""
    order: tuple[int, ...]
    """Its new results by the order in which their memory is taken; empty where it is that of the results."""
    corrected: tuple[tuple[int, Result], ...]
    """New results that are not as the fake version has them: their number and what they are."""
    seconds: float | None = None
    """How long it takes on this processor, called from Python; None where that was not asked."""


NOTHING = Inner((), (), ())
"""What is said of calls that are not asked."""


class CpuOperators:
    """The machine's answers for one processor and number of threads."""

    def __init__(self, folder: Path | None = None) -> None:
        """Takes the processor as it is now; answers are kept in `folder` (None: the user's cache folder)."""
        self.processor: Processor = this_processor()
        self._cache = OperatorCache(
            {**self.processor.identity(), "settings": private_torch.processor_settings()}, folder
        )
        self.asked = 0
        """Calls that were not known."""
        self._again_seconds, self._looked_at = _AGAIN_SECONDS, set[str]()

    def ask(
        self,
        operator: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        fakes: Sequence[torch.Tensor],
        cost: OperatorCost,
    ) -> Inner:
        """Returns what a call takes; nothing for what cannot be asked.

        `fakes`: its new results as the fake version has them.
        """
        call = describe(operator, args, kwargs, _gradients(operator)) if _may_run(operator) else None
        if call is None:
            return NOTHING
        digest = call.digest() + _version(operator.namespace)
        answer = self._cache.get(digest)
        again = answer is not None and self._is_timed_again(digest, busy=answer["busy"])
        if answer is None or again:
            self.asked += not again
            busy, begin = processors_are_short(), time.perf_counter()
            size = Size(max(cost.flops, _work(operator, args)), cost.read_bytes + cost.written_bytes)
            try:
                truth, proved = operator_shrink.find(call, size)
            except CannotRun as error:
                warnings.warn(
                    f"{operator} could not be run by itself on this processor ({error}); what it takes inside is "
                    "counted as nothing.",
                    SnugfitWarning,
                    stacklevel=2,
                )
                return NOTHING
            busy = busy or processors_are_short()
            answer = {**_to_plain(truth, results_of(fakes), proved), "busy": busy}
            self._cache.put(digest, answer)
            self._looked_at.add(digest)
            self._again_seconds -= again * (time.perf_counter() - begin)
        if not answer["proved"]:
            shapes = ", ".join("x".join(map(str, layout.shape)) for layout in call.layouts()[:3])
            warnings.warn(
                f"{operator} on {shapes} is too large to be run on this machine, and what it takes inside could not be "
                "proved at smaller sizes: it is scaled up, and the prediction may be wrong by that.",
                SnugfitWarning,
                stacklevel=2,
            )
        return _from_plain(answer, [result.nbytes for result in results_of(fakes)])

    def _is_timed_again(self, digest: str, *, busy: bool) -> bool:
        """Whether what was timed on a busy machine is timed again: it is quiet when this process first asks for it."""
        if not busy or digest in self._looked_at or self._again_seconds <= 0:
            return False
        self._looked_at.add(digest)
        return not processors_are_short()

    def forget(self) -> None:
        """Drops all answers, so that they are asked again."""
        self._cache.forget()

    def results_of(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Result, ...] | None:
        """Returns a call's real results, where the fake version refuses arguments that the real one takes.

        Its results in order, all of them new; None where the real one refuses them as well, or returns anything else.
        """
        returned = operator._schema.returns
        if any(str(one.type) != "Tensor" or one.alias_info is not None for one in returned):
            return None
        unknown = OperatorCost(0, sum(t.numel() * t.dtype.itemsize for t in tensors_in(args)), 0, "", 1, ())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnugfitWarning)
            found = self.ask(operator, args, kwargs, (), unknown)
        results = tuple(result for _, result in found.corrected)
        return results if results and len(results) == len(returned) else None


_known: dict[tuple[Processor, tuple[str, ...]], CpuOperators] = {}


def of_this_processor() -> CpuOperators:
    """Returns the answers for the processor, threads and settings in force now; one object for each combination."""
    key = this_processor(), private_torch.processor_settings()
    if key not in _known:
        _known[key] = CpuOperators()
    return _known[key]


@functools.cache
def _may_run(operator: Any) -> bool:
    if getattr(operator, "_schema", None) is None:  # not an operator but a function over operators, such as a loop
        return False
    return operator.namespace not in _ELSEWHERE and operator._opname not in _NOT_RUN


@functools.cache
def _version(namespace: str) -> str:
    """The version of the library that an operator comes from, unless that is torch."""
    from importlib import metadata

    if namespace in ("aten", "prims", "torch_nn"):
        return ""
    try:
        return f" {namespace} {metadata.version(namespace)}"
    except metadata.PackageNotFoundError:
        return f" {namespace}"


def _gradients(operator: Any) -> bool | None:
    return torch.is_grad_enabled() if operator in BY_GRADIENT else None


def _work(operator: Any, args: Sequence[Any]) -> float:
    """A rough count of floating-point operations where torch has no formula; only tells what is too large to run."""
    name, tensors = operator._opname, tensors_in(args)
    if "scaled_dot_product" in name:
        backward = "backward" in name
        query, key = tensors[int(backward)], tensors[int(backward) + 1]
        return (10.0 if backward else 4.0) * query.numel() * key.shape[-2]
    if "rnn_layer" in name:
        return (4.0 if "backward" in name else 2.0) * tensors[0].shape[0] * tensors[0].shape[1] * sum(
            weight.numel() for weight in tensors[1:3]
        )  # fmt: skip
    if "grouped_mm" in name:
        return 2.0 * tensors[0].numel() * tensors[1].shape[-1]
    if "linalg" in name or "cdist" in name:
        return max((4.0 * one.numel() * max(one.shape, default=1) for one in tensors), default=0.0)
    return 0.0


def _to_plain(truth: Truth, fakes: Sequence[Result], proved: bool) -> dict[str, Any]:
    """An answer as it is stored: results only where they differ from those of the fake version."""
    alike = len(truth.results) == len(fakes)
    differ = [
        [number, list(result.shape), list(result.stride), str(result.dtype), result.nbytes, result.shares]
        for number, result in enumerate(truth.results)
        if not fakes or (alike and not result.same_as(fakes[number]))
    ]
    order = list(truth.order) if truth.order != tuple(range(len(truth.order))) and (alike or not fakes) else []
    return {
        "peaks": list(truth.peaks), "order": order, "results": differ, "proved": proved,
        "seconds": truth.seconds or None,
    }  # fmt: skip


def _from_plain(answer: dict[str, Any], sizes: Sequence[int]) -> Inner:
    corrected = tuple(
        (number, Result(tuple(shape), tuple(stride), getattr(torch, dtype.removeprefix("torch.")), nbytes, shares))
        for number, shape, stride, dtype, nbytes, shares in answer["results"]
    )
    real = dict(enumerate(sizes)) | {number: result.nbytes for number, result in corrected}
    order = tuple(answer["order"])
    in_order = [real.get(number, 0) for number in (order or sorted(real))]
    peaks = answer["peaks"]
    # Only the highest moment can be a peak of the run; the end of the operator, with all results, is one by itself.
    made, moments = 0, list[tuple[int, int, int]]()
    for exist, inner in enumerate(peaks):
        moments.append((made + inner, exist, inner))
        made += in_order[exist] if exist < len(in_order) else 0
    total, exist, inner = max(moments)
    if len(peaks) != len(in_order) + 1:  # results that could not be told apart
        exist, inner, total = AFTER_ALL, max(peaks), made + max(peaks)
    spaces = (InnerBytes(inner, exist),) if inner and total > made else ()
    return Inner(spaces, order, corrected, answer["seconds"])
