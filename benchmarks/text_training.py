"""Real training of small language models on CPU: every technique for them learns, and its memory is as predicted.

A BERT of two layers learns the topics of 128 passages, a Llama of two layers learns prose, on text that ships with Python,
byte by byte, from random weights; adapters start from weights that were trained plainly for some updates, as they are
meant to. Each row trains by one recipe and says the mean loss of its first and last ten updates, and the accuracy or loss on
data it has not seen (for the BERT only for the record: that many passages do not teach what is general). Peak tensor bytes
of building and the first two updates are measured, and predicted by the very same `snugfit.prepare` on the same batches.

A row has learned when its last loss is at most `LEARNED` of its first (`LEARNED_BESIDE` for adapters, which start from a
trained model); its memory is predicted when the two differ by at most 2 %.

    python -m benchmarks.text_training [--only NAME]        (writes benchmarks/results/text_training.json)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import snugfit
from benchmarks.cpu_truth import _peaks
from benchmarks.results_file import RESULTS, write
from snugfit.errors import InputError
from snugfit.fake_device.personality import Personality
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.recipe import Recipe
from snugfit.simulator.given_batches import Batches
from snugfit.simulator.given_training import simulate_training
from snugfit.simulator.session import STEPS
from snugfit.workers.pool import Pool
from snugfit.workload import algorithm_and_storage
from snugfit.workloads.tasks import task_named
from snugfit.workloads.text import TextOptions, open_text
from snugfit.workloads.text.tokenizer import byte_tokenizer

TOLERANCE = 0.02
LEARNED, LEARNED_BESIDE = 0.75, 0.95
WORDS = 320
"""A byte-level vocabulary of 259, padded as vocabularies are."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and what it learns."""

    build: Callable[[], torch.nn.Module]
    """Builds it, with the same weights every time."""
    data: str
    """Name of its data."""
    task: str
    """Name of its task."""
    batch_size: int
    """Samples of an update."""
    seq_len: int
    """Tokens of a text at most."""
    steps: int
    """Updates."""
    samples: int | None
    """Training samples, spread over all there are; None: all."""
    lr: float
    """Learning rate where all weights are trained."""
    adapter_lr: float
    """Learning rate of adapters."""
    trained_before: int
    """Updates of plain training before adapters start."""


def bert(labels: int) -> Callable[[], torch.nn.Module]:
    """Returns what builds the classifier."""

    def build() -> torch.nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            return BertForSequenceClassification(
                BertConfig(**shape, **still, vocab_size=WORDS, max_position_embeddings=256, num_labels=labels)
            )

    return build


