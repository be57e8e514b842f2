"""Training scripts of other projects, unchanged: what `snugfit estimate SCRIPT` predicts on cpu, and what they take.

    python -m benchmarks.scripts --sources DIR [--only NAME ...]

DIR holds checkouts of their repositories, as OWNER+NAME; data that a script would download is made there, of random
values. Nothing of it is part of this repository. Each script is estimated for cpu and for a card, and taken through the
same steps for real (`real_script.py`), watched by `snugfit profile`. Rows go to `results/scripts.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import results_file, script_data

CARD = "rtx-4090"
_HERE = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Script:
    """A script of a repository and the words behind it."""

    repository: str
    """OWNER/NAME."""
    path: str
    """The file, in the repository."""
    words: str = ""
    """Its arguments."""
    on_card: str = ""
    """More of them, for a card."""
    on_cpu: str = ""
    """More of them, without one."""
    data: Callable[[Path], None] | None = None
    """Makes the data that it would download, told the script's folder."""


_NANO = (
    "--dataset=made --n_layer=4 --n_head=4 --n_embd=256 --batch_size=4 --block_size=256 --eval_iters=2 "
    "--gradient_accumulation_steps=4 --compile=False"
)

SCRIPTS: dict[str, Script] = {
    "nanoGPT": Script("karpathy/nanoGPT", "train.py", _NANO, on_cpu="--device=cpu --dtype=float32", data=script_data.tokens),
    "mnist": Script("pytorch/examples", "mnist/main.py", data=script_data.mnist),
    "imagenet": Script("pytorch/examples", "imagenet/main.py", "--dummy -a resnet18 -b 16 --epochs 1"),
    "vae": Script("pytorch/examples", "vae/main.py", "--epochs 1", data=script_data.mnist),
    "dcgan": Script("pytorch/examples", "dcgan/main.py", "--dataset fake --batchSize 8", on_card="--accel"),
    "siamese_network": Script("pytorch/examples", "siamese_network/main.py", "--epochs 1", data=script_data.mnist),
    "mnist_rnn": Script("pytorch/examples", "mnist_rnn/main.py", "--epochs 1", on_card="--accel", data=script_data.mnist),
    "word_language_model": Script(
        "pytorch/examples", "word_language_model/main.py", "--epochs 1 --model Transformer", on_card="--accel",
        data=script_data.words_of_text,
    ),
    "mnist_forward_forward": Script(
        "pytorch/examples", "mnist_forward_forward/main.py", "--epochs 1", data=script_data.mnist
    ),
    "regression": Script("pytorch/examples", "regression/main.py"),
    "gat": Script("pytorch/examples", "gat/main.py", data=script_data.cora),
    "super_resolution": Script(
        "pytorch/examples", "super_resolution/main.py", "--upscale_factor 2 --batchSize 8 --nEpochs 1", on_card="--accel",
        data=script_data.photographs,
    ),
    "reinforce": Script("pytorch/examples", "reinforcement_learning/reinforce.py"),
    "makemore": Script("karpathy/makemore", "makemore.py", on_card="--device cuda"),
    "minGPT": Script("karpathy/minGPT", "projects/adder/adder.py"),
    "unet": Script(
        "milesial/Pytorch-UNet", "train.py", "--epochs 1 --batch-size 2 --scale 1.0 --bilinear", data=script_data.carvana
    ),
    "timm": Script(
        "huggingface/pytorch-image-models", "train.py",
        "--data-dir made --model resnet18 --num-classes 2 -b 8 --epochs 1 --workers 2", on_cpu="--device cpu",
        data=script_data.image_folder,
    ),
    # A fork of huggingface/transformers, whose own repository is too large to fetch; not compared with it.
    "run_clm": Script(
        "PerforatedAI/PerforatedAI-Transformers", "examples/pytorch/language-modeling/run_clm.py",
        "--config_name small-gpt2 --tokenizer_name small-gpt2 --train_file train.txt --validation_file validation.txt "
        "--block_size 128 --do_train --output_dir out", data=script_data.text,
    ),
    "run_glue": Script(
        "PerforatedAI/PerforatedAI-Transformers", "examples/pytorch/text-classification/run_glue.py",
        "--model_name_or_path small-bert --train_file train.csv --validation_file validation.csv --do_train --do_eval "
        "--max_seq_length 128 --output_dir out", data=script_data.text,
    ),
    "run_image_classification": Script(
        "PerforatedAI/PerforatedAI-Transformers", "examples/pytorch/image-classification/run_image_classification.py",
        "--model_name_or_path small-vit --train_dir made/train --validation_dir made/validation --do_train --do_eval "
        "--remove_unused_columns False --output_dir out", data=script_data.image_folder,
    ),
    "diffusion": Script(
        "huggingface/diffusers", "examples/unconditional_image_generation/train_unconditional.py",
        "--train_data_dir made/train --model_config_name_or_path small-unet --resolution 32 --train_batch_size 8 "
        "--num_epochs 1 --eval_batch_size 2 --ddpm_num_inference_steps 5 --use_ema --output_dir out",
        data=script_data.images_to_make,
    ),
    "fabric": Script(
        "Lightning-AI/pytorch-lightning", "examples/fabric/image_classifier/train_fabric.py",
        data=script_data.mnist_of_lightning,
    ),
}  # fmt: skip


