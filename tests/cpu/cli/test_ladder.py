"""The ladder: its rungs, its command with a training that is made up, and one real short run."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import patience
import pytest

from snugfit.cli import ladder as command
from snugfit.cli import parse
from snugfit.cli.ladder_parts import settings_words
from snugfit.errors import CannotSimulateError, InputError, TrainingError
from snugfit.ladder import build_ladder
from snugfit.run import contradictions
from snugfit.workload import Workload

NAMES = [
    "fp32", "bf16-mixed", "bf16-true", "batch-16", "accumulate-4x4", "sgd-cosine", "checkpoint", "step-in-backward",
]  # fmt: skip


def cpu_ladder(**more):
    return build_ladder(Workload(epochs=2, lr=2e-3), device="cpu", **more)


def test_rungs_are_the_guides_in_their_order():
    ladder = cpu_ladder()
    assert [rung.name for rung in ladder.rungs] == NAMES
    assert list(ladder.left_out) == ["offload"]
    assert [rung.fidelity_against(ladder.first).level for rung in ladder.rungs] == [
        "exact", "rounding", "rounding", "different", "different", "different", "different", "different",
    ]  # fmt: skip
    rungs = {rung.name: rung for rung in ladder.rungs}
    assert rungs["fp32"].recipe.to_mapping(defaults=False) == {}
    assert [rung.workload.batch_size for rung in ladder.rungs] == [64, 64, 64, 16, 16, 16, 16, 4]
    assert {rung.workload.optimizer for rung in ladder.rungs[:5]} == {"adam"}
    assert {rung.workload.lr for rung in ladder.rungs[:5]} == {2e-3}
    assert {(rung.workload.optimizer, rung.workload.lr_schedule) for rung in ladder.rungs[5:]} == {("sgd", "cosine")}
    assert rungs["accumulate-4x4"].recipe.microbatch_size == 4
    assert rungs["step-in-backward"].workload.lr == pytest.approx(rungs["checkpoint"].workload.lr / 4)
    assert rungs["checkpoint"].recipe.checkpoint == "all"
    last = rungs["step-in-backward"]
    assert last.recipe.step_in_backward and last.recipe.microbatch_size is None
    assert "batch_size" in last.fidelity_against(ladder.first).reasons


def test_every_rung_keeps_what_the_one_before_brought():
    rungs = cpu_ladder().rungs
    gone = {"precision": {"bf16-mixed"}, "microbatch_size": {4}}  # true bf16 replaces mixed; accumulation ends at last
    for before, after in itertools.pairwise(rungs):
        for field, value in before.recipe.to_mapping(defaults=False).items():
            assert getattr(after.recipe, field) == value or value in gone[field]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 7, 8, 16, 31, 64, 100, 1000])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_any_batch_size_gives_a_ladder_without_contradictions(batch_size, device):
    ladder = build_ladder(Workload(), device=device, batch_size=batch_size)
    names = [rung.name for rung in ladder.rungs]
    assert len(set(names)) == len(names)
    assert not set(names) & set(ladder.left_out)
    for rung in ladder.rungs:
        assert list(contradictions(rung.recipe, rung.workload)) == []
    sizes = [rung.workload.batch_size for rung in ladder.rungs]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == batch_size


def test_cuda_has_offload_and_old_cards_take_fp16():
    ladder = build_ladder(Workload(), device="cuda", bf16=False)
    assert [rung.name for rung in ladder.rungs][1] == "16-mixed"
    assert ladder.rungs[-1].name == "offload"
    assert ladder.rungs[-1].recipe.offload_activations == "checkpoints"
    assert ladder.left_out == {}


def test_batch_norm_lowers_the_fidelity_of_accumulation():
    ladder = cpu_ladder()
    rung = ladder.rungs[4]
    reasons = rung.fidelity_against(ladder.first, batch_norm=True).reasons
    assert reasons["microbatch_size"][0] == "different"
    assert rung.fidelity_against(ladder.first).reasons["microbatch_size"][0] == "rounding"


def test_chosen_rungs_stay_as_they_are():
    ladder = cpu_ladder()
    chosen = ladder.choose(["checkpoint", "fp32"])
    assert [rung.name for rung in chosen.rungs] == ["fp32", "checkpoint"]
    assert chosen.rungs[1] == ladder.rungs[6]
    with pytest.raises(InputError, match="did you mean 'checkpoint'"):
        ladder.choose(["chekpoint"])
    with pytest.raises(InputError, match="no second memory"):
        ladder.choose(["offload"])
    with pytest.raises(InputError, match="no rung is chosen"):
        ladder.choose([])


def document(peak_bytes=1000):
    return {
        "predicted": None,
        "measured": {"peak_tensor_bytes": peak_bytes, "host_tensor_bytes": 0, "rss_bytes": peak_bytes + 5},
        "seconds": 2.5,
        "samples_per_second": 100.0,
        "metrics": {"test_accuracy": 0.96},
        "workload": {"settings": {"batch_norm": False, "dropout": True, "half_weights": False}},
    }


def climb(tmp_path, train, *more):
    args = parse(["ladder", "m.py:f", "--data", "digits", "--device", "cpu", "--out", str(tmp_path / "out"), *more])
    return command.run(args, train)


def test_json_files_and_live_table(tmp_path, capsys):
    asked = []

    def train(argv):
        asked.append(argv)
        return document(4_000_000 // len(asked))

    assert climb(tmp_path, train, "--epochs", "3") == 0
    out = capsys.readouterr().out
    rungs = json.loads((tmp_path / "out/ladder.json").read_text())["rungs"]
    assert [rung["name"] for rung in rungs] == NAMES
    assert [rung["measured"]["peak_tensor_bytes"] for rung in rungs] == [4_000_000 // (at + 1) for at in range(8)]
    for name in ("recipe", "workload", "fidelity", "seconds", "samples_per_second", "metrics", "error"):
        assert all(name in rung for rung in rungs)
    # Dropout, which only training can tell, makes microbatches different.
    assert rungs[4]["fidelity"]["reasons"]["microbatch_size"][0] == "different"
    assert (tmp_path / "out/ladder.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out/ladder.svg").read_text()[:2000]
    assert "488 KiB" in out and "8.0x" in out and "96.00%" in out
    assert "left out: offload" in out
    assert str(tmp_path / "out/ladder.svg") in out
    for rung, argv in zip(rungs, asked, strict=True):
        assert argv[:4] == ["train", "m.py:f", "--data", "digits"]
        assert argv[argv.index("--run-dir") + 1] == str(tmp_path / "out/rungs" / rung["name"])
        assert argv[argv.index("--epochs") + 1] == "3"


def test_rung_arguments_mean_what_the_rung_says(tmp_path):
    from snugfit.cli.options import settings_from

    asked = []
    climb(tmp_path, lambda argv: asked.append(argv) or document(), "--freeze", "a.*,b", "--seed", "3", "--json")
    rungs = build_ladder(Workload(freeze=("a.*", "b"), seed=3), device="cpu").rungs
    for rung, argv in zip(rungs, asked, strict=True):
        assert settings_from(parse(argv)) == (rung.recipe, rung.workload)


def test_a_rung_that_fails_says_why_and_the_others_go_on(tmp_path, capsys):
    def train(argv):
        if "--checkpoint" in argv and "--step-in-backward" not in argv:
            raise TrainingError("the loss is NaN at step 3.")
        return document()

    assert climb(tmp_path, train) == 0
    assert "failed: the loss is NaN at step 3." in capsys.readouterr().out
    rungs = json.loads((tmp_path / "out/ladder.json").read_text())["rungs"]
    assert [rung["error"] for rung in rungs if rung["error"]] == ["the loss is NaN at step 3."]
    assert rungs[6]["measured"] is None and rungs[7]["measured"] is not None


def test_exit_code_when_the_first_rung_fails(tmp_path, capsys):
    def train(argv):
        raise CannotSimulateError("no")

    assert climb(tmp_path, train, "--json", "--rungs", "fp32,checkpoint") == 4
    assert [rung["error"] for rung in json.loads(capsys.readouterr().out)["rungs"]] == ["no", "no"]


def test_a_ladder_that_is_stopped_leaves_the_rungs_it_climbed(tmp_path):
    def train(argv):
        if "bf16-true" in argv:
            raise KeyboardInterrupt
        return document()

    with pytest.raises(KeyboardInterrupt):
        climb(tmp_path, train)
    assert [rung["name"] for rung in json.loads((tmp_path / "out/ladder.json").read_text())["rungs"]] == NAMES[:2]


def test_an_earlier_ladder_is_not_replaced_unasked(tmp_path):
    climb(tmp_path, lambda argv: document(), "--rungs", "fp32")
    with pytest.raises(InputError, match="--overwrite"):
        climb(tmp_path, lambda argv: document(), "--rungs", "fp32")
    assert climb(tmp_path, lambda argv: document(), "--rungs", "fp32", "--overwrite") == 0


def test_without_matplotlib_table_and_json_still_come(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert climb(tmp_path, lambda argv: document(), "--rungs", "fp32") == 0
    captured = capsys.readouterr()
    assert "pip install 'snugfit[report]'" in captured.err
    assert "fp32" in captured.out and "ladder.png" not in captured.out
    assert (tmp_path / "out/ladder.json").exists()


def test_help_loads_no_torch():
    for name in ("ladder", "techniques"):
        program = (
            f"import sys; from snugfit.cli import main\n"
            f"try: main(['{name}', '--help'])\n"
            f"except SystemExit: pass\n"
            f"assert not {{'torch', 'matplotlib', 'numpy'}} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=patience.SECONDS)


def test_a_setting_of_zero_is_passed_on_to_the_rungs():
    ladder = build_ladder(Workload(weight_decay=0.0), device="cpu")
    for rung in ladder.rungs:
        words = settings_words(rung)
        assert words[words.index("--weight-decay") + 1] == "0.0"
