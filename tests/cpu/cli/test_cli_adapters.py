"""Adapters and quantised weights from the command: what a run leaves, how it resumes, what is refused."""

import json

import pytest
import torch
from command_line import run_command, tiny_run
from safetensors.torch import load_file
from test_cli_train import own_model

import snugfit

pytest.importorskip("peft", reason="adapters need peft")
pytest.importorskip("bitsandbytes", reason="nf4 needs bitsandbytes")


def test_a_run_leaves_adapter_and_merged_model(folder):
    ended = run_command(*tiny_run("--adapter", "dora", "--adapter-rank", "2", "--run-dir", "run", "--json"), cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["fidelity"]["level"] == "different"
    assert "dora beside 2 linear layers: " in ended.stderr
    own_model(folder).load_state_dict(load_file(folder / "run" / "model.safetensors"))
    stored = load_file(folder / "run" / "adapter" / "adapter_model.safetensors")
    assert {name.partition("base_model.model.")[2].partition(".")[0] for name in stored} == {"4", "7"}


def test_a_quantised_run_leaves_its_adapter_and_resumes(folder):
    words = tiny_run("--adapter", "lora", "--quantize", "nf4", "--run-dir", "run")
    first = run_command(*words, "--max-steps", "4", cwd=folder)
    assert first.returncode == 0, first.stderr
    assert "nf4: 2 linear layers packed by the kernels of bitsandbytes" in first.stderr
    assert not (folder / "run" / "model.safetensors").exists()
    more = run_command("train", "--run-dir", "run", "--resume", "--max-steps", "6", cwd=folder)
    assert more.returncode == 0, more.stderr
    whole = run_command(*words[:-1], "whole", "--max-steps", "6", cwd=folder)
    assert whole.returncode == 0, whole.stderr
    files = [load_file(folder / run / "adapter" / "adapter_model.safetensors") for run in ("run", "whole")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(value, files[1][name]) for name, value in files[0].items())
    model = own_model(folder)
    snugfit.load_adapter(model, folder / "run" / "adapter")
    snugfit.merge_adapter(model)