def llama() -> torch.nn.Module:
    """Builds the language model; its head starts wide enough to tell bytes apart where adapters leave it frozen."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            **shape,
            intermediate_size=192,
            vocab_size=WORDS,
            max_position_embeddings=256,
            use_cache=False,
            initializer_range=0.1,
        )
        return LlamaForCausalLM(config)


ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lora": {"adapter": "lora"},
    "dora": {"adapter": "dora"},
    "qlora": {"adapter": "lora", "quantize": "nf4"},
    "int8 under lora": {"adapter": "lora", "quantize": "int8"},
    "adamw8bit": {"optimizer": "adamw8bit"},
    "adamw4bit": {"optimizer": "adamw4bit"},
    "offload optimizer": {"offload_optimizer": True},
    "chunked loss": {"loss_impl": "chunked"},
    "lora, chunked loss": {"adapter": "lora", "loss_impl": "chunked"},
    "qlora, chunked loss": {"adapter": "lora", "quantize": "nf4", "loss_impl": "chunked"},
    "qlora, adamw8bit": {"adapter": "lora", "quantize": "nf4", "optimizer": "adamw8bit"},
    "adamw8bit, step in backward": {"optimizer": "adamw8bit", "step_in_backward": True},
    "adamw8bit, chunked loss, checkpoint": {"optimizer": "adamw8bit", "loss_impl": "chunked", "checkpoint": "all"},
    "offload optimizer, chunked loss": {"offload_optimizer": True, "loss_impl": "chunked"},
    "lora, checkpoint": {"adapter": "lora", "checkpoint": "all"},
}
"""Name -> fields of the recipe."""


def subjects() -> dict[str, tuple[Subject, Any]]:
    """Returns each model with its data, opened."""
    tokenizer = byte_tokenizer()
    found: dict[str, tuple[Subject, Any]] = {}
    topics = _opened("topics", "text-classification", 128, False, tokenizer)
    found["bert"] = (
        Subject(bert(topics.num_classes), "topics", "text-classification", 16, 128, 120, 128, 2e-3, 4e-3, 30),
        topics,
    )
    prose = _opened("prose", "causal-lm", 128, True, tokenizer)
    found["llama"] = (Subject(llama, "prose", "causal-lm", 8, 128, 100, None, 3e-3, 1e-2, 30), prose)
    return found


def _opened(spec: str, task: str, seq_len: int, packing: bool, tokenizer: Any) -> Any:
    options = TextOptions(
        task=task,
        seq_len=seq_len,
        packing=packing,
        text_column=None,
        label_column=None,
        prompt_column=None,
        samples=None,
        seed=0,
        download=False,
    )
    return open_text(spec, options, tokenizer=tokenizer, vocabulary=WORDS)


def batches_of(part: Any, subject: Subject, count: int) -> list[dict[str, torch.Tensor]]:
    """Returns batches, the same every time.

    A mask that masks nothing is left out: transformers does so by itself, by looking at its values, which a simulated mask
    does not have.

    Args:
        part: A part of the data.
        subject: Its batch size.
        count: How many.
    """
    generator = torch.Generator().manual_seed(0)
    samples = min(subject.samples or len(part), len(part))
    spread = torch.arange(samples) * (len(part) // samples)  # the data may be in the order of its labels
    order: list[int] = []
    while len(order) < count * subject.batch_size:
        order += spread[torch.randperm(samples, generator=generator)].tolist()
    size = subject.batch_size
    made = [part.batch(order[at * size : (at + 1) * size]) for at in range(count)]
    return [
        {name: value for name, value in batch.items() if name != "attention_mask" or not bool(value.all())}
        for batch in made
    ]


def run(model: str, name: str, subject: Subject, data: Any, pool: Pool) -> dict[str, Any]:
    """Trains one row and predicts its memory.

    Args:
        model: Name of the model.
        name: A key of `ROWS`.
        subject: The model.
        data: Its data, opened.
        pool: Workers that simulate.

    Returns:
        The row; with `left_out` and the reason where the recipe is refused.
    """
    recipe = Recipe(**ROWS[name])
    row: dict[str, Any] = {"model": model, "name": name, "recipe": recipe.to_mapping(defaults=False)}
    given = batches_of(data.train, subject, subject.steps)
    frozen = recipe.adapter != "none"
    arguments: dict[str, Any] = {
        "optimizer": algorithm_and_storage("adamw")[0],
        "lr": subject.adapter_lr if frozen else subject.lr,
        "clip_norm": None if recipe.step_in_backward else 1.0,
        "loss_weight": task_named(subject.task).loss_weight,
        "batch_size": subject.batch_size,
    }
    before = started(subject, given) if frozen else None
    torch.manual_seed(0)
    warm_up()  # has collected garbage, too
    events = AllocatorEvents()
    began = time.process_time()
    events.start()
    try:
        made = subject.build()
        if before is not None:
            made.load_state_dict(before)
        trainer = snugfit.prepare(made, recipe, device="cpu", **arguments)
        del made
        losses = [float(trainer.step(batch)) for batch in given[:2]]
        events.stop()
        losses += [float(trainer.step(batch)) for batch in given[2:]]
        trainer.finish()
    except InputError as error:
        events.stop()
        return {**row, "left_out": str(error)}
    row["train_seconds"] = round(time.process_time() - began, 1)
    recording = simulate_training(
        subject.build, recipe, Batches(tuple(given[:2])),
        personality=Personality(kind="cpu", threads=torch.get_num_threads()),
        steps=STEPS, evaluate=False, pool=pool, arguments=arguments,
    )  # fmt: skip
    predicted, predicted_host = _peaks(recording.trace)
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    limit = LEARNED_BESIDE if frozen else LEARNED
    row |= {
        "steps": len(losses),
        "first_loss": round(first, 4),
        "last_loss": round(last, 4),
        "threshold": limit,
        "learned": last <= limit * first,
        **_judged(trainer, subject, data),
        "predicted_bytes": predicted,
        "measured_bytes": events.peak_bytes,
        "ratio": round(predicted / events.peak_bytes, 5),
        "predicted_host_bytes": predicted_host,
        "measured_host_bytes": trainer.peak_host_bytes,
    }
    return row


_started: dict[str, dict[str, torch.Tensor]] = {}


def started(subject: Subject, given: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Returns weights after some plain updates.

    Args:
        subject: The model.
        given: Its batches; the last ones are taken.
    """
    if subject.data not in _started:
        model = subject.build()
        loss_weight: Any = task_named(subject.task).loss_weight
        trainer = snugfit.prepare(model, Recipe(), device="cpu", lr=subject.lr, clip_norm=1.0, loss_weight=loss_weight)
        for batch in given[-subject.trained_before :]:
            trainer.step(batch)
        _started[subject.data] = model.state_dict()
    return _started[subject.data]


