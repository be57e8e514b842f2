"""`snugfit verify`: six recipes, run as `snugfit train` runs them."""

import functools
import importlib.metadata
import itertools
import json

import pytest

import snugfit
from snugfit.calibration import verification
from snugfit.calibration.calibrate import calibrate
from snugfit.cli import main
from snugfit.cli import verify as verify_command
from snugfit.errors import InputError
from snugfit.runs.run_files import METRICS


def trained(argv, *, on_line=None, tuned=True):
    """Stands for a run: what it says depends on the recipe, and lies in its run directory."""
    from pathlib import Path

    assert argv[0] == "train" and not tuned
    if "--checkpoint=all" in argv:
        raise InputError("there are no blocks")
    run_dir = Path(argv[argv.index("--run-dir") + 1])
    run_dir.mkdir()
    rows = [{"step": step, "loss": 1.0, "samples_per_second": 1.0 if step < 12 else 80.0} for step in range(1, 22)]
    (run_dir / METRICS).write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": 21, "test_loss": 1.0}]))
    peak = 2**20 if "--precision=bf16-mixed" in argv else 2**21
    return {
        "predicted": {"peak_tensor_bytes": peak, "step_seconds": 0.12},
        "measured": {"peak_tensor_bytes": 2**21, "rss_bytes": None},
        "device": "cpu",
        "torch_version": "2",
    }


@pytest.fixture
def fast(monkeypatch):
    """Runs that take no time."""
    monkeypatch.setattr(verification, "verify", functools.partial(verification.verify, run=trained))


def test_each_recipe_is_a_row_with_what_was_predicted_and_measured(fast, capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert main(["verify", "--device", "cpu", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in shown.splitlines()}
    assert "2.00 MiB" in lines["plain"] and "+0.00%" in lines["plain"] and "+20%" in lines["plain"]
    assert "-50.00%" in lines["bf16-mixed"] and "there are no blocks" in lines["checkpointing"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["name"] for row in rows] == list(verification.recipes(8))
    assert rows[0]["measured"]["step_seconds"] == pytest.approx(0.1) and "error" in rows[2]
    assert main(["verify", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == rows


def test_a_report_has_the_rows_the_machine_and_its_versions(fast, tmp_path, capsys):
    import torch

    file = tmp_path / "report.json"
    assert main(["verify", "--device", "cpu", "--batch-size", "4", "--report", str(file)]) == 0
    found = json.loads(file.read_text())
    assert [row["name"] for row in found["rows"]] == list(verification.recipes(4))
    assert found["asked"]["batch_size"] == 4 and found["asked"]["model"] is None
    assert found["versions"]["torch"] == importlib.metadata.version("torch") and found["snugfit"] == snugfit.__version__
    assert f"{torch.get_num_threads()} thread" in found["machine"]["processor"] and found["machine"]["card"] is None
    assert str(file) in capsys.readouterr().err


def test_it_ends_in_time_and_says_what_is_left_out(monkeypatch, capsys):
    """Each recipe takes two minutes."""
    clock = itertools.count(0, 60)
    monkeypatch.setattr(verify_command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(verification, "verify", functools.partial(verification.verify, run=trained))
    assert main(["verify", "--device", "cpu", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    names = list(verification.recipes(8))
    assert [row["name"] for row in found["rows"]] + found["left_out"] == names and 1 < len(found["left_out"]) < 6
    assert f"no time for {', '.join(found['left_out'])}; --minutes 6 " in shown.err


def test_a_model_that_cannot_be_run_is_one_message(monkeypatch, capsys):
    def refuses(*words, **settings):
        raise InputError("model 'nonesuch' is unknown")

    monkeypatch.setattr(verification, "verify", functools.partial(verification.verify, run=refuses))
    assert main(["verify", "timm:nonesuch", "--device", "cpu"]) == 2
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == "snugfit: model 'nonesuch' is unknown" and not shown.out


def test_a_real_run_of_the_stock_model_takes_the_predicted_bytes(tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(verification, "STEPS", 11)
    calibrate(torch.device("cpu"))
    words = [verification.STOCK, "--image-size", str(verification.STOCK_IMAGE_SIZE), "--device", "cpu"]
    row = verification.verify("plain", {"precision": "bf16-mixed"}, words, batch_size=2)
    found = verification.compared(row)
    predicted, measured = found["allocated"]
    assert abs(predicted / measured - 1) < 0.01
    assert all(seconds > 0 for seconds in found["seconds"])
