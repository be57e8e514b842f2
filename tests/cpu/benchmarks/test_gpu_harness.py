"""The harness of the ground truth: rows that survive, halves that do not look at results, and real rows on a CPU."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import patience
import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def gpu():
    """The package, imported from the repository's root."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        for name in (
            "part",
            "rows",
            "harness",
            "parts",
            "configurations",
            "traces",
            "trace_diff",
            "plans",
            "faults",
            "ladder",
        ):
            importlib.import_module(f"benchmarks.gpu.{name}")
        yield importlib.import_module("benchmarks.gpu")


@pytest.fixture
def place(gpu):
    return gpu.part.Place(kind="cpu", card="cpu", torch_version="9.9")


def make_part(gpu, names, predict=None, **changes):
    cases = [gpu.part.Case(name=name, settings={"size": 1}, **changes.get(name, {})) for name in names]
    return gpu.part.Part(
        name="toys", title="Toys", cases=lambda place: cases, measure=lambda name, place: {}, predict=predict,
        line=lambda row: "fine", first=1, timed=True, limit_seconds=30,
    )  # fmt: skip


def run(gpu, place, folder, part, outcome, **options):
    """Runs a part with a function in place of the fresh process; returns counts, lines and rows."""
    said: list[str] = []
    harness = gpu.harness.Harness(place, folder, gpu.harness.Options(**options), say=said.append)
    harness._fresh = lambda part, case, limit: outcome(case.name)
    try:
        counts = harness.run([part])
    finally:
        harness.close()
    return counts, said, gpu.rows.read_rows(folder / place.folder / "toys.jsonl")


def measured(name):
    return {"measured": {"seconds": len(name)}}


def test_a_rerun_does_only_what_is_missing(gpu, place, tmp_path):
    asked = []

    def outcome(name):
        asked.append(name)
        return measured(name)

    part = make_part(gpu, ["a", "b", "c"])
    counts, _, _ = run(gpu, place, tmp_path, part, outcome, rows=2)
    assert counts["measured"] == 2 and asked == ["a", "b"]
    counts, _, rows = run(gpu, place, tmp_path, part, outcome)
    assert (counts["before"], counts["measured"]) == (2, 1) and asked == ["a", "b", "c"]
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["measured"] == {"seconds": 1} and rows[0]["versions"]["torch"] and rows[0]["date"]
    run(gpu, place, tmp_path, part, outcome, again=True)
    assert asked == ["a", "b", "c", "a", "b", "c"]


def test_a_row_whose_settings_changed_is_measured_again(gpu, place, tmp_path):
    run(gpu, place, tmp_path, make_part(gpu, ["a", "b"]), measured)
    changed = make_part(gpu, ["a", "b"])
    case = changed.cases(place)[0]
    case.settings["size"] = 2
    counts, _, rows = run(gpu, place, tmp_path, changed, measured)
    assert counts["measured"] == 1 and rows[0]["settings"] == {"size": 2}


def test_a_failing_row_is_written_and_the_others_go_on(gpu, place, tmp_path):
    def outcome(name):
        return {"error": f"broken at {ROOT}/x"} if name == "a" else measured(name)

    part = make_part(gpu, ["a", "b"])
    counts, said, rows = run(gpu, place, tmp_path, part, outcome)
    assert (counts["failed"], counts["measured"]) == (1, 1)
    assert rows[0]["error"] == "broken at ./x" and "FAILED" in said[0]
    counts, _, rows = run(gpu, place, tmp_path, part, measured)
    assert counts["measured"] == 1 and "error" not in rows[0]


def test_what_a_missing_package_prevents_is_left_out_and_said(gpu, place, tmp_path):
    part = make_part(gpu, ["a", "b", "c"], b={"packages": ("no_such_package",)}, c={"left_out": "not on a CPU"})
    counts, said, rows = run(gpu, place, tmp_path, part, measured)
    assert counts["left_out"] == 2 and counts["measured"] == 1
    assert rows[1]["left_out"] == "not installed: no_such_package" and "not on a CPU" in said[2]


def test_a_prediction_that_cannot_be_made_leaves_its_reason(gpu, place, tmp_path):
    from snugfit.errors import CannotSimulateError, InputError

    def predict(name, place, pool):
        if name == "a":
            raise CannotSimulateError("needs values")
        if name == "b":
            raise InputError("not built yet")
        return {"allocated_bytes": 7}

    _, _, rows = run(gpu, place, tmp_path, make_part(gpu, ["a", "b", "c"], predict), measured)
    assert rows[0]["error"] == "prediction: needs values" and rows[0]["measured"]
    assert rows[1]["left_out"] == "not built yet" and rows[2]["predicted"] == {"allocated_bytes": 7}


