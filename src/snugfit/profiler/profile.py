"""A profile of any training script, unchanged: the anatomy of its peak from a real run.

The script runs in this very process, watched by `profile_recorder` for its first optimizer steps. What comes out is the
trace that a simulation would give, so anatomy, timeline and snapshot are those of `snugfit estimate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from snugfit.attributes import replaced
from snugfit.errors import InputError
from snugfit.measure.allocator_events import warm_up
from snugfit.process_memory import read_process_memory
from snugfit.profiler.advice import Advice, SeenModel, advise
from snugfit.profiler.recorder import ProfileRecorder
from snugfit.recording import cublas
from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.anatomy import Anatomy, anatomy
from snugfit.recording.replay import replay
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.recording.trace import WORKSPACE, Trace
from snugfit.simulator.compiled_code import uncompiled
from snugfit.simulator.not_traced import not_traced
from snugfit.simulator.script import EnoughSeen, check_script, run_script
from snugfit.units import format_bytes

_EAGER = (
    "torch.compile is left out, here and in the rest of this run: the step is measured as it runs eagerly. A compiled one "
    "mostly takes less memory and time. `TORCH_COMPILE_DISABLE=1 snugfit estimate` predicts the eager one."
)

_MORE = 1.02
"""Of memory that is worth a word where it is so much more than before."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What a script's run showed."""

    script: str
    """The script."""
    exit_code: int
    """What the script ended with."""
    device: str
    """`cpu`, or the name of the GPU."""
    steps: int
    """Optimizer steps that were watched."""
    anatomy: Anatomy
    """What lived at the peak: tensors, and what operators took inside."""
    peak_phase: str
    """The phase of the peak."""
    peak_operator: str
    """The operator of the peak."""
    peak_module: str
    """The module of the peak."""
    inside_operators_bytes: int
    """The part of the peak that no tensor held: taken and given back inside the operator of the peak."""
    allocator_peak_bytes: int
    """The allocator's own peak while watched; what the anatomy has to explain."""
    reserved_peak_bytes: int | None
    """On CUDA the allocator's reserved peak; None on the CPU."""
    host_peak_bytes: int
    """The most bytes in host tensors on CUDA; on the CPU, of tensors outside torch's allocator (numpy, mapped files)."""
    process_peak_bytes: int | None
    """The most resident memory of the process, program code included; None where the system does not tell."""
    config: AllocatorConfig
    """How sizes are counted in a replay: as CUDA's allocator rounds them, or on the CPU by the bytes of tensors."""
    trace: Trace
    """Every storage of the run, for the timeline and the snapshot."""
    notes: tuple[str, ...]
    """What a reader must know about this profile."""
    advice: Advice
    """What simulations of the model say would save memory."""


