"""What our step costs over a loop written by hand with the same techniques, and beside the trainers people use.

Loops by hand are paired with ours step by step (`benchmarks/step_overhead.py`). A trainer of another library runs a whole
loop of its own, so ours runs before and after it, and it is compared with the mean of the two: samples a second and peak
memory, same model, batches, optimizer, precision.
"""

from __future__ import annotations

import functools
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.part import Case, Part, Place
from benchmarks.gpu.turn import take_turn
from snugfit.units import format_bytes

if TYPE_CHECKING:
    import torch

_HAND = "by hand: "
_PAIRS = {"cpu": 12, "cuda": 40}
_STEPS = {"cpu": 8, "cuda": 60}
HAND_CASES = ("plain", "bf16-mixed", "microbatch", "checkpoint", "step_in_backward")
LIBRARIES: dict[str, tuple[str, ...]] = {
    "Hugging Face Trainer": ("transformers", "accelerate"),
    "Lightning Fabric": ("lightning",),
}
PRECISIONS = ("fp32", "bf16-mixed")


def cases(place: Place) -> Sequence[Case]:
    """Returns the loops by hand, then the trainers of other libraries.

    Args:
        place: Where they are timed.
    """
    sizes = ("large", "small") if place.kind == "cuda" else ("small",)
    found = [
        Case(
            name=f"{_HAND}{name}, {size} model",
            settings={"pairs": _PAIRS[place.kind], "size": size},
            packages=("torchvision",),
        )
        for size in sizes
        for name in HAND_CASES
    ]
    for library, packages in LIBRARIES.items():
        for precision in PRECISIONS:
            settings = {"steps": _STEPS[place.kind], "size": sizes[0]}
            found.append(Case(name=f"{library}, {precision}", settings=settings, packages=("torchvision", *packages)))
    return found


def measure(name: str, place: Place) -> dict[str, Any]:
    """Times a loop and ours.

    Args:
        name: The case.
        place: Where.

    Returns:
        For loops by hand seconds of both, the median ratio and its quartiles, and peaks; for libraries samples a second
        and peaks.
    """
    import torch

    from benchmarks import step_overhead

    take_turn()
    device = torch.device(place.kind)
    if name.startswith(_HAND):
        case, _, size = name.removeprefix(_HAND).removesuffix(" model").rpartition(", ")
        shape = step_overhead.LARGE if size == "large" else step_overhead.SMALL
        return step_overhead.measure_case(case, device, _PAIRS[place.kind], shape)
    library, _, precision = name.rpartition(", ")
    shape = step_overhead.LARGE if place.kind == "cuda" else step_overhead.SMALL
    other = _hugging_face if library == "Hugging Face Trainer" else _fabric
    runs = [functools.partial(run, precision, shape, device, _STEPS[place.kind]) for run in (_ours, other, _ours)]
    found = [_timed(run, device) for run in runs]
    ours = (found[0]["seconds"] + found[2]["seconds"]) / 2
    samples = step_overhead.BATCH * _STEPS[place.kind]
    return {
        "their_samples_per_second": samples / found[1]["seconds"],
        "our_samples_per_second": samples / ours,
        "ratio": ours / found[1]["seconds"],
        "our_runs_differ_by": abs(found[0]["seconds"] - found[2]["seconds"]) / ours,
        "their_peak_bytes": found[1]["peak_bytes"],
        "our_peak_bytes": found[2]["peak_bytes"],
    }


def _timed(run: Callable[[], float], device: torch.device) -> dict[str, Any]:
    """Seconds of a loop without its first steps, and its peak with them.

    On a CPU the peak is that of a short run of its own, since the recorder of the allocator's events slows steps.
    """
    import torch

    from snugfit.measure.allocator_events import AllocatorEvents, warm_up

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        seconds = run()
        return {"seconds": seconds, "peak_bytes": torch.cuda.max_memory_allocated(device)}
    warm_up()
    events = AllocatorEvents()
    events.start()
    short: Any = functools.partial(run.func, *run.args[:-1], 2)  # type: ignore[attr-defined]
    short()
    events.stop()
    return {"seconds": run(), "peak_bytes": events.peak_bytes}


WARM_UP = 3
"""Steps before the clock starts."""


def _ours(precision: str, shape: Any, device: torch.device, steps: int) -> float:
    import snugfit
    from benchmarks import step_overhead
    from benchmarks.gpu.subjects import image_loss

    trainer = snugfit.prepare(
        step_overhead.make_model(shape),
        snugfit.Recipe(precision=precision),  # type: ignore[arg-type]
        loss=image_loss,
        device=device,
        batch_size=step_overhead.BATCH,
    )
    batches = step_overhead.make_batches(_host(), 4, shape)
    begin = 0.0
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            begin = _now(device)
        trainer.step(batches[number % 4])
    trainer.finish()
    return _now(device) - begin


def _fabric(precision: str, shape: Any, device: torch.device, steps: int) -> float:
    import torch
    import torch.nn.functional as F
    from lightning.fabric import Fabric

    from benchmarks import step_overhead

    fabric = Fabric(accelerator=device.type, devices=1, precision="32-true" if precision == "fp32" else precision)
    fabric.launch()
    model = step_overhead.make_model(shape)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), fused=True))
    batches = step_overhead.make_batches(_host(), 4, shape)
    begin = 0.0
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            begin = _now(device)
        images, labels = fabric.to_device(batches[number % 4])
        loss = F.cross_entropy(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return _now(device) - begin


def _hugging_face(precision: str, shape: Any, device: torch.device, steps: int) -> float:
    import torch.nn.functional as F
    from torch import nn
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from benchmarks import step_overhead

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = step_overhead.make_model(shape)

        def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.model(images)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    class Clock(TrainerCallback):
        begin = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == WARM_UP:
                self.begin = _now(device)

    batches = step_overhead.make_batches(_host(), 4, shape)
    samples = [{"images": image, "labels": label} for batch in batches for image, label in zip(*batch, strict=True)]
    watch = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=step_overhead.BATCH,
            max_steps=WARM_UP + steps,
            bf16=precision == "bf16-mixed",
            optim="adamw_torch_fused",
            max_grad_norm=0.0,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=device.type == "cpu",
            dataloader_pin_memory=False,
        )
        trainer = Trainer(WithLoss(), arguments, train_dataset=samples, callbacks=[watch])  # type: ignore[arg-type]
        trainer.train()
    return _now(device) - watch.begin


def _host() -> torch.device:
    import torch

    return torch.device("cpu")


def _now(device: torch.device) -> float:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _line(row: dict[str, Any]) -> str:
    from benchmarks.step_overhead import describe

    found = row["measured"]
    if row["name"].startswith(_HAND):
        return describe(found)
    return (
        f"{found['our_samples_per_second']:9.1f} samples/s ours, {found['their_samples_per_second']:9.1f} theirs; peak "
        f"{format_bytes(found['our_peak_bytes'])} and {format_bytes(found['their_peak_bytes'])}"
    )


PART = Part(
    name="overhead",
    title="Our step beside loops by hand and other trainers",
    cases=cases,
    measure=measure,
    line=_line,
    first=3,
    timed=True,
    limit_seconds=240,
)
