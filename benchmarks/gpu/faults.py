"""What must survive: memory that runs out in a step, gradients that overflow in fp16, and a run that goes on later.

Memory is limited for real: on a card by the process's memory fraction, on a CPU by the process's data limit, which makes
torch's allocator fail as a full machine would.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.part import Case, Part, Place

if TYPE_CHECKING:
    import torch

    from snugfit.training.trainer import Trainer

STEPS = 4
LARGE, SMALL = {"side": 64, "width": 128, "layers": 4, "batch": 32}, {"side": 32, "width": 64, "layers": 3, "batch": 16}
"""The model that fills a memory with activations, and the one for everything else."""


def cases(place: Place) -> Sequence[Case]:
    """Returns the faults.

    Args:
        place: Where they are tried.
    """
    return [
        Case(name=name, settings={"steps": STEPS, "sizes": [LARGE, SMALL]}, packages=("torchvision",))
        for name in _FAULTS
    ]


def measure(name: str, place: Place) -> dict[str, Any]:
    """Tries a fault.

    Args:
        name: The case.
        place: Where.

    Returns:
        `passed` and the numbers behind it.
    """
    import torch

    return _FAULTS[name](torch.device(place.kind))


def _model(dtype: str, size: Mapping[str, int]) -> torch.nn.Module:
    """A transformer without dropout."""
    import torch
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    made = VisionTransformer(
        image_size=size["side"],
        patch_size=8,
        num_layers=size["layers"],
        num_heads=4,
        hidden_dim=size["width"],
        mlp_dim=4 * size["width"],
        num_classes=10,
    )
    torch.nn.init.normal_(made.heads.head.weight, std=0.05)  # torchvision's zeros give the trunk no gradient at first
    return made.to(getattr(torch, dtype))


def _batches(dtype: str, size: Mapping[str, int], count: int = STEPS) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    samples, side = size["batch"], size["side"]
    return [
        (
            torch.randn(samples, 3, side, side, generator=generator).to(getattr(torch, dtype)),
            torch.randint(0, 10, (samples,), generator=generator),
        )
        for _ in range(count)
    ]


def _trainer(device: torch.device, dtype: str, size: Mapping[str, int], **fields: Any) -> Trainer:
    import snugfit
    from benchmarks.gpu.subjects import image_loss

    settings = {key: fields.pop(key) for key in ("lr", "optimizer") if key in fields}
    return snugfit.prepare(
        _model(dtype, size),
        snugfit.Recipe(**fields),
        loss=image_loss,
        device=device,
        batch_size=size["batch"],
        **settings,
    )


def _distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """Largest difference of parameters, relative to the largest value of each."""
    return max(
        float((left.detach().cpu() - right.detach().cpu()).abs().max() / max(float(right.detach().abs().max()), 1e-30))
        for left, right in zip(one.parameters(), other.parameters(), strict=True)
    )


def out_of_memory(device: torch.device) -> dict[str, Any]:
    """The first step does not fit: training ends with the parameters of a run that had the memory."""
    batches = _batches("float64", LARGE)
    limited = _trainer(device, "float64", LARGE, optimizer="sgd", lr=0.1)
    before = limited.recipe
    undo, limit_bytes = _limit(device, batches[0])
    try:
        for batch in batches:
            limited.step(batch)
        limited.finish()
    finally:
        undo()
    free = _trainer(device, "float64", LARGE, optimizer="sgd", lr=0.1)
    for batch in batches:
        free.step(batch)
    free.finish()
    distance = _distance(limited.model, free.model)
    changed = limited.recipe.to_mapping(defaults=False)
    return {
        "passed": distance <= 1e-9 and limited.recipe != before,
        "relative_distance": distance,
        "limit_above_model_bytes": limit_bytes,
        "recipe_after": changed,
    }


def _limit(device: torch.device, batch: Any) -> tuple[Callable[[], None], int]:
    """Leaves half of what a step needs; returns what takes the limit away, and the bytes that are left."""
    import gc

    import torch

    gc.collect()
    need = _step_bytes(device, batch)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + need // 2) / total)
        return lambda: torch.cuda.set_per_process_memory_fraction(1.0), need // 2
    import resource
    from pathlib import Path

    status = Path("/proc/self/status").read_text(encoding="ascii")
    used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + need // 2, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, before), need // 2


def _step_bytes(device: torch.device, batch: Any) -> int:
    """Bytes that a step takes beside the model, by simulation."""
    from benchmarks.gpu.subjects import image_loss
    from snugfit.fake_device.personality import Personality
    from snugfit.recipe import Recipe
    from snugfit.recording.replay import replay
    from snugfit.recording.tensor_bytes import TensorBytes
    from snugfit.simulator.given_training import simulate_training
    from snugfit.workers.pool import Pool

    pool = Pool()
    try:
        recording = simulate_training(
            functools.partial(_model, "float64", LARGE),
            Recipe(),
            batch,
            personality=Personality(kind="cuda" if device.type == "cuda" else "cpu"),
            evaluate=False,
            pool=pool,
            arguments={"loss": image_loss, "optimizer": "sgd"},
        )
    finally:
        pool.close()
    weights = sum(p.numel() * p.element_size() for p in _model("float64", LARGE).parameters())
    return replay(recording.trace, TensorBytes()).peak_allocated_bytes - weights


def overflow_scaled(device: torch.device) -> dict[str, Any]:
    """A loss scale at which gradients overflow: such steps change nothing, the scale falls, and training goes on."""
    trainer = _trainer(device, "float32", SMALL, precision="16-mixed", optimizer="sgd", lr=0.1)
    state = trainer.state_dict()
    state["scaler"]["scale"] = 2.0**40
    trainer.load_state_dict(state)
    before = copy.deepcopy(trainer.model)
    batch = _batches("float32", SMALL, 1)[0]
    trainer.step(batch)
    untouched = _distance(trainer.model, before)
    fallen = trainer.state_dict()["scaler"]["scale"]
    steps = 1
    while _distance(trainer.model, before) == 0 and steps < 60:
        trainer.step(batch)
        steps += 1
    trainer.finish()
    return {
        "passed": untouched == 0.0 and fallen < 2.0**40 and _distance(trainer.model, before) > 0,
        "change_by_overflow": untouched,
        "scale_after_overflow": fallen,
        "steps_until_an_update": steps,
    }


def overflow_true(device: torch.device) -> dict[str, Any]:
    """fp16 weights and a batch that overflows: the run stops, says why, and the weights are those of the step before."""
    import torch

    from snugfit.errors import TrainingError

    trainer = _trainer(device, "float32", SMALL, precision="16-true", optimizer="sgd", lr=1e-3)
    good, bad = _batches("float32", SMALL, 2)
    trainer.step(good)
    trainer.finish()
    before = copy.deepcopy(trainer.model)
    message = ""
    try:
        trainer.step((bad[0] * 1e30, bad[1]))
        trainer.finish()
    except TrainingError as error:
        message = str(error)
    same = all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), before.parameters(), strict=True))
    return {"passed": same and "fp16 overflows" in message, "weights_kept": same, "message": message}


def resumed(device: torch.device) -> dict[str, Any]:
    """A run that is saved in the middle and goes on in a new trainer ends with the same parameters, bit for bit."""
    import io

    import torch

    batches = _batches("float32", SMALL)
    whole = _trainer(device, "float32", SMALL, precision="bf16-mixed", lr=1e-3)
    for batch in batches:
        whole.step(batch)
    whole.finish()
    first = _trainer(device, "float32", SMALL, precision="bf16-mixed", lr=1e-3)
    for batch in batches[: STEPS // 2]:
        first.step(batch)
    first.finish()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = _trainer(device, "float32", SMALL, precision="bf16-mixed", lr=1e-3)
    second.load_state_dict(torch.load(file, map_location=device, weights_only=True))
    for batch in batches[STEPS // 2 :]:
        second.step(batch)
    second.finish()
    distance = _distance(second.model, whole.model)
    return {"passed": distance == 0.0, "relative_distance": distance}


_FAULTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "out of memory in a step": out_of_memory,
    "fp16 overflow, scaled loss": overflow_scaled,
    "fp16 overflow, fp16 weights": overflow_true,
    "saved and gone on": resumed,
}


def _line(row: dict[str, Any]) -> str:
    found = row["measured"]
    numbers = ", ".join(f"{key} {value}" for key, value in found.items() if key not in ("passed", "message"))
    return f"{'passed' if found['passed'] else 'NOT PASSED'}: {numbers}"


PART = Part(
    name="faults",
    title="Faults that training must survive",
    cases=cases,
    measure=measure,
    line=_line,
    first=4,
    timed=False,
    limit_seconds=120,
)
