"""Records code of a person's own that trains by itself: a script, or another library's trainer.

Its models and steps are watched (`watched_script.py`), and it is told what machine it is on.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.attributes import replaced
from snugfit.errors import SnugfitWarning
from snugfit.fake_device.personality import Personality
from snugfit.simulator.watched_script import WatchedScript
from snugfit.values.assumptions import Assumptions

if TYPE_CHECKING:
    import torch

    from snugfit.recording.recording import Recording

_BENCHMARK = (
    "the script sets torch.backends.cudnn.benchmark: in its first step cuDNN tries kernels for each convolution, with as "
    "much free memory as they ask for (a DCGAN took 2.6 GiB on an H100 instead of 0.25), which is not predicted. Where less "
    "is free it tries fewer, so what fits by this estimate fits."
)


def record_watched(
    watched: WatchedScript,
    run: Callable[[Any], None],
    assume: Assumptions,
    personality: Personality,
    captured: Iterable[torch.Tensor] = (),
    *,
    compiles: bool = False,
) -> Recording:
    """Records `run(recorder)`, code of a person's own that trains by itself; runs in a worker.

    `captured`: tensors that arrived with that code and belong to no model.
    `compiles`: whether `torch.compile` compiles, for fake tensors; otherwise it is left out.
    """
    import torch

    from snugfit.fake_device.says_cuda import code_says_cuda
    from snugfit.private_torch.compiler import processor_is_known
    from snugfit.private_torch.moved_modules import moves
    from snugfit.recorder.compiled import compiling
    from snugfit.recorder.record import record
    from snugfit.recorder.script_recorder import ScriptRecorder, addresses, weights
    from snugfit.simulator.compiled_code import EAGER, compiled, uncompiled
    from snugfit.simulator.copied_tensors import copied_tensors
    from snugfit.simulator.harmless import harmless
    from snugfit.simulator.not_traced import not_traced
    from snugfit.simulator.session import without_logs
    from snugfit.simulator.stored_tensors import stored_tensors
    from snugfit.simulator.unfetched_weights import unfetched_weights
    from snugfit.values.known_values import remembering

    def begun(recorder: Any) -> None:
        recorder.compiles = compiles
        recorder.values.draws = True
        run(recorder)

    without_logs()
    if compiles and not personality.is_card:
        processor_is_known()  # by programs that are started, which nothing may be within
    with ExitStack() as around:
        watched.begin(around)
        around.enter_context(harmless())
        around.enter_context(unfetched_weights(watched.note))
        with torch.device("cpu"):  # torch notes now which functions a default device is for: the original ones
            torch.empty(0)
        written = [(torch, one.__name__, remembering(one)) for one in (torch.tensor, torch.as_tensor)]
        shown = (warnings, "showwarning", _noted(watched, warnings.showwarning))
        compiler = *not_traced(), *(compiled(watched.note) if compiles else uncompiled(lambda: watched.note(EAGER)))
        held = *weights(), *moves(), *stored_tensors(), *copied_tensors()
        around.enter_context(replaced([*addresses(), *held, *compiler, *written, shown]))
        around.enter_context(code_says_cuda() if personality.is_card else replaced(_no_accelerator()))
        if compiles:
            around.enter_context(compiling("torch.compile", personality))
        recording = record(begun, personality, captured, assume, kind=ScriptRecorder)
        if (
            personality.is_card
            and torch.backends.cudnn.benchmark
            and any(one.convolution for one in recording.trace.runs)
        ):
            watched.notes.append(_BENCHMARK)
    return dataclasses.replace(
        recording,
        answered=(*recording.answered, *watched.uneven_steps(recording.answered)),
        warnings=tuple(watched.notes),
        kept_later_bytes=watched.loaders.kept_later_bytes,
        steps=watched.steps,
        batch_shape=watched.batch_shape,
        block_names=tuple(watched.block_names),
        weight_bytes=watched.weight_bytes,
        parameters=watched.parameters,
        expert_modules=tuple(watched.expert_modules),
        switchable=tuple(dict.fromkeys(watched.switchable)),
    )


def _no_accelerator() -> list[Any]:
    """What a machine without a GPU says to a script that asks."""
    import torch

    no = {"is_available": False, "device_count": 0, "current_accelerator": None}
    places = [(torch.accelerator, name) for name in no] + [
        (torch.cuda, name) for name in ("is_available", "device_count")
    ]
    return [(place, name, lambda *_, answer=no[name], **__: answer) for place, name in places]


_OURS = str(Path(__file__).parents[1])


def _noted(watched: WatchedScript, show: Any) -> Any:
    """Stands for `warnings.showwarning`: what snugfit itself has to say of a run goes into its estimate."""

    def showing(message: Any, category: Any, filename: str, *where: Any, **more: Any) -> None:
        if issubclass(category, SnugfitWarning):
            watched.note(str(message))
        elif not filename.startswith(_OURS):  # torch's of a person's line, which we stand in for
            show(message, category, filename, *where, **more)

    return showing