def test_it_stops_before_the_time_is_over(gpu, place, tmp_path):
    part = make_part(gpu, ["a", "b", "c"])
    counts, _, rows = run(gpu, place, tmp_path, part, measured, deadline=time.monotonic() + 5)
    assert counts["missing"] == 3 and rows == []

    def too_slow(name):
        return {"error": "stopped after 12.0 s, the time it was given."}

    counts, _, rows = run(gpu, place, tmp_path, part, too_slow, deadline=time.monotonic() + 35)
    assert counts["missing"] == 3 and counts["failed"] == 0 and rows == []


def test_a_line_that_was_cut_off_is_left_out(gpu, tmp_path):
    path = tmp_path / "toys.jsonl"
    path.write_text('{"name": "a", "settings": {}}\n{"name": "b", "sett', encoding="utf-8")
    assert [row["name"] for row in gpu.rows.read_rows(path)] == ["a"]
    path.write_text('{"name": \n{"name": "b"}\n', encoding="utf-8")
    with pytest.raises(json.JSONDecodeError):
        gpu.rows.read_rows(path)


def test_results_are_in_a_folder_by_card_and_torch(gpu):
    place = gpu.part.Place(kind="cuda", card="NVIDIA GeForce RTX 4090", torch_version="2.11.0", capability=(8, 9))
    assert place.folder == "nvidia-geforce-rtx-4090-torch2.11.0"


def test_the_list_of_configurations_is_spread_and_halved_by_name(gpu, place):
    cases = gpu.configurations.cases(place)
    names = [case.name for case in cases]
    assert len(cases) >= 80 and len(set(names)) == len(names)
    halves = [case.half for case in cases]
    assert 0.4 <= halves.count("validation") / len(halves) <= 0.6
    assert {case.name: case.half for case in cases}["vit_b_16 plain"] == "tuning"  # as it was when it was listed
    families = {case.settings["family"] for case in cases}
    assert {"CNN", "ViT", "Swin", "encoder", "decoder", "encoder-decoder", "mixture of experts"} <= families
    first = {case.settings["family"] for case in cases[:24]}
    assert len(first) >= len(families) - 1
    used = {f"{key}={value}" for case in cases for key, value in case.settings["recipe"].items()}
    wanted = {
        "precision=16-mixed", "checkpoint=selective", "offload_activations=all", "optimizer_impl=fused", "quantize=nf4",
        "optimizer=adamw8bit", "adapter=lora", "step_in_backward=True", "accumulate_dtype=fp32",
    }  # fmt: skip
    assert wanted <= used


def test_every_configuration_makes_a_recipe_for_both_kinds(gpu):
    for configuration in gpu.configurations.CONFIGURATIONS:
        for kind in ("cpu", "cuda"):
            run = configuration.run(kind)
            size = run.recipe.microbatch_size
            assert size is None or 1 <= size < configuration.samples(kind), configuration.name


def test_stand_ins_on_a_cpu_are_named_with_their_real_size(gpu):
    """Every model that is another one on a CPU, and no other."""
    for name, subject in gpu.subjects.SUBJECTS.items():
        for package in subject.packages:
            pytest.importorskip(package)
        small = sum(weight.numel() for weight in subject.build("cpu").parameters())
        if name in gpu.subjects.STAND_INS:
            assert small == gpu.subjects.STAND_INS[name]
        else:
            assert small == sum(weight.numel() for weight in subject.build("cuda").parameters()), name


def test_rows_are_snugfit_train_itself_where_it_reads_such_data(gpu, place):
    cases = gpu.configurations.cases(place)
    by = [case.settings["by"] for case in cases]
    assert by.count("snugfit train") >= 120 and set(by) == {"snugfit train", "prepare"}
    words = gpu.configurations.BY_NAME["vit_b_16 microbatch_size=4"].train_words("cpu")
    assert words[0] == "train" and words[words.index("--microbatch-size") + 1] == "2" and "--predict" in words


def test_only_the_tuning_half_is_looked_at_closely(gpu, place):
    halves = {case.name: case.half for case in gpu.configurations.cases(place)}
    assert len(gpu.traces.RUNS) == 10 and all(halves[name] == "tuning" for name in gpu.traces.RUNS)


def test_runs_compared_event_by_event_are_ten_architectures_of_every_family_that_is_looked_at(gpu):
    used = [gpu.configurations.BY_NAME[name].subject for name in gpu.traces.RUNS]
    assert len(set(used)) == 10
    families = {
        gpu.subjects.SUBJECTS[one.subject].family
        for one in gpu.configurations.CONFIGURATIONS
        if gpu.part.half_of(one.name) == "tuning"
    }
    assert {gpu.subjects.SUBJECTS[name].family for name in used} == families


