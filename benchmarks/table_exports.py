"""Loads what `snugfit export` writes in the tools themselves, and takes a step by it where a processor can.

    python -m benchmarks.table_exports [TOOL ...]

Tools that are not installed keep what an earlier run found. transformers and accelerate come with snugfit's own environment;
the others are installed apart (lightning-fabric, axolotl, llamafactory, torchtitan with tyro and spmd_types): their config
classes are all that is asked of them, so that `pip install --no-deps` does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.export_cases import CASES, case
from benchmarks.results_file import RESULTS, machine, write
from snugfit.errors import RecipeError
from snugfit.interop.export_tables import TOOLS, export_to
from snugfit.interop.exported import Export

SEQ_LEN = 16
PACKAGES = {"hf": "transformers", "fabric": "lightning-fabric"}
"""Tool -> its package, where that has another name."""


def load_hf(made: Export, folder: Path) -> None:
    """TrainingArguments, as a script with HfArgumentParser reads them."""
    from transformers import HfArgumentParser, TrainingArguments

    given = {**json.loads(made.text()), "output_dir": str(folder), "use_cpu": True}
    given.pop("tf32", None)  # refused where no card has it
    HfArgumentParser(TrainingArguments).parse_dict(given)


def load_accelerate(made: Export, folder: Path) -> None:
    """The file, as `accelerate launch` reads it."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    (folder / "a.yaml").write_text(made.text())
    _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(folder / "a.yaml"), "train.py"]))


def load_fabric(made: Export, folder: Path) -> None:
    """Fabric itself; a strategy that needs cards is only looked up."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import STRATEGY_REGISTRY

    given = json.loads(made.text())
    assert given.pop("strategy", "fsdp") in STRATEGY_REGISTRY
    Fabric(**{**given, "devices": 1}, accelerator="cpu")


def load_torchtitan(made: Export, folder: Path) -> None:
    """The arguments, as `torchtitan.train` reads them."""
    from torchtitan.config.manager import ConfigManager

    ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel", *made.text().split()])


def load_axolotl(made: Export, folder: Path) -> None:
    """The schema of axolotl with its checks, for a machine with four cards; `datasets` is what a note asks for."""
    import yaml
    from axolotl.utils.schemas.config import AxolotlConfigWCapabilities, AxolotlInputConfig

    given = {**yaml.safe_load(made.text()), "datasets": [{"path": "texts", "type": "alpaca"}]}
    assert not given.keys() - AxolotlInputConfig.model_fields.keys()
    cards = {"bf16": True, "tf32": True, "n_gpu": 4, "compute_capability": "sm_80", "n_node": 1}
    AxolotlConfigWCapabilities(**given, capabilities=cards, env_capabilities={"torch_version": "2.14.1"})


def load_llamafactory(made: Export, folder: Path) -> None:
    """LLaMA-Factory's parser of arguments, on a machine that it takes for one with bf16; its data are asked for."""
    os.environ["DISABLE_VERSION_CHECK"] = "1"
    import yaml
    from llamafactory.hparams import parser

    parser.is_torch_bf16_gpu_available = lambda: True
    given = {**yaml.safe_load(made.text()), "dataset": "identity", "template": "default", "val_size": 0.1}
    given.pop("tf32", None)
    if given.pop("enable_liger_kernel", False):  # asks for the package
        assert "enable_liger_kernel" in parser.ModelArguments.__dataclass_fields__
    parser.get_train_args({**given, "output_dir": str(folder), "use_cpu": True})


LOADS: dict[str, Callable[[Export, Path], None]] = {
    "hf": load_hf, "accelerate": load_accelerate, "fabric": load_fabric, "torchtitan": load_torchtitan,
    "axolotl": load_axolotl, "llamafactory": load_llamafactory,
}  # fmt: skip


def llama() -> Any:
    """A small Llama, and samples for it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    tokens = torch.randint(0, 64, (16, SEQ_LEN))
    return model, [{"input_ids": row, "labels": row} for row in tokens]


def step_hf(made: Export, folder: Path) -> float:
    """A step of transformers' Trainer."""
    from transformers import Trainer, TrainingArguments

    model, samples = llama()
    given = {**json.loads(made.text()), "output_dir": str(folder), "use_cpu": True, "report_to": "none"}
    return Trainer(model, TrainingArguments(**{**given, "max_steps": 1}), train_dataset=samples).train().training_loss


def step_accelerate(made: Export, folder: Path) -> float:
    """A step under an Accelerator with the precision of the file."""
    import torch
    from accelerate import Accelerator

    model, samples = llama()
    accelerator = Accelerator(mixed_precision=made.config["mixed_precision"], cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    loss = model(**{key: torch.stack([row[key] for row in samples]) for key in samples[0]}).loss
    accelerator.backward(loss)
    optimizer.step()
    return float(loss.detach())


def step_fabric(made: Export, folder: Path) -> float:
    """A step under Fabric."""
    import torch
    from lightning_fabric import Fabric

    model, samples = llama()
    fabric = Fabric(**{**made.config, "devices": 1}, accelerator="cpu")
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    loss = model(**{key: torch.stack([row[key] for row in samples]) for key in samples[0]}).loss
    fabric.backward(loss)
    optimizer.step()
    return float(loss.detach())


STEPS = {"hf": step_hf, "accelerate": step_accelerate, "fabric": step_fabric}
STEPPED = "mixed, checkpointed"


def tried(tool: str, folder: Path) -> Mapping[str, Any]:
    """Loads every case in a tool; returns the row."""
    refused, failed, loaded = [], {}, 0
    for name in CASES:
        try:
            made = export_to(tool, case(name), model="org/model", seq_len=SEQ_LEN)
        except RecipeError:
            refused.append(name)
            continue
        try:
            LOADS[tool](made, folder)
        except (Exception, SystemExit) as error:
            failed[name] = f"{type(error).__name__}: {error}"
        else:
            loaded += 1
    loss = None
    if tool in STEPS:
        loss = STEPS[tool](export_to(tool, case(STEPPED), model="org/model", seq_len=SEQ_LEN), folder)
    version = importlib.metadata.version(PACKAGES.get(tool, tool))
    found = {"version": version, "loaded": loaded, "refused": refused, "failed": failed, "loss_of_a_step": loss}
    return {**found, "torch": machine()["torch"], "date": machine()["date"]}


def main() -> None:
    """Tries the tools that are installed, and writes `results/table_exports.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"some of {', '.join(TOOLS)}. Default: all.")
    asked = parser.parse_args().tools or TOOLS
    path = RESULTS / "table_exports.json"
    tools = json.loads(path.read_text())["tools"] if path.exists() else {}
    for tool in asked:
        try:
            importlib.metadata.version(PACKAGES.get(tool, tool))
        except importlib.metadata.PackageNotFoundError:
            print(f"{tool} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            tools[tool] = tried(tool, Path(folder))
        print(tool, tools[tool])
    write("table_exports", {"tools": {tool: tools[tool] for tool in TOOLS if tool in tools}})


if __name__ == "__main__":
    main()