def _judged(trainer: Any, subject: Subject, data: Any) -> dict[str, float]:
    """Accuracy, or the mean loss, on up to 16 batches of the validation part."""
    trainer.model.eval()
    size = subject.batch_size
    sums, weights = 0.0, 0
    for start in range(0, min(len(data.validation), 16 * size), size):
        batch = data.validation.batch(list(range(start, min(start + size, len(data.validation)))))
        output = trainer.evaluate_batch(batch)
        if subject.task == "causal-lm":
            weight = int((batch["labels"][:, 1:] != -100).sum())
            sums += float(output.loss) * weight
            weights += weight
        else:
            sums += int((output.logits.argmax(-1) == batch["labels"]).sum())
            weights += len(batch["labels"])
    name = "validation_loss" if subject.task == "causal-lm" else "validation_accuracy"
    return {name: round(sums / weights, 4)}


def main() -> int:
    """Runs all rows, or those of one name, and writes them beside those that are there; 1 where one fails its bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", choices=tuple(ROWS), help="only rows of this name")
    parser.add_argument("--model", choices=("bert", "llama"), help="only this model")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    path = RESULTS / "text_training.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    failed = 0
    pool = Pool()
    try:
        for model, (subject, data) in subjects().items():
            for name in ROWS:
                if args.only not in (None, name) or args.model not in (None, model):
                    continue
                if subject.task != "causal-lm" and "loss_impl" in ROWS[name]:  # a classifier has no vocabulary to score
                    continue
                row = run(model, name, subject, data, pool)
                rows = [one for one in rows if (one["model"], one["name"]) != (model, name)] + [row]
                failed += not ("left_out" in row or (row["learned"] and abs(row["ratio"] - 1) <= TOLERANCE))
                print(_in_words(row), flush=True)
                write("text_training", {"tolerance": TOLERANCE, "rows": rows})
    finally:
        pool.close()
    print(path)
    return int(failed > 0)


def _in_words(row: dict[str, Any]) -> str:
    label = f"{row['model']:6s} {row['name']:36s}"
    if "left_out" in row:
        return f"{label} left out: {row['left_out']}"
    judged = next(f"{name} {value}" for name, value in row.items() if name.startswith("validation"))
    return (
        f"{label} loss {row['first_loss']:.3f} -> {row['last_loss']:.3f} {'ok' if row['learned'] else 'NOT LEARNED'}  "
        f"{judged}  predicted {row['predicted_bytes']:,} measured {row['measured_bytes']:,} {row['ratio'] - 1:+.2%}  "
        f"host {row['predicted_host_bytes']:,} / {row['measured_host_bytes']:,}  {row['train_seconds']} s"
    )


if __name__ == "__main__":
    sys.exit(main())
