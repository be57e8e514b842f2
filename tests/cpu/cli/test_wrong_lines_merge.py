"""`snugfit merge` typed wrong: one message, exit code 2, and nothing written."""

import json

import pytest
from wrong_lines import FILES, check, every, wrong

from snugfit.recipe import Recipe
from snugfit.runs.run_dir import RunDirectory

LINES = [
    wrong("merge", "the following arguments are required: RUN_DIR", "see `snugfit merge --help`"),
    wrong("merge run", "the following arguments are required: -o/--output", "see `snugfit merge --help`"),
    wrong("merge run -o", "expected one argument"),
    wrong("merge run -o ''", "'' names no file or folder", "give a path"),
    wrong("merge nowhere -o out", "'nowhere' does not exist", "Give that of a finished run"),
    wrong("merge empty.yaml -o out", "'empty.yaml' does not exist", "Give that of a finished run"),
    wrong("merge llama -o out", "'llama' is a folder without a run in it", "`snugfit train`"),
    wrong("merge run plain -o out", "unexpected argument 'plain'"),
    wrong("merge plain -o out", "trained no adapter (adapter=none)", "model.safetensors has the whole weights"),
    wrong("merge early -o out", "has saved no adapter: it is not finished", "snugfit train --run-dir early --resume"),
    wrong("merge altered -o out", "workload.yaml", "data is missing"),
    *every("merge run -o {}", "llama empty.yaml run", "-o '{}' is there already", "Give a folder that is not there"),
    wrong("merge run -o empty.yaml/out", "'empty.yaml/out' cannot be written", "Give another -o DIR"),
    wrong("merge run -o out", "packed random values, which are in no file"),
    wrong("merge python -o out", "came from Python (python:build)", "snugfit.merge_adapter(model)"),
    wrong("merge gone -o out", "'hf:was/here'", "config.json"),
    wrong("merge damaged -o out", "adapter_config.json' is not understood"),
    wrong("merge run -o out --overwrite", "unknown option '--overwrite'", "`snugfit train`"),
]
"""Of what `folder` below has made."""


def stored(model):
    """All that a run keeps of its request."""
    nothing = dict.fromkeys(("image_size", "seq_len", "text_column", "label_column", "prompt_column", "samples"))
    more = {"model_args": [], "data": "prose", "task": "causal-lm", "packing": False, "strict": False, "device": "cpu"}
    return {**nothing, **more, "model": model, "settings": {"batch_size": 4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs without an adapter, without its weights, not finished, altered; and what is no run."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(FILES["llama/config.json"])
    (folder / "empty.yaml").write_text("")
    packed = Recipe(adapter="lora", quantize="int8")
    made = {
        "plain": (Recipe(), "hf:llama/config.json"),
        "run": (packed, "hf:llama/config.json"),
        "early": (packed, "hf:llama/config.json"),
        "python": (packed, "python:build"),
        "gone": (packed, "hf:was/here"),
        "damaged": (packed, "hf:llama/config.json"),
        "altered": (packed, "hf:llama/config.json"),
    }
    for name, (recipe, model) in made.items():
        RunDirectory.create(folder / name, recipe, stored(model)).close()
        if name not in ("plain", "early"):
            (folder / name / "adapter").mkdir()
            config = {"peft_type": "LORA", "r": 1, "target_modules": ["q_proj"]}
            (folder / name / "adapter" / "adapter_config.json").write_text(
                "{" if name == "damaged" else json.dumps(config)
            )
            (folder / name / "adapter" / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (folder / "altered" / "workload.yaml").write_text("model: m.py:f\n")
    return folder


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(folder, monkeypatch, capsys, line):
    monkeypatch.chdir(folder)
    check(line, folder, capsys)
