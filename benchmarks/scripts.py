"""Training scripts of other projects, unchanged: what `snugfit estimate SCRIPT` predicts on cpu, and what they take.

    python -m benchmarks.scripts --sources DIR [--only NAME ...]

DIR holds checkouts of their repositories, as OWNER+NAME; data that a script would download is made there, of random
values. Nothing of it is part of this repository. Each script is estimated for cpu and for a card, and taken through the
same steps for real (`real_script.py`), watched by `snugfit profile`. Rows go to `results/scripts.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import script_data
from benchmarks.results_file import made_by_name

CARD = "rtx-4090"
_HERE = Path(__file__).parents[1]
REAL_SCRIPT = _HERE / "benchmarks" / "real_script.py"


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
    gpus: int | None = None
    """Processes that torchrun would start it in."""
    needs_card: bool = False
    """Whether it trains on cards only."""
    variables: tuple[tuple[str, str], ...] = ()
    """Variables of its environment."""
    from_root: bool = False
    """Whether it is run from the repository's folder, not from its own."""

    def place(self, project: Path) -> tuple[Path, str]:
        """Returns the folder in which it runs, and its name from there."""
        path = project / self.path
        return (project, self.path) if self.from_root else (path.parent, path.name)

    def make_data(self, project: Path) -> None:
        """Makes its data once, also where several processes ask: some scripts share theirs."""
        if self.data is None:
            return
        done = project.parent / f".{self.data.__name__}-{project.name}-{Path(self.path).parent.name}"
        with (project.parent / ".making").open("w") as making:
            fcntl.flock(making, fcntl.LOCK_EX)
            if not done.exists():
                self.data((project / self.path).parent)
                done.touch()


_FSDP = {
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1", "FSDP_USE_ORIG_PARAMS": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "BertLayer",
}  # fmt: skip
"""What `accelerate launch --use_fsdp` sets."""
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
        "pytorch/examples", "mnist_forward_forward/main.py",
        "--epochs 5 --train_size 5000 --test_size 1000", data=script_data.mnist
    ),
    "regression": Script("pytorch/examples", "regression/main.py"),
    "gat": Script("pytorch/examples", "gat/main.py", data=script_data.cora),
    "super_resolution": Script(
        "pytorch/examples", "super_resolution/main.py", "--upscale_factor 2 --batchSize 8 --nEpochs 1", on_card="--accel",
        data=script_data.photographs,
    ),
    "reinforce": Script("pytorch/examples", "reinforcement_learning/reinforce.py"),
    "makemore": Script("karpathy/makemore", "makemore.py", on_card="--device cuda"),
    "minGPT": Script("karpathy/minGPT", "projects/adder/adder.py", from_root=True),
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
    "sft": Script(
        "huggingface/trl", "trl/scripts/sft.py",
        "--model_name_or_path small-gpt2 --dataset_name texts --per_device_train_batch_size 4 --max_length 256 "
        "--output_dir out --report_to none --bf16 False", data=script_data.texts_to_continue,
    ),
    "ddp": Script(
        "pytorch/examples", "distributed/ddp-tutorial-series/multigpu_torchrun.py", "3 1", gpus=2, needs_card=True
    ),
    "fsdp2": Script("pytorch/examples", "distributed/FSDP2/example.py", gpus=2, needs_card=True),
    "spawn": Script(
        "pytorch/examples", "distributed/ddp-tutorial-series/multigpu.py", "3 1", gpus=2, needs_card=True
    ),
    "accelerate_ddp": Script(
        "huggingface/accelerate", "examples/nlp_example.py", on_cpu="--cpu", data=script_data.paraphrases, gpus=2
    ),
    "accelerate_fsdp": Script(
        "huggingface/accelerate", "examples/by_feature/fsdp_with_peak_mem_tracking.py",
        "--model_name_or_path bert-base-cased --output_dir out", data=script_data.paraphrases, gpus=2, needs_card=True,
        variables=tuple(_FSDP.items()),
    ),
    "diffusion": Script(
        "huggingface/diffusers", "examples/unconditional_image_generation/train_unconditional.py",
        "--train_data_dir made/train --model_config_name_or_path small-unet --resolution 32 --train_batch_size 8 "
        "--num_epochs 1 --eval_batch_size 2 --ddpm_num_inference_steps 5 --use_ema --output_dir out",
        data=script_data.images_to_make,
    ),
    "lightning": Script("Lightning-AI/pytorch-lightning", "examples/pytorch/bug_report/bug_report_model.py"),
    "fabric": Script(
        "Lightning-AI/pytorch-lightning", "examples/fabric/image_classifier/train_fabric.py",
        data=script_data.mnist_of_lightning,
    ),
}  # fmt: skip


