"""Records a function on the fake device: all that is told to torch and to libraries meanwhile, around the recorder."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from snugfit import phases
from snugfit.attributes import Change, replaced
from snugfit.fake_device.flex_kernel import fused_flex_attention
from snugfit.fake_device.library_kernels import stand_ins
from snugfit.fake_device.personality import Personality
from snugfit.fake_device.translate import cuda_means_sim, pool_on_host, told
from snugfit.fake_device.triton_kernels import triton_launches
from snugfit.private_torch import late_compiler
from snugfit.recorder.recorder import Recorder
from snugfit.recorder.registration import simulating, threads_of
from snugfit.recorder.sparse_gradients import sparse_gradients
from snugfit.recording.recording import Recording
from snugfit.uncollected import uncollected
from snugfit.values.assumptions import Assumptions
from snugfit.values.chance import Chance
from snugfit.values.detector_counts import stated_counts
from snugfit.values.given_arrays import arrays_given
from snugfit.values.library_answers import library_answers


def record(
    run: Callable[[Any], None],
    personality: Personality,
    captured: Iterable[Any] = (),
    assumptions: Assumptions | None = None,
    chance: Chance | None = None,
    kind: type[Recorder] = Recorder,
) -> Recording:
    """Records `run(recorder)` on the fake device; only in a worker, where the fake accelerator is registered.

    `chance`: what random numbers are taken to be, and gets who asked; None: each at its middle.
    """
    recorder = kind(personality, assumptions)
    recorder.bring(captured)
    if chance is not None:
        recorder.values.chance = chance
    with late_compiler.not_loaded_within(), uncollected(), ExitStack() as around:
        around.enter_context(phases.listen(recorder.on_phase))
        around.enter_context(simulating())
        around.enter_context(threads_of(personality))
        around.enter_context(recorder)
        answers = [*told(torch.get_rng_state, recorder.saw), *told(torch.isfinite, recorder.values.is_true)]
        answers += sparse_gradients(recorder.answered.add)
        if personality.is_card:
            around.enter_context(cuda_means_sim())
            answers += [*pages_locked(recorder.locked), *kept_for_streams(recorder.answered.add)]
        else:
            answers += pool_on_host(recorder.host_pool)
        around.enter_context(replaced(answers))
        around.enter_context(_libraries_told(recorder, personality.kind))
        run(recorder)
        trace = recorder.build()
    return Recording(
        trace=trace,
        answered=tuple(sorted(recorder.answered)),
        torch_version=str(torch.__version__),  # torch has a class of its own for it
        processor=recorder.processor,
        same_on=recorder.card.same,
    )


@contextmanager
def _libraries_told(recorder: Recorder, kind: str) -> Iterator[None]:
    """Context in which loaded libraries are told what they cannot see, those too that a script imports within it.

    What is new is looked for when a module is entered: a model that needs the answers is built by then.
    """
    told_of: set[tuple[int, str]] = set()
    loaded = 0

    def look(*_: object) -> None:
        nonlocal loaded
        if torch.compiler.is_compiling():  # a compiler would hold its code for right as long as nothing is imported
            return
        if len(sys.modules) == loaded:
            return
        loaded = len(sys.modules)
        changes = [
            *stand_ins(kind),
            *(fused_flex_attention(recorder.answered.add) if kind != "cpu" else ()),
            *triton_launches(kind, recorder.answered.add),
            *stated_counts(recorder.answered.add),
            *library_answers(recorder.values, recorder.answered.add, recorder.ledger.category),
            *arrays_given(recorder.values),
        ]
        new = [(owner, name, value) for owner, name, value in changes if (id(owner), name) not in told_of]
        told_of.update((id(owner), name) for owner, name, _ in new)
        replacements.enter_context(replaced(new))

    with ExitStack() as replacements:
        look()
        replacements.callback(register_module_forward_pre_hook(look).remove)
        yield


def kept_for_streams(answered: Callable[[str], None]) -> list[Change]:
    """Replacement for what keeps memory until a stream is done with it; when that is, no recording knows."""

    def record_stream(tensor: torch.Tensor, *_: object) -> None:
        answered(STREAMS)

    return [(torch.Tensor, "record_stream", record_stream)]


STREAMS = "record_stream: memory is counted as free when its tensor is gone, where a card waits for the other stream"


def pages_locked(locked: weakref.WeakSet[torch.UntypedStorage]) -> list[Change]:
    """Replacement for page-locking host memory for a card: a copy of the tensor, and a note of it in `locked`."""

    def pin_memory(tensor: torch.Tensor, *_: object) -> torch.Tensor:
        copy = tensor if tensor.untyped_storage() in locked else tensor.clone()
        locked.add(copy.untyped_storage())
        return copy

    return [
        (torch.Tensor, "pin_memory", pin_memory),
        (torch.Tensor, "is_pinned", lambda tensor, *_: tensor.untyped_storage() in locked),
    ]