def taken(*kept, step=0, phase="forward", operator="aten.mm.default", inside=0):
    from benchmarks.gpu.operator_events import Taken

    return Taken(step, phase, operator, "layer", tuple(kept), inside)


def test_runs_are_compared_block_by_block(gpu):
    real = [taken(100, 8), taken(50, operator="aten.add.Tensor", inside=30), taken(70, phase="backward")]
    predicted = [
        taken(100),
        taken(8, operator="workspace"),
        taken(50, operator="aten.add.Tensor"),
        taken(60, phase="backward"),
    ]
    found = gpu.trace_diff.compare(real, predicted)
    assert (found.real_blocks, found.real_bytes) == (5, 258)
    assert found.renamed_bytes == 8 and found.matched_bytes == 158
    rows = {(row.operator, row.kind): row for row in found.operators}
    assert rows["aten.mm.default", "kept"].not_predicted_bytes == 70
    assert rows["aten.mm.default", "kept"].not_happened_bytes == 60
    assert rows["aten.add.Tensor", "inside"].not_predicted_bytes == 30
    assert found.operators[0].operator == "aten.mm.default" and "backward" in found.operators[0].example


def test_equal_runs_have_no_difference(gpu):
    run = [taken(100, inside=5), taken(3, step=1)]
    assert gpu.trace_diff.compare(run, list(run)).operators == ()


def test_memory_inside_that_was_predicted_in_another_size_counts_by_the_difference(gpu):
    real = [taken(inside=1000), taken(inside=300), taken(inside=40, phase="backward")]
    predicted = [
        taken(inside=280),
        taken(inside=1010),
        taken(inside=900, phase="backward", operator="aten.bmm.default"),
    ]
    rows = {row.operator: row for row in gpu.trace_diff.compare(real, predicted).operators}
    assert (rows["aten.mm.default"].not_predicted_bytes, rows["aten.mm.default"].not_happened_bytes) == (20 + 40, 10)
    assert "40 bytes not predicted, step 0 backward, layer" in rows["aten.mm.default"].example
    assert rows["aten.bmm.default"].not_happened_bytes == 900


def test_rank_correlation(gpu):
    assert gpu.plans.rank_correlation([(1, 10), (2, 20), (3, 30), (4, 40)]) == 1.0
    assert gpu.plans.rank_correlation([(1, 3), (2, 2), (3, 1)]) == -1.0
    assert gpu.plans.rank_correlation([(1, 1), (2, 2)]) is None


def test_a_plan_is_compared_with_others_within_each_round(gpu):
    rounds = [[10.0, 9.0, 20.0], [30.0, 27.0, 60.0], [20.0, 16.0, 5.0]]  # the machine slows down and comes back
    assert gpu.plans.behind_fastest(rounds, 0, [0, 1, 2]) == pytest.approx(10 / 9)
    assert gpu.plans.behind_fastest(rounds, 1, [1, 2]) == 1.0


def test_plans_compete_with_more_than_ten_others(gpu):
    from snugfit.recipe import Recipe

    others = gpu.plans.other_recipes(Recipe(), 16, 12)
    assert len(others) == len(set(others)) >= 20 and len(gpu.plans.PAIRS) == 10


def test_a_row_is_predicted_and_measured_in_a_process_of_its_own(gpu, tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--only", "accuracy", "--match", "vit_b_16 plain",
               "--results", str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience.SECONDS)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and summary["measured"] == 1, done.stdout + done.stderr
    (row,) = gpu.rows.read_rows(tmp_path / summary["place"] / "accuracy.jsonl")
    predicted, found = row["predicted"]["allocated_bytes"], row["measured"]["allocated_bytes"]
    assert found > 1_000_000 and abs(predicted / found - 1) < 0.01
    assert row["measured"]["rss_bytes"] > 0.5 * found and row["half"] == "tuning"
    place = json.loads((tmp_path / summary["place"] / "place.json").read_text(encoding="utf-8"))
    assert place["kind"] == "cpu" and summary["place"].startswith("cpu-torch")


def test_without_a_card_nothing_is_measured_and_the_reason_is_said():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--device", "cuda"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "no CUDA device" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--only", "accurracy"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "did you mean 'accuracy'" in done.stderr


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize("name", ["fp16 overflow, fp16 weights", "saved and gone on"])
def test_faults_are_survived(gpu, place, name):
    assert gpu.faults.measure(name, place)["passed"]
