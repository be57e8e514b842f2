"""The most memory that a process holds while it builds a packed model from files: a Llama, 4-bit weights and adapters.

    python -m benchmarks.build_host

A folder with shards of random 16-bit values is made (2.8 GiB for the 1B, taken away again), `snugfit train` builds the model
from it and takes one short step on this CPU, and the most resident memory of that process is read. Beside it what is
predicted for the host of a machine with a card, for the same model and for an 8B.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import results_file

SIZES = {
    "Llama 1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
    "Llama 8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
}
MEASURED = "Llama 1B"
_COMMON = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
_RECIPE = ["--adapter", "lora", "--quantize", "nf4", "--precision", "bf16-true", "--loss-impl", "chunked"]
_TASK = ["--task", "causal-lm", "--batch-size", "1"]


def main() -> None:
    """Makes the files, runs the commands and writes the results."""
    if len(sys.argv) == 2:
        return _write_shards(Path(sys.argv[1]))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in SIZES.items():
            place = Path(folder) / name.replace(" ", "-")
            place.mkdir()
            (place / "config.json").write_text(json.dumps({**_COMMON, **sizes}))
            row: dict[str, Any] = {"model": name, **_predicted(place)}
            if name == MEASURED:
                row |= _measured(place, Path(folder))
            rows.append(row)
            print(json.dumps(row), flush=True)
    print(
        results_file.write(
            "build_host", {"rows": rows, "imports_rss_bytes": _most_resident([*_PYTHON, "-c", _IMPORTS])}
        )
    )


_PYTHON = [sys.executable]
_IMPORTS = "import torch, transformers, peft, transformers.models.llama.modeling_llama"


def _predicted(folder: Path) -> dict[str, int]:
    words = ["estimate", f"hf:{folder / 'config.json'}", *_TASK, "--seq-len", "2048", "--checkpoint", "all", *_RECIPE]
    command = [*_PYTHON, "-m", "snugfit", *words, "--device", "rtx-3060-12gb", "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"host_bytes": told["host_bytes"], "total_bytes": told["total_bytes"]}


def _measured(folder: Path, beside: Path) -> dict[str, int]:
    """The most resident memory of a run that builds the model from its shards."""
    # By a process of its own: what a parent holds counts into the most that its children had.
    subprocess.run([*_PYTHON, "-m", "benchmarks.build_host", str(folder)], check=True)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    data = beside / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": f"the number {i} comes before {i + 1}"}) + "\n" for i in range(8)))
    words = [
        "train",
        f"hf:{folder}",
        "--data",
        f"jsonl:{data}",
        *_TASK,
        "--seq-len",
        "32",
        "--max-steps",
        "1",
        *_RECIPE,
    ]
    run = [*_PYTHON, "-m", "snugfit", *words, "--device", "cpu", "--no-evaluate", "--run-dir", str(beside / "run")]
    return {"files_bytes": size, "rss_bytes": _most_resident(run)}


def _write_shards(folder: Path) -> None:
    """Writes a model's weights in the layout of transformers, random values in 16 bits, about 0.5 GiB in a file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, ByT5Tokenizer

    ByT5Tokenizer().save_pretrained(folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="500MB")


def _most_resident(command: list[str]) -> int:
    """Runs a command to its end; the most bytes that it had in memory at a time."""
    child = os.posix_spawn(command[0], command, os.environ)
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return used.ru_maxrss * 1024


if __name__ == "__main__":
    main()
