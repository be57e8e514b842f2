"""A folder full of broken things, for command lines that name them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from command_line import MODEL_FILE

from snugfit.recipe import Recipe
from snugfit.runs.run_dir import RunDirectory

MODELS = (
    MODEL_FILE
    + """

def needs_width(width):
    return nn.Linear(width, 10)


def exits():
    raise SystemExit(3)


def exits_with_words():
    raise SystemExit("pass a dataset first")


def recursive():
    return recursive()


def no_memory():
    raise MemoryError


def the_class():
    return nn.Flatten


def no_parameters():
    return nn.Sequential(nn.Flatten())


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images):
        raise ValueError("these images are upside down")


class ReturnsNone(Raises):
    def forward(self, images):
        self.layer(images.flatten(1))


class OwnBatch(Raises):
    def training_batch(self, batch_size):
        return {"images": self.layer.weight.new_zeros(batch_size, 64)}


class TakesTwo(Raises):
    def forward(self, images, captions):
        return self.layer(images.flatten(1))


class OneNumber(Raises):
    def forward(self, images):
        return self.layer(images.flatten(1)).sum()


def quits_in_forward():
    class Quits(Raises):
        def forward(self, images):
            raise SystemExit(7)

    return Quits()


ready = nn.Linear(64, 10)
number = 3
"""
)

LLAMA = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 260, "max_position_embeddings": 64,
}  # fmt: skip
LATIN = "caf\xe9 cr\xe8me\n".encode("latin-1")

FILES: dict[str, str | bytes] = {
    "model.py": MODELS,
    "syntax.py": "def build(:\n    pass\n",
    "raising.py": "def build():\n    pass\n\nraise RuntimeError('no licence found')\n",
    "exiting.py": "import sys\n\nsys.exit('usage: exiting.py DATA')\n",
    "importing.py": "import no_such_library\n",
    "latin.py": b"# caf\xe9\nname = '\xe8'\n",
    "nulls.py": b"x = 1\0\n",
    "tabs.py": "def build():\n\tif True:\n        return 1\n",
    "empty.py": "",
    "notebook.ipynb": '{"cells": []}',
    "run.sh": "python train.py\n",
    "pickled.pt": b"PK\x03\x04 not really",
    "empty.yaml": "",
    "broken.yaml": "precision: [fp32\ncheckpoint: }\n",
    "list.yaml": "- fp32\n- all\n",
    "word.yaml": "checkpoint\n",
    "latin.yaml": b"precision: fp32 # caf\xe9\n",
    "object.yaml": "precision: !!python/object/apply:os.system ['true']\n",
    "unknown.yaml": "precision: fp32\nbatch_size: 3\n",
    "types.yaml": "microbatch_size: many\noffload_optimizer: 3\nprecision: 16\n",
    "nested.yaml": "checkpoint: {all: true}\n",
    "date.yaml": "checkpoint: 2026-01-01\n",
    "twice.yaml": "precision: fp32\nprecision: bf16-mixed\n",
    "control.yaml": b"precision: \x07\n",
    "newer.yaml": "precision: fp32\nteleport: true\n",
    "llama/config.json": json.dumps(LLAMA),
    "no_type/config.json": json.dumps({"hidden_size": 16}),
    "unknown_type/config.json": json.dumps({"model_type": "lama"}),
    "list/config.json": "[]",
    "cut/config.json": json.dumps(LLAMA)[:40],
    "empty/config.json": "",
    "latin/config.json": b'{"model_type": "caf\xe9"}',
    "words/config.json": json.dumps({**LLAMA, "hidden_size": "many"}),
    "negative/config.json": json.dumps({**LLAMA, "hidden_size": -16}),
    "uneven/config.json": json.dumps({**LLAMA, "hidden_size": 17}),
    "number_type/config.json": json.dumps({"model_type": 3}),
    "folder_config/config.json/x": "",
    "no_config/README.md": "weights are elsewhere\n",
    "pickled/config.json": json.dumps(LLAMA),
    "pickled/pytorch_model.bin": b"PK",
    "cut_weights/config.json": json.dumps(LLAMA),
    "cut_weights/model.safetensors": b"\x10\0\0\0\0\0\0\0{",
    "broken_tokenizer/config.json": json.dumps(LLAMA),
    "broken_tokenizer/tokenizer.json": "{",
    "broken_tokenizer_config/config.json": json.dumps(LLAMA),
    "broken_tokenizer_config/tokenizer_config.json": "{",
    "empty.safetensors": b"",
    "text.safetensors": b"these are no weights at all, I am afraid",
    "huge.safetensors": b"\xff" * 64,
    "good.csv": "text,label\n" + "".join(f"a text about {n},{'ab'[n % 2]}\n" for n in range(60)),
    "empty.csv": b"",
    "header.csv": "text,label\n",
    "ragged.csv": "text,label\na,b\na,b,c\n",
    "quote.csv": 'text,label\n"a,b\n',
    "latin.csv": b"text,label\ncaf\xe9,a\n",
    "columns.csv": "one,two\n1,2\n",
    "twice.csv": "text,text\n1,2\n",
    "one_label.csv": "text,label\n" + "some words,a\n" * 40,
    "unlabelled.csv": "text,other\n" + "some words,a\nother words,b\n" * 20,
    "few.csv": "text,label\nsome words,a\nother words,b\n",
    "blank.csv": "text,label\n" + ",a\n" * 40,
    "nulls.csv": b"text,label\n\0\0,a\n",
    "good.jsonl": "".join(json.dumps({"text": f"a text about {n}", "label": "ab"[n % 2]}) + "\n" for n in range(60)),
    "broken.jsonl": '{"text": "a", "label": "b"}\n{"text": "a"\n',
    "array.jsonl": "[1, 2]\n",
    "empty.jsonl": "",
    "latin.jsonl": b'{"text": "caf\xe9"}\n',
    "numbers.jsonl": "".join(json.dumps({"text": n}) + "\n" for n in range(60)),
    "nan.jsonl": '{"text": NaN, "label": "a"}\n' * 40,
    "deep.jsonl": "[" * 100000 + "\n",
    "chats.jsonl": '{"messages": [{"role": "user"}]}\n' * 40,
    "broken.parquet": b"PAR1 and then nothing",
    "empty.parquet": b"",
    "empty.txt": "",
    "short.txt": "a",
    "latin.txt": LATIN,
    "no_texts/picture.png": b"\x89PNG",
    "latin_texts/a.txt": LATIN,
    "photos/train/cat/a.png": b"\x89PNG no picture",
    "photos/train/dog/b.png": b"",
    "one_class/train/cat/a.png": b"",
    "flat/a.png": b"\x89PNG",
    "cifar/cifar-10-batches-py/data_batch_1": b"not a pickle",
    "printing.py": "print('hello')\n",
    "ok.json": "{}",
    "old_plan.json": '{"recipe": {}, "frontier": []}',
    "cut_plan.json": '{"budgets": {"version"',
    "newer_plan.json": '{"budgets": {"version": 99}}',
    "earlier_plan.json": '{"recipe": {}, "frontier": [], "estimate": {}, "reasons": {}}',
    "newer_whole_plan.json": '{"recipe": {}, "frontier": [], "estimate": {}, "reasons": {}, "budgets": {"version": 99}}',
    "answer.json": '{"budget_bytes": 1, "slowdown": 1.0, "faster": null}',
    "checked.json": '{"fits": true, "comparison": null, "estimate": {}}',
    "cards.json": '{"parameters": "many", "anatomy_bytes": {}, "devices": [7], "batch_shape": "4"}',
    "summary_cut/workload.yaml": "data: digits\n",
    "summary_cut/summary.json": '{"steps": ',
    "summary_odd/workload.yaml": "data: digits\n",
    "summary_odd/summary.json": '{"steps": 3, "measured": {}, "predicted": {}, "metrics": [], "run_dir": "x"}',
    "empty_plan.json": '{"budgets": {"version": 1}}',
    "dpo.yaml": "base_model: org/model\nrl: dpo\n",
    "zero.json": '{"zero_optimization": {"stage": 3}}',
}  # fmt: skip


def make_folder(folder: Path) -> None:
    """Puts everything that is broken into a folder."""
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    (folder / "directory.py").mkdir()
    (folder / "directory.yaml").mkdir()
    (folder / "directory.csv").mkdir()
    (folder / "directory.safetensors").mkdir()
    (folder / "empty_folder").mkdir()
    # Root may read whatever its mode says; the memory of a process is a file that nobody can read at its start.
    for name in ("unreadable.py", "unreadable.yaml", "unreadable.csv", "unreadable.jsonl", "unreadable.txt"):
        (folder / name).symlink_to("/proc/self/mem")
    (folder / "unreadable.safetensors").symlink_to("/proc/self/mem")
    (folder / "unreadable_config").mkdir()
    (folder / "unreadable_config" / "config.json").symlink_to("/proc/self/mem")
    (folder / "dangling.py").symlink_to("nowhere.py")
    (folder / "loop.py").symlink_to("loop.py")
    _make_runs(folder)


def listing(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder, to the byte."""
    found: dict[str, bytes | None] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in folders:
            found[str(Path(root, name))] = None
        for name in files:
            path = Path(root, name)
            found[str(path)] = None if path.is_symlink() else path.read_bytes()
    return found