def row(script: Script, sources: Path) -> dict[str, Any]:
    """Estimates a script and takes it through the same steps for real."""
    project = sources / script.repository.replace("/", "+")
    path = project / script.path
    script.make_data(project)
    before = _listed(path.parent)
    started = time.perf_counter()
    predicted, said, measured = None, "", None
    if not script.needs_card:
        predicted, said = estimated_on_cpu(script, project)
    seconds = time.perf_counter() - started
    card, said_on_card = on_device(script, project, CARD)
    if not script.needs_card:
        measured, _ = really(script, project)
    return {
        "repository": script.repository,
        "script": script.path,
        "words": script.words,
        "gpus": script.gpus or 1,
        "needs_card": script.needs_card,
        "predicted_bytes": predicted and predicted["peak_allocated_bytes"],
        "measured_bytes": measured and measured["allocator_peak_bytes"],
        "card_bytes": card and card["total_bytes"],
        "seconds": round(seconds, 1),
        "answered": card and card["answered"],
        "said": said or said_on_card,
        "left_behind": sorted(_listed(path.parent) - before),
    }


def estimated_on_cpu(
    script: Script, project: Path, command: str = "estimate", *options: str
) -> tuple[dict[str, Any] | None, str]:
    """The document of a command about a script on cpu, or the line that it ends with."""
    words = [command, "--device", "cpu", "--json", *_gpus(script), *options, script.place(project)[1]]
    return _run(script, project, words, script.on_cpu)


def on_device(script: Script, project: Path, card: str) -> tuple[dict[str, Any] | None, str]:
    """The estimate of a script for a card of the table, or the line that it ends with."""
    words = ["estimate", "--device", card, "--json", *_gpus(script), script.place(project)[1]]
    return _run(script, project, words, script.on_card)


def really(script: Script, project: Path, *options: str) -> tuple[dict[str, Any] | None, str]:
    """The profile of a script that takes its steps for real, or the line that it ends with."""
    real = ["--steps", "1000", str(REAL_SCRIPT), *options, script.place(project)[1]]
    return _run(script, project, ["profile", "--json", "--no-advice", *real], script.on_cpu, ranks=script.gpus or 1)


def _gpus(script: Script) -> list[str]:
    return [] if script.gpus is None else ["--gpus", str(script.gpus)]


def _run(
    script: Script, project: Path, words: list[str], more: str, ranks: int = 1
) -> tuple[dict[str, Any] | None, str]:
    """The document that a command prints, or the line that it ends with; of several processes the first one's."""
    places = os.pathsep.join([str(_HERE / "src"), str(_HERE), str(project)])
    environment = {**os.environ, **dict(script.variables), "PYTHONPATH": places}
    words = [*words, *script.words.split(), *more.split()]
    folder, _ = script.place(project)
    running = []
    for rank in range(ranks):
        if ranks > 1:
            environment |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "localhost", "MASTER_PORT": "29533",
            }  # fmt: skip
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "snugfit", *words], cwd=folder, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    (said, errors), *_ = [one.communicate() for one in running]
    if running[0].returncode:
        return None, (errors.strip().splitlines() or [""])[-1]
    return json.loads(said), ""


def _listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def main() -> None:
    """Runs the scripts and writes the rows, each in the place of the one of its name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=SCRIPTS, default=list(SCRIPTS))
    args = parser.parse_args()
    sources, told = args.sources.resolve(), ("predicted_bytes", "measured_bytes", "card_bytes", "said")
    for name, made in made_by_name("scripts", args.only, SCRIPTS, lambda name: row(SCRIPTS[name], sources)):
        print(name, json.dumps({key: made[key] for key in told}), flush=True)


if __name__ == "__main__":
    main()
