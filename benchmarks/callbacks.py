"""What the callback of transformers' Trainer costs: runs with it and without it in turn, in one process.

Each round trains the same model on the same batches twice, once with `MemoryCallback`, in changing order, so that a change
of the machine's speed meets both. The time is that from the first step to the last, by the clock and as the processor's own
(which other programs disturb less); what the prediction takes before the first step is told apart. The first twelve steps
have nearly all of it, because their allocator's events are recorded, so that a longer run shows less.
The peak of tensors that was measured stands beside the predicted one. The last line printed is the JSON document that
is also written to `benchmarks/results/callbacks.json`.

    python -m benchmarks.callbacks [--rounds 6] [--steps 300]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from benchmarks.results_file import machine, write
from snugfit.interop.transformers import MemoryCallback

SIZES = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
Seconds = tuple[float, float]
LENGTH, BATCH, VOCABULARY = 64, 16, 1000


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 64 * BATCH

    def __getitem__(self, number: int) -> dict[str, Any]:
        ids = torch.arange(number, number + LENGTH) % VOCABULARY
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": number % 2}


class Timer(TrainerCallback):
    """Seconds from the first step to the end of the last, by the clock and of the processor."""

    def __init__(self) -> None:
        self.began = self.took = (0.0, 0.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.began == (0.0, 0.0):
            self.began = time.perf_counter(), time.process_time()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.took = time.perf_counter() - self.began[0], time.process_time() - self.began[1]


def run(steps: int, *, watched: bool, predict: bool = False) -> tuple[Seconds, MemoryCallback, float]:
    """Returns the seconds of a step (of the clock, of the processor), the callback, and the seconds of all of `train`."""
    torch.manual_seed(0)
    callback, timer = MemoryCallback(predict=predict), Timer()
    model = BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **SIZES))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=BATCH, report_to=[], save_strategy="no",
            disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip
        # The timer comes last, so that its end has all of the callback's in it.
        callbacks = [callback, timer] if watched else [timer]
        began = time.perf_counter()
        Trainer(model=model, args=args, train_dataset=Texts(), callbacks=callbacks).train()
        whole = time.perf_counter() - began
    return (timer.took[0] / steps, timer.took[1] / steps), callback, whole


def _overheads(rounds: list[dict[str, Seconds]]) -> tuple[float, float]:
    ratios = [[one["with"][kind] / one["without"][kind] - 1 for one in rounds] for kind in (0, 1)]
    return statistics.median(ratios[0]), statistics.median(ratios[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    _, callback, whole = run(12, watched=True, predict=True)
    step, _, plain = run(12, watched=False)
    report = callback.report
    assert report is not None
    rounds = []
    for number in range(given.rounds):
        order = (True, False) if number % 2 else (False, True)
        seconds = {watched: run(given.steps, watched=watched)[0] for watched in order}
        rounds.append({"with": seconds[True], "without": seconds[False]})
        clock, processor = _overheads(rounds[-1:])
        print(f"round {number + 1}: {clock:+.2%} by the clock, {processor:+.2%} of the processor's time")
    clock, processor = _overheads(rounds)
    results = {
        "steps": given.steps,
        "rounds": rounds,
        "overhead_by_the_clock": clock,
        "overhead_of_the_processor": processor,
        "step_seconds": step[0],
        "prediction_seconds": whole - plain,
        "predicted_bytes": report.predicted_bytes,
        "measured_bytes": report.measured_bytes,
    }
    write("callbacks", results)
    print(json.dumps({"machine": machine(), **results}))


if __name__ == "__main__":
    main()