def _make_runs(folder: Path) -> None:
    """Runs without an adapter, without its weights, not finished, altered."""
    packed = Recipe(adapter="lora", quantize="int8")
    llama = "hf:llama/config.json"
    models = {"plain": llama, "run": llama, "early": llama, "metrics_odd": llama, "altered": llama, "damaged": llama}
    for name, model in {**models, "of_python": "python:build", "gone": "hf:was/here"}.items():
        RunDirectory.create(folder / name, Recipe() if name == "plain" else packed, _request(model)).close()
        if name not in ("plain", "early"):
            adapter = folder / name / "adapter"
            adapter.mkdir()
            config = {"peft_type": "LORA", "r": 1, "target_modules": ["q_proj"]}
            (adapter / "adapter_config.json").write_text("{" if name == "damaged" else json.dumps(config))
            (adapter / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (folder / "metrics_odd" / "metrics.jsonl").write_text("[1]\n")
    (folder / "altered" / "workload.yaml").write_text("model: m.py:f\n")


def _request(model: str) -> dict[str, object]:
    """All that a run keeps of its request."""
    nothing = dict.fromkeys(("image_size", "seq_len", "text_column", "label_column", "prompt_column", "samples"))
    more = {"model_args": [], "data": "prose", "task": "causal-lm", "packing": False, "strict": False, "device": "cpu"}
    return {**nothing, **more, "model": model, "settings": {"batch_size": 4}}
