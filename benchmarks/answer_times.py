"""How long an estimate takes in a worker that is warm, with equal blocks recorded once and with every block recorded.

ViT-L/16 at 224 x 224, batch 64, and models shaped like Llama 3 of 8 and 70 billion parameters: medians of several, in wall
time and in time of the processor. The same 8 billion with 8 to 128 layers show how the time grows with depth. The bytes of
both ways stand beside each other; they must be equal.

    python -m benchmarks.answer_times                  (writes benchmarks/results/answer_times.json)
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.llama_shapes import LLAMA_8B, LLAMA_70B
from benchmarks.results_file import write
from snugfit.devices import device_named
from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.recording.recording import Recording
from snugfit.simulator.assembly import assemble
from snugfit.simulator.request import NamedModel
from snugfit.simulator.subjects import named_subject
from snugfit.workers.pool import Pool
from snugfit.workload import Workload

REPEATS = 5
CARD = "h100-80gb"
DEPTHS = (8, 16, 32, 64, 128)


def timed(record: Any, repeats: int) -> tuple[Recording, float, float]:
    """Records several times in this process: the last recording, and the medians of wall and processor time."""
    record()
    wall, busy = [], []
    for _ in range(repeats):
        begin, begun = time.perf_counter(), time.process_time()
        recording = record()
        wall.append(time.perf_counter() - begin)
        busy.append(time.process_time() - begun)
    return recording, statistics.median(wall), statistics.median(busy)


def row(pool: Pool, name: str, named: NamedModel, recipe: Recipe, samples: int) -> dict[str, Any]:
    """One estimate, with equal blocks recorded once and whole."""
    card = device_named(CARD)
    found: dict[str, Any] = {"name": name, "recipe": recipe.to_mapping(defaults=False), "batch_size": samples}
    for way, whole in (("few", False), ("whole", True)):
        subject = named_subject(named, Workload(batch_size=samples))
        record = functools.partial(subject.record, recipe, Personality(capability=card.compute_capability), whole=whole)
        recording, wall, busy = pool.call(timed, record, REPEATS)
        replays, replayed = [], []
        for _ in range(REPEATS):
            begin, begun = time.perf_counter(), time.process_time()
            estimate = assemble([(card, recording)], headline=recording, recipe=recipe, title=name)
            replays.append(time.perf_counter() - begin)
            replayed.append(time.process_time() - begun)
        found[way] = {
            "recording_seconds": wall,
            "recording_processor_seconds": busy,
            "replay_seconds": statistics.median(replays),
            "replay_processor_seconds": statistics.median(replayed),
            "events": len(recording.trace),
            "blocks_left_out": recording.blocks_left_out,
            "peak_allocated_bytes": estimate.peak_allocated_bytes,
            "peak_reserved_bytes": estimate.peak_reserved_bytes,
            "step_seconds": estimate.step_seconds,
        }
    same = ("peak_allocated_bytes", "peak_reserved_bytes", "step_seconds", "events")
    found["equal"] = all(found["few"][field] == found["whole"][field] for field in same)
    few, whole_one = found["few"], found["whole"]
    print(
        f"{name}: recorded {few['recording_processor_seconds']:.2f} s of processor time, whole "
        f"{whole_one['recording_processor_seconds']:.2f}, replays {few['replay_processor_seconds']:.2f}, "
        f"{few['blocks_left_out']} blocks left out, equal: {found['equal']}",
        flush=True,
    )
    return found


def main() -> None:
    """Measures all rows and writes the results file."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Pool()) as pool:

        def llama(config: dict[str, Any], layers: int | None = None) -> NamedModel:
            made = {**config, "num_hidden_layers": layers or config["num_hidden_layers"]}
            path = Path(folder) / f"{made['hidden_size']}-{made['num_hidden_layers']}.json"
            path.write_text(json.dumps(made))
            return NamedModel(spec=f"hf:{path}", seq_len=2048, task="causal-lm")

        halves = Recipe(precision="bf16-true")
        lora = halves.replace(adapter="lora")
        rows = [
            row(pool, "ViT-L/16", NamedModel(spec="torchvision:vit_l_16"), Recipe(), 64),
            row(pool, "8B, full AdamW", llama(LLAMA_8B), halves, 1),
            row(pool, "8B, LoRA", llama(LLAMA_8B), lora, 1),
            row(pool, "8B, QLoRA", llama(LLAMA_8B), lora.replace(quantize="nf4"), 1),
            row(pool, "70B, every block checkpointed", llama(LLAMA_70B), halves.replace(checkpoint="all"), 1),
        ]
        growth = [row(pool, f"8B with {layers} layers", llama(LLAMA_8B, layers), halves, 1) for layers in DEPTHS]
    write("answer_times", {"load": os.getloadavg(), "rows": rows, "growth": growth})


if __name__ == "__main__":
    main()
