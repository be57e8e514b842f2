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
            "metrics": {}, "workload": {"settings": {"batch_norm": False, "dropout": True, "half_weights": False}},
        }  # fmt: skip

    out = tmp_path / "out"
    code = command.run(parse(["ladder", *words, "--out", str(out), "--json", "--device", "cpu"]), note)
    return code, asked, json.loads((out / "ladder.json").read_text()), out


@pytest.mark.parametrize("name", PRESETS)
def test_every_rung_is_a_command_that_parses(tmp_path, capsys, name):
    for mode in ([], ["--estimate"]):
        code, asked, document, out = climb(tmp_path / "-".join(["a", *mode]), "--preset", name, *mode)
        assert code == 0 and len(asked) == len(PRESETS[name].rungs) == len(document["rungs"])
        model = PRESETS[name].model
        if model is None:
            config = out / "model" / "config.json"
            assert json.loads(config.read_text()) == PRESETS[name].config
            model = f"hf:{config}"
        for words in asked:
            given = parse(words)
            assert given.model == model
            assert given.task == PRESETS[name].task
            assert given.seq_len == PRESETS[name].seq_len
            assert given.image_size == PRESETS[name].image_size
            assert (given.model_arg or []) == list(PRESETS[name].model_args)
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


GUIDES = {
    "vit-h-14-fsdp": (16, [22.63, 19.83, 17.63, 17.23, 9.03, 6.68]),
    "distilbert-imdb": (48, [None, 3.99, None, None, 1.15, None]),
    "bigbird-imdb": (48, [None, None, None, None, 4.03, None]),
}
"""Preset -> samples of an update on the guide's four GPUs, and what each rung reserved on each of them, in GB."""


@pytest.mark.parametrize("name", GUIDES)
def test_the_guides_ladders_are_of_four_gpus(tmp_path, capsys, name):
    batch_size, published = GUIDES[name]
    for more, gpus in (([], 4), (["--gpus", "2"], 2)):
        _, asked, document, _ = climb(tmp_path / str(gpus), "--preset", name, "--estimate", *more)
        for words, rung, figure in zip(asked, document["rungs"], published, strict=True):
            given = parse(words)
            assert (given.workload_gpus, given.workload_batch_size) == (str(gpus), str(batch_size))
            assert rung["note"].startswith(f"published: {figure} GB") if figure else rung["note"] == ""
            assert rung["fidelity"]["level"] in ("exact", "rounding")
    last = document["rungs"][-1]["recipe"]
    assert (last["shard"], last["checkpoint"], last["offload_parameters"]) == ("full", "all", "all")


@pytest.mark.parametrize("kind", ["csv", "hf"])
def test_the_guides_tables_of_imdb_are_read(tmp_path, kind, monkeypatch):
    """As its scripts write them: an index, the text and a label in `train.csv`, `val.csv` and `test.csv`."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    from snugfit.workloads.text import TextOptions, open_text
    from snugfit.workloads.text.tokenizer import byte_tokenizer

    reviews = ["A wonderful film, <br />really.", "Dull, and far too long."]
    for part, rows in (("train", 8), ("val", 4), ("test", 4)):
        lines = [f'{number},"{reviews[number % 2]}",{1 - number % 2}' for number in range(rows)]
        (tmp_path / "imdb").mkdir(exist_ok=True)
        (tmp_path / "imdb" / f"{part}.csv").write_text("\n".join(["index,text,label", *lines]) + "\n")
    preset = PRESETS["distilbert-imdb"]
    options = TextOptions(task=preset.task, seq_len=preset.seq_len)
    data = open_text(f"{kind}:{tmp_path / 'imdb'}", options, tokenizer=byte_tokenizer(), vocabulary=259)
    assert data.num_classes == preset.config["num_labels"] and data.class_names == ("0", "1")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [8, 4, 4]
    batch = data.train.batch([0, 1])
    texts = [bytes(int(one) - 3 for one in ids if one > 2).decode() for ids in batch["input_ids"]]
    assert texts == reviews and batch["labels"].tolist() == [1, 0]


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
        (["--preset", "vit-h-14-fsdp", "--seq-len", "8"], "--seq-len has no place"),
        (["--preset", "vit-h-14-fsdp", "--model-arg", "image_size=8"], "--model-arg has no place"),
        (["--preset", "vit-h-14-fsdp", "--image-size", "224"], "--image-size has no place"),
        (["--preset", "llama-1b", "--estimate", "--card", "rtx"], "rtx"),
        ([], "MODEL must be given, or --preset"),
        (["timm:resnet18"], "--data must be given"),
        (["timm:resnet18", "--data", "digits", "--card", "rtx-4090"], "--card is for --estimate"),
        (["--preset", "llama-1b", "--card", "rtx-4090"], "--card is for --estimate"),
        (["timm:resnet18", "--estimate", "--card", "rtx-4090,t4"], "predicted for one card"),
    ],
)
def test_bad_input(tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        command.run(parse(["ladder", *words, "--out", str(tmp_path / "out")]))


@pytest.mark.parametrize(
    ("card", "names"),
    [("t4", "fp32,16-mixed,offload"), ("rtx-4090", "fp32,bf16-mixed,offload"), ("cpu", "fp32,bf16-mixed")],
)
def test_a_predicted_ladder_is_that_of_its_card(tmp_path, monkeypatch, card, names):
    monkeypatch.setattr(command, "_train_in_fresh_process", lambda argv, progress: ESTIMATED)
    words = ["ladder", "timm:resnet18", "--estimate", "--card", card, "--rungs", names, "--out", str(tmp_path / "out")]
    assert main(words) == 0


@pytest.mark.parametrize("name", ["ladder.json", "ladder.png", "rungs/fp32/weights.pt"])
def test_nothing_is_replaced_unasked(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setattr(command, "_train_in_fresh_process", lambda argv, progress: ESTIMATED)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    words = ["ladder", "timm:resnet18", "--estimate", "--rungs", "fp32", "--out", str(tmp_path)]
    assert main(words) == 2 and (tmp_path / name).read_text() == "mine"
    assert f"holds {name.partition('/')[0]} already. Give --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "_train_in_fresh_process", lambda argv, progress: ESTIMATED)
    words = ["ladder", "--preset", "llama-1b", "--estimate", "--rungs", "full,qlora", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "llama-1b predicted for rtx-4090" in printed and "qlora" in printed and "1.00 KiB" in printed
