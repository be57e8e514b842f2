"""`snugfit profile`, as a person would type it: the script's own output, the card, JSON, files, exit codes."""

import json
import pickle
import re
from pathlib import Path

import pytest
from command_line import run_command
from run_code import run_code

SCRIPT = """
import os, subprocess, sys
import torch
print("started with", sys.argv[1:])
sys.stdout.flush()
os.write(1, b"from below python\\n")
subprocess.run([sys.executable, "-c", "print('from a child')"])
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
print("finished", step)
if "--fail" in sys.argv:
    raise RuntimeError("broken on purpose")
"""
WEIGHTS = 4 * (64 * 64 + 64)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_the_scripts_output_goes_on_and_the_card_follows(folder):
    done = run_command("profile", "--no-advice", "train.py", "--lr", "0.1", "--json", cwd=folder, installed=True)
    assert done.returncode == 0, done.stderr
    before, card = done.stdout.split("snugfit profile of train.py")
    assert before.splitlines()[:4] == [
        "started with ['--lr', '0.1', '--json']", "from below python", "from a child", "finished 3",
    ]  # fmt: skip
    for text in (
        "3 steps watched on cpu",
        "at the peak",
        "optimizer state",
        "Largest tensors",
        "Blocks",
        "No advice: it was not asked for.",
    ):
        assert text in card
    assert all(len(line) <= 120 for line in card.splitlines())


def test_json_is_alone_on_stdout_and_files_are_written(folder):
    words = ["--json", "--steps", "2", "--stop", "--timeline", "t.html", "--snapshot", "s.pickle", "--no-advice"]
    done = run_command("profile", *words, "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "from a child" in done.stderr and "from below python" in done.stderr and "finished" not in done.stderr
    assert found["steps"] == 2 and found["device"] == "cpu" and found["peak_reserved_bytes"] is None
    assert sum(found["anatomy_bytes"].values()) == found["peak_allocated_bytes"] == found["allocator_peak_bytes"]
    assert found["anatomy_bytes"]["weights"] == found["anatomy_bytes"]["gradients"] == WEIGHTS
    assert {"size_bytes", "category", "module", "operator", "phase", "line"} == set(found["largest_tensors"][0])
    page = (folder / "t.html").read_text()
    (shown,) = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["documents"]
    assert shown["kind"] == "profile" and {"anatomy", "timeline"} <= set(shown["sections"])
    assert max(shown["sections"]["timeline"]["total"]) == found["peak_allocated_bytes"]
    snapshot = pickle.loads((folder / "s.pickle").read_bytes())
    assert snapshot["device_traces"][0] and snapshot["segments"] is not None


def test_a_figure_is_a_png(folder):
    pytest.importorskip("matplotlib")
    done = run_command(
        "profile", "--timeline", "t.png", "--steps", "1", "--stop", "--no-advice", "train.py", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "t.png").read_bytes().startswith(b"\x89PNG")


def test_a_script_that_fails_shows_its_traceback_and_its_profile(folder):
    done = run_command("profile", "--no-advice", "train.py", "--fail", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and done.stderr.endswith("RuntimeError: broken on purpose\n")
    assert "exit code 1" in done.stdout and "optimizer state" in done.stdout


def test_the_example_gets_advice(tmp_path):
    example = Path(__file__).parents[3] / "examples" / "plain_training.py"
    done = run_command("profile", "--json", example, "--batch-size", "8", "--steps", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    advice = found["advice"]["suggestions"][0]
    assert advice["recipe"] == {"checkpoint": "all"} and advice["saved_bytes"] > found["peak_allocated_bytes"] / 4
    assert advice["text"].startswith("Checkpointing these 4 blocks would save about")
    assert found["advice"]["simulated_peak_bytes"] == pytest.approx(found["peak_allocated_bytes"], rel=0.05)


def test_the_command_imports_no_torch_for_its_help():
    code = "import sys, snugfit.cli.profile; sys.exit('torch' in sys.modules)"
    assert run_code(code, without_torch=True).returncode == 0


def test_compiled_code_runs_and_says_nothing(folder):
    text = "import torch\nf = torch.compile(lambda x: x * 2 + 1, backend='eager')\nprint(f(torch.ones(3)).tolist())\n"
    (folder / "compiled.py").write_text(text)
    done = run_command("profile", "--no-advice", "compiled.py", cwd=folder)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("[3.0, 3.0, 3.0]\n")
