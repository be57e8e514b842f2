"""Ladders by name: what they ask `snugfit train` and `snugfit estimate` to do, and what is refused."""

import json

import pytest

from snugfit.cli import ladder as command
from snugfit.cli import main, parse
from snugfit.errors import InputError
from snugfit.ladder_presets import PRESETS, RANDOM_STEPS
from snugfit.report.ladder_figure import peak_bytes
from snugfit.run import contradictions

ESTIMATED = {
    "peak_allocated_bytes": 900, "peak_reserved_bytes": 1000, "context_bytes": 24, "context_source": "published",
    "total_bytes": 1024, "host_bytes": 0,
    "anatomy_bytes": {}, "experts_bytes": {}, "peak_phase": "backward", "step_seconds": 0.5, "flops": 1, "device": "x",
}  # fmt: skip


def climb(tmp_path, *words):
    """Runs a ladder with a training that only takes notes."""
    asked = []

    def note(argv):
        asked.append(list(argv))
        if argv[0] == "estimate":
            return ESTIMATED
        return {
            "predicted": None, "measured": {"peak_tensor_bytes": 100}, "seconds": 1.0, "samples_per_second": 2.0,
            "metrics": {}, "workload": {"settings": {"batch_norm": False, "dropout": True}},
        }  # fmt: skip

    out = tmp_path / "out"
    code = command.run(parse(["ladder", *words, "--out", str(out), "--json", "--device", "cpu"]), note)
    return code, asked, json.loads((out / "ladder.json").read_text()), out


@pytest.mark.parametrize("name", PRESETS)
def test_every_rung_is_a_command_that_parses(tmp_path, capsys, name):
    for mode in ([], ["--estimate"]):
        code, asked, document, out = climb(tmp_path / "-".join(["a", *mode]), "--preset", name, *mode)
        assert code == 0 and len(asked) == len(PRESETS[name].rungs) == len(document["rungs"])
        config = out / "model" / "config.json"
        assert json.loads(config.read_text()) == PRESETS[name].config
        for words in asked:
            given = parse(words)
            assert given.model == f"hf:{config}"
            assert given.task == PRESETS[name].task
            assert given.seq_len == PRESETS[name].seq_len
            if not mode:
                assert given.data == "random"


def test_rungs_have_no_contradictions_and_state_their_fidelity():
    for preset in PRESETS.values():
        ladder = preset.ladder({}, random_data=True)
        for rung in ladder.rungs:
            assert not list(contradictions(rung.recipe, rung.workload)), (preset.name, rung.name)
            assert rung.workload.max_steps == RANDOM_STEPS
    levels = {rung.name: rung.fidelity_against(ladder.first).level for rung in ladder.rungs}
    assert (levels["adamw8bit"], levels["lora"], levels["qlora"]) == ("rounding", "different", "different")


def test_low_bit_optimizers_are_asked_for_by_their_name(tmp_path, capsys):
    _, asked, _, _ = climb(tmp_path, "--preset", "bert-large-512", "--rungs", "adamw8bit,adafactor")
    assert [words[words.index("--optimizer") + 1] for words in asked] == ["adafactor", "adamw8bit"]
    assert all(words.count("--optimizer") == 1 for words in asked)


def test_real_data_takes_whole_epochs(tmp_path, capsys):
    _, asked, _, _ = climb(
        tmp_path, "--preset", "distilbert-imdb", "--data", "csv:reviews.csv", "--text-column", "review", "--lr", "1e-4",
        "--rungs", "bf16-true",
    )  # fmt: skip
    (words,) = asked
    given = parse(words)
    assert (given.data, given.text_column, given.workload_max_steps) == ("csv:reviews.csv", "review", None)
    assert float(given.workload_lr) == 1e-4


def test_an_estimated_ladder_says_so(tmp_path, capsys):
    _, asked, document, _ = climb(tmp_path, "--preset", "llama-8b", "--estimate", "--card", "rtx-4090")
    assert {parse(words).device for words in asked} == {"rtx-4090"}
    assert document["device"] == "rtx-4090" and document["data"] is None
    for rung in document["rungs"]:
        assert rung["measured"] is None and rung["run_dir"] is None
        assert peak_bytes(rung) == rung["predicted"]["total_bytes"] == 1024


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "bert"], "preset 'bert' is unknown"),
        (["--preset", "llama-1b", "timm:resnet18"], "MODEL has no place beside --preset llama-1b"),
        (["--preset", "llama-1b", "--batch-size", "8"], "--batch-size has no place"),
        (["--preset", "llama-1b", "--rungs", "sgd"], "rung 'sgd' is unknown"),
        (["--preset", "llama-1b", "--estimate", "--card", "rtx"], "rtx"),
        ([], "MODEL must be given, or --preset"),
        (["timm:resnet18"], "--data must be given"),
        (["timm:resnet18", "--data", "digits", "--card", "rtx-4090"], "--card is for --estimate"),
    ],
)
def test_bad_input(tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        command.run(parse(["ladder", *words, "--out", str(tmp_path / "out")]))


def test_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "_train_in_fresh_process", lambda argv, progress: ESTIMATED)
    words = ["ladder", "--preset", "llama-1b", "--estimate", "--rungs", "full,qlora", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "llama-1b predicted for rtx-4090" in printed and "qlora" in printed and "1.00 KiB" in printed