def profile_script(
    script: str, arguments: Sequence[str] = (), *, steps: int = 3, stop: bool = False, with_advice: bool = True
) -> Profile:
    """Runs a script and watches so many optimizer steps; the profile is partial if it fails.

    `stop`: whether the script is ended after them; otherwise it goes on unwatched.
    """
    program = check_script(script)
    if steps < 1:
        raise InputError(f"steps is {steps}; watch at least 1.")
    seen: list[SeenModel] = []
    peaks: dict[str, int | None] = {}
    behind: list[str] = []
    eager: set[str] = set()

    def on_model(*found: Any) -> None:
        if with_advice:
            seen.append(SeenModel.of(*found))

    def on_enough() -> None:
        peaks.update(_read_peaks(recorder))
        if stop:
            raise EnoughSeen

    def ended() -> None:
        recorder.__exit__(None, None, None)
        for name, value in _read_peaks(recorder).items():
            # Those of `on_enough` stay: what the script did unwatched afterwards is not to raise them.
            before = peaks.setdefault(name, value)
            if name != "reserved" and value and before and value > before * _MORE:
                what = "the process" if name == "process" else "tensors"
                behind.append(
                    f"Behind the steps that were watched {what} took up to {format_bytes(value)} (--steps N watches more)."
                )

    warm_up()
    recorder = ProfileRecorder(steps, on_model=on_model, on_enough=on_enough)
    with recorder, replaced([*uncompiled(lambda: eager.add(_EAGER)), *not_traced()]):
        code = run_script(program, arguments, before_exit=ended)
    trace = recorder.build()
    if not code and not trace.storages:
        raise InputError(f"{program.path} ran to its end and made no tensor. Give the script that trains.")
    on_cuda = recorder.device_index is not None
    config = AllocatorConfig() if on_cuda else TensorBytes()
    played = replay(trace, config)
    found = anatomy(trace, config, played=played, blocks=recorder.block_names)
    event = played.peak_event
    inside = trace.workspaces[trace.subjects[event]].nbytes if event >= 0 and trace.kinds[event] == WORKSPACE else 0
    truth = peaks["allocated"] or recorder.truth.peak_bytes
    return Profile(
        script=script,
        exit_code=code,
        device=torch.cuda.get_device_name(recorder.device_index) if on_cuda else "cpu",
        steps=recorder.optimizer_steps.most,
        anatomy=found,
        peak_phase=played.peak_phase,
        peak_operator=played.peak_operator,
        peak_module=played.peak_module,
        inside_operators_bytes=inside,
        allocator_peak_bytes=truth,
        reserved_peak_bytes=peaks["reserved"],
        host_peak_bytes=played.host_peak_bytes,
        process_peak_bytes=peaks["process"],
        config=config,
        trace=trace,
        notes=(*eager, *behind, *_notes(recorder, code, steps, found.peak_allocated_bytes, truth)),
        advice=advise(seen[0] if seen else None, device_index=recorder.device_index)
        if with_advice
        else Advice(missing="it was not asked for"),
    )


def _read_peaks(recorder: ProfileRecorder) -> dict[str, int | None]:
    process = read_process_memory()
    index = recorder.device_index
    return {
        "allocated": None if index is None else torch.cuda.max_memory_allocated(index),
        "reserved": None if index is None else torch.cuda.max_memory_reserved(index),
        "process": None if process is None else process.peak_rss_bytes,
    }


def _notes(recorder: ProfileRecorder, code: int, wanted: int, explained_bytes: int, truth_bytes: int) -> list[str]:
    notes = []
    if code:
        notes.append(f"The script ended with exit code {code}; this is the profile up to there.")
    if recorder.cut_short:
        notes.append("Watching ended at the limit of events, in the middle of the run.")
    elif recorder.optimizer_steps.most < wanted:
        found = recorder.optimizer_steps.most or "None"
        why = (
            ""
            if recorder.optimizer_steps.most or code
            else ": there was none in this process's main thread, and the whole run was watched. An update by hand, or in "
            "hooks of a backward pass, is no step of an optimizer"
        )
        notes.append(f"{found} of {wanted} optimizer steps were seen{why}.")
    elif (others := recorder.optimizer_steps.unstepped) and not code:
        notes.append(
            f"{'An optimizer' if others == 1 else f'{others} optimizers'} that the script made took no step while it was "
            "watched: what its training takes is not in here. More steps (--steps N) may see it."
        )
    if recorder.device_index is not None and cublas.stays():
        size = format_bytes(cublas.workspace_bytes(torch.cuda.get_device_capability(recorder.device_index)))
        notes.append(
            "Backward is watched in the script's own thread. Unwatched it has a thread of its own, for which cuBLAS keeps "
            f"one more workspace of {size}."
        )
    if recorder.truth.lost_marks:
        notes.append(f"What {recorder.truth.lost_marks} operators took inside them could not be told apart.")
    if abs(truth_bytes - explained_bytes) > max(2**20, truth_bytes // 100):
        notes.append(f"The allocator counts {truth_bytes - explained_bytes:+d} bytes beside what is shown here.")
    return notes