def row(script: Script, sources: Path) -> dict[str, Any]:
    """Estimates a script and takes it through the same steps for real."""
    project = sources / script.repository.replace("/", "+")
    path = project / script.path
    if script.data is not None:
        script.data(path.parent)
    before = _listed(path.parent)
    started = time.perf_counter()
    predicted, said = _run(
        ["estimate", "--device", "cpu", "--json", path.name, *script.words.split(), *script.on_cpu.split()],
        path,
        project,
    )
    seconds = time.perf_counter() - started
    card, said_on_card = _run(
        ["estimate", "--device", CARD, "--json", path.name, *script.words.split(), *script.on_card.split()],
        path,
        project,
    )
    real = ["--steps", "1000", str(_HERE / "benchmarks" / "real_script.py"), path.name]
    measured, _ = _run(
        ["profile", "--json", "--no-advice", *real, *script.words.split(), *script.on_cpu.split()], path, project
    )
    return {
        "repository": script.repository,
        "script": script.path,
        "words": script.words,
        "predicted_bytes": predicted and predicted["peak_allocated_bytes"],
        "measured_bytes": measured and measured["allocator_peak_bytes"],
        "card_bytes": card and card["total_bytes"],
        "seconds": round(seconds, 1),
        "answered": card and card["answered"],
        "said": said or said_on_card,
        "left_behind": sorted(_listed(path.parent) - before),
    }


def _run(words: list[str], path: Path, project: Path) -> tuple[dict[str, Any] | None, str]:
    """The document that a command prints, or the line that it ends with."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_HERE / "src"), str(_HERE), str(project)])}
    done = subprocess.run(
        [sys.executable, "-m", "snugfit", *words], cwd=path.parent, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [""])[-1]
    return json.loads(done.stdout), ""


def _listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def main() -> None:
    """Runs the scripts and writes the rows, each in the place of the one of its name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=SCRIPTS, default=list(SCRIPTS))
    args = parser.parse_args()
    file = results_file.RESULTS / "scripts.json"
    rows: dict[str, Any] = json.loads(file.read_text())["rows"] if file.exists() else {}
    for name in args.only:
        rows[name] = row(SCRIPTS[name], args.sources.resolve())
        print(
            name,
            json.dumps({key: rows[name][key] for key in ("predicted_bytes", "measured_bytes", "card_bytes", "said")}),
            flush=True,
        )
        results_file.write("scripts", {"rows": {key: rows[key] for key in SCRIPTS if key in rows}})


if __name__ == "__main__":
    main()
