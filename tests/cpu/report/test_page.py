"""The page of a document: what is on it, that it asks for nothing, and that the dial says what `Budgets.at` does."""

import ast
import dataclasses
import itertools
import json
import math
import random
import re
import shlex
import warnings

import pytest
from shown_models import NAME

from snugfit.cli import main, parse
from snugfit.cli.options import recipe_from
from snugfit.cli.report import _document
from snugfit.errors import DoesNotFitError, InputError
from snugfit.planner.budgets import BudgetPoint, Budgets
from snugfit.recipe import Recipe
from snugfit.report.page import page_data
from snugfit.report.page.comparison import _timelines
from snugfit.report.page.dial import dial
from snugfit.report.page.sections import curve
from snugfit.simulator.request import NamedModel
from snugfit.units import GIB, MIB, format_bytes, format_seconds
from snugfit.workload import Workload


@pytest.fixture
def report(documents, tmp_path, monkeypatch, capsys):
    """A function from names of documents to what the command printed, and the data of the page."""

    def made(*names):
        monkeypatch.chdir(documents)
        capsys.readouterr()
        assert main(["report", *names, "-o", str(tmp_path / "page.html"), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        text = (tmp_path / "page.html").read_text()
        assert told["path"] == str(tmp_path / "page.html") and told["bytes"] == len(text.encode()) < 2_000_000
        return told, json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])

    return made


PARTS = {
    "plan.json": {"facts", "dial", "anatomy", "timeline", "largest", "why"},
    "before.json": {"facts", "anatomy", "timeline", "largest"},
    "cards.json": {"facts", "anatomy", "timeline", "largest", "cards"},
    "gpus.json": {"facts", "anatomy", "timeline", "largest", "ranks"},
    "run": {"facts", "measured", "curve"},
    "stopped": {"facts", "curve"},
    "ladder": {"rungs"},
}


@pytest.mark.parametrize("name", PARTS)
def test_a_page_has_what_the_document_holds_and_no_more(report, name):
    told, data = report(name)
    (document,) = data["documents"]
    assert set(document["sections"]) == PARTS[name] == set(told["documents"][0]["parts"])
    for found in document["sections"].values():
        if (table := found.get("table")) is not None:
            assert {len(row) for row in table["rows"]} == {len(table["columns"])}


def test_a_page_asks_for_nothing_and_takes_no_text_for_markup(report, tmp_path):
    _, data = report("plan.json")
    text = (tmp_path / "page.html").read_text()
    ours = "".join(text.split(text.split("<script>")[1].split("</script>")[0]))
    assert "default-src 'none'" in ours
    assert not re.search(
        r"https?://|@[A-Z]+@|innerHTML|insertAdjacentHTML|document\.write|<link rel=\"?stylesheet", ours
    )
    assert NAME not in text and text.count("</script>") == 3
    assert any(NAME in row["module"] for row in data["documents"][0]["sections"]["anatomy"]["rows"])


def test_bytes_at_the_peak_are_those_of_the_document(report, documents):
    found = json.loads((documents / "before.json").read_text())
    sections = report("before.json")[1]["documents"][0]["sections"]
    assert sum(row["bytes"] for row in sections["anatomy"]["rows"]) == found["peak_allocated_bytes"]
    timeline = sections["timeline"]
    assert max(timeline["total"]) == timeline["total"][timeline["peak"]] == found["peak_allocated_bytes"]
    assert {"forward", "backward", "optimizer", "evaluation"} <= set(timeline["phase"]) and len(timeline["total"]) < 600
    assert set(timeline["step"]) == {0, 1}
    assert len((documents / "before.json").read_text()) < 100_000


def test_two_documents_are_compared(report, documents):
    _, data = report("before.json", "after.json")
    before, after = (json.loads((documents / name).read_text()) for name in ("before.json", "after.json"))
    found = data["comparison"]
    assert set(found) == {"facts", "timelines", "differences"}
    for side, document in (("a", before), ("b", after)):
        assert {row["name"]: row[side] for row in found["differences"]["rows"]} == {
            name: document["anatomy_bytes"][name] for name in [row["name"] for row in found["differences"]["rows"]]
        }
    whole, *rows = found["differences"]["table"]["rows"]
    less = after["peak_allocated_bytes"] - before["peak_allocated_bytes"]
    assert whole[2:4] == [format_bytes(one["peak_allocated_bytes"]) for one in (before, after)] and less < 0
    assert whole[4].startswith(format_bytes(less)) and rows[0][0] == "activations"
    places, timeline = found["timelines"]["b_events"], data["documents"][0]["sections"]["timeline"]
    assert places == sorted(places) and places[0] >= 0 and places[-1] <= timeline["end"] + 0.1
    second = timeline["events"][timeline["step"].index(1)]
    of_b = data["documents"][1]["sections"]["timeline"]["step"].index(1)
    assert places[of_b] == pytest.approx(second, abs=0.1)


def drawn(*steps):
    """A timeline of steps, each of so many events, after a build of ten."""
    events = list(range(10 + sum(steps)))
    of_step = [0] * 10 + [step for step, count in enumerate(steps) for _ in range(count)]
    phase = ["build"] * 10 + ["forward"] * sum(steps)
    return {"events": events, "step": of_step, "phase": phase, "total": [7] * len(events), "end": len(events)}


@pytest.mark.parametrize("others", [(20, 40), (20, 40, 40), (20,), (5, 5)])
def test_steps_that_both_have_begin_at_the_same_place(others):
    one, other = drawn(30, 60), drawn(*others)
    places = _timelines(one, other)["b_events"]
    assert places == sorted(places) and places[0] == 0
    starts = [10, 40, 100]
    for step, begin in enumerate(itertools.accumulate(others, initial=10)):
        if step < 2 and begin < len(places):
            assert places[begin] == starts[step]


def test_two_plans_have_one_axis(report):
    _, data = report("plan.json", "plan.json")
    assert {"frontiers", "timelines", "differences"} <= set(data["comparison"])
    answers = [len(one["sections"]["dial"]["answers"]) for one in data["documents"]]
    assert len(data["comparison"]["frontiers"]["table"]["rows"]) == sum(answers)


def test_a_predicted_ladder_beside_a_measured_one(report):
    (found,) = report("predicted", "ladder")[1]["comparison"].values()
    assert [(row["name"], row["predicted"] > row["measured"]) for row in found["rows"]] == [
        ("plain", True), ("checkpoint", True),
    ]  # fmt: skip
    assert [row[3][0] for row in found["table"]["rows"]] == ["+", "+"]  # the prediction has CUDA's context


def test_what_a_run_measured_stands_beside_what_was_predicted(report, documents):
    summary = json.loads((documents / "run" / "summary.json").read_text())
    (row, *_), table = (report("run")[1]["documents"][0]["sections"]["measured"][key] for key in ("rows", "table"))
    assert row["measured"] == summary["measured"]["peak_tensor_bytes"]
    assert row["predicted"] == summary["predicted"]["peak_tensor_bytes"]
    assert table["rows"][0][3] == f"{row['predicted'] / row['measured'] - 1:+.2%}"


def test_the_page_of_a_run_that_was_stopped_says_how_far_it_came(report, documents):
    _, data = report("stopped")
    (document,) = data["documents"]
    assert document["title"].endswith("on digits, not finished")
    facts = dict(document["sections"]["facts"]["rows"])
    assert facts["trained"] == "2 steps of 32 so far, of 2 steps" and facts["saved"] == "a checkpoint after step 2"
    rows = [json.loads(row) for row in (documents / "stopped" / "metrics.jsonl").read_text().splitlines()]
    found = {line["name"]: line["points"] for line in document["sections"]["curve"]["lines"]}
    assert found["training loss"] == [[row["step"], row["loss"]] for row in rows if "loss" in row] and rows
    assert [step for step, _ in found["validation loss"]] == [2]
    assert "validation accuracy" in document["sections"]["curve"]["table"]["rows"][2][1]


def test_a_long_run_is_thinned_and_keeps_its_end():
    rows = [{"step": step, "epoch": 0, "loss": None if step == 2 else 1 / step, "lr": 0.1} for step in range(1, 5001)]
    found = curve([*rows, {"step": 5000, "epoch": 0, "validation_loss": 0.5}])
    assert len(found["table"]["rows"]) < 310 and found["table"]["rows"][0] == ["1", "training loss 1, lr 0.1"]
    assert found["lines"][0]["points"][-1][0] > 4900 and found["lines"][1]["points"] == [[5000, 0.5]]
    assert curve([]) is None and curve([{"step": 2, "loss": None}]) is None


def points(*rows, **more):
    return tuple(
        BudgetPoint(recipe=recipe, from_bytes=need, need_bytes=need, step_seconds=seconds, **more)
        for recipe, need, seconds in rows
    )


def budgets(card_bytes=24 * GIB, composed=True, **given):
    named = {"title": "torchvision:vit_l_16", "device": "rtx-4090", "batch_shape": "4 x 3", "workload": Workload()}
    limits = {"context_bytes": 400 * MIB, "margin_share": 0.03, "least_margin_bytes": 40 * MIB}
    all_blocks, some = Recipe(checkpoint="all"), Recipe(checkpoint=("h.0", "h.2"), microbatch_size=4)
    simulated = ((all_blocks, 2 * GIB, 0.5), (some, 5 * GIB + 12345, 0.41), (Recipe(), 11 * GIB, 0.4))
    guessed = ((Recipe(checkpoint="all", step_in_backward=True), GIB, 0.6), (Recipe(microbatch_size=8), 7 * GIB, 0.405))
    kept = {
        "points": points(*simulated, simulated=True, total_bytes=3 * GIB, host_bytes=7 * MIB),
        "composed": points(*guessed, simulated=False) if composed else (),
    }
    return Budgets(**{**named, **limits, **kept, "card_bytes": card_bytes, **given})


KEPT = {
    "card": budgets(),
    "cpu": budgets(card_bytes=None, context_bytes=0, device="cpu"),
    "small card": budgets(card_bytes=8 * GIB - 54321),
    "one recipe": budgets(points=budgets().points[:1], composed=False),
    "huge margin": budgets(margin_share=0.4),
    "own loop": budgets(may_change=False, workload=Workload(optimizer="custom"), title="Net"),
    "tiny": budgets(points=points((Recipe(), 3 * MIB, 1e-3), simulated=True, total_bytes=4 * MIB, host_bytes=0),
                    composed=(), card_bytes=None, context_bytes=0, least_margin_bytes=0),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_every_position_of_the_dial_says_what_the_plan_answers(name):
    kept = KEPT[name]
    made = dial(kept, 4 * GIB, "my plan.json")
    sizes = [position["budget_bytes"] for position in made["positions"]]
    assert sizes == sorted(set(sizes)) and len(sizes) < 300
    seen = set()
    for position in made["positions"]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                answer = kept.at(position["budget_bytes"])
            except DoesNotFitError:
                assert position["answer"] is None and made["too_little"]
                continue
        shown = made["answers"][position["answer"]]
        seen.add(position["answer"])
        assert (shown["need_bytes"], shown["total_bytes"], shown["step_seconds"]) == (
            answer.need_bytes, answer.total_bytes, answer.step_seconds,
        )  # fmt: skip
        assert (shown["need"], shown["step"]) == (format_bytes(answer.need_bytes), format_seconds(answer.step_seconds))
        assert (position["margin"], shown["fidelity"]) == (format_bytes(answer.margin_bytes), str(answer.fidelity))
        guess = None if position["faster"] is None else made["composed"][position["faster"]]
        assert (guess and guess["step_seconds"]) == (answer.faster and answer.faster.step_seconds)
        if position["budget_bytes"] == shown["from_bytes"] and position is not made["positions"][0]:
            with pytest.raises(DoesNotFitError) if position["answer"] == 0 else warnings.catch_warnings():
                assert kept.at(position["budget_bytes"] - MIB).recipe != answer.recipe
    fitting = [
        point
        for point in kept.points
        if kept.card_bytes is None or kept.budget_for(point.from_bytes) <= kept.card_bytes
    ]
    assert len(seen) == len(made["answers"]) == len(fitting)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_there_to_copy_means_the_recipe(name):
    named = NamedModel(spec="hf:a.json", task="causal-lm", seq_len=96, image_size=32, model_args=("a=1", "b=c d"))
    kept = dataclasses.replace(KEPT[name], options=named.options)
    made = dial(kept, 4 * GIB, "my plan.json")
    for shown, point in zip(made["answers"], kept.points, strict=False):
        call = ast.parse(shown["python"]).body[0].value
        (recipe,) = (one for one in ast.walk(call) if isinstance(one, ast.Call) and one is not call)
        assert Recipe(**{one.arg: ast.literal_eval(one.value) for one in recipe.keywords}) == point.recipe
        assert call.func.attr == ("prepare" if kept.may_change else "apply")
        assert bool(shown["train"]) == (":" in kept.title)
        if shown["train"]:
            program, *words = shlex.split(shown["train"])
            args = parse(words)
            assert (program, args.model) == ("snugfit", kept.title)
            assert recipe_from(args) == point.recipe
            typed = {name: getattr(args, name) for name in ("task", "seq_len", "image_size")}
            assert dataclasses.replace(named, **typed, model_args=tuple(args.model_arg)) == named
    for position in [one for one in made["positions"] if one["answer"] is not None][::20]:
        args = parse(shlex.split(position["command"])[1:])
        assert args.earlier.name == "my plan.json"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert kept.at(args.budget).recipe == kept.at(position["budget_bytes"]).recipe


def places(document, before=()):
    """Where something stands in a document; of lists the first two rows."""
    rows = enumerate(document[:2]) if isinstance(document, list) else ()
    for key, one in document.items() if isinstance(document, dict) else rows:
        yield (*before, key)
        yield from places(one, (*before, key))


@pytest.mark.parametrize("name", ["plan.json", "cards.json", "gpus.json", "ladder/ladder.json", "run/summary.json"])
def test_what_was_altered_is_shown_or_refused_in_words(documents, tmp_path, name):
    whole, chance = (documents / name).read_text(), random.Random(name)
    path, refused = tmp_path / "altered.json", 0
    for place in chance.choices(list(places(json.loads(whole))), k=60):
        altered = inner = json.loads(whole)
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = chance.choice(
            [None, -1, 0, 1.5, math.inf, math.nan, "x", [], [1], {}, {"a": 1}, True, 10**30]
        )
        path.write_text(json.dumps(altered))
        try:
            assert json.dumps(page_data([_document(path)]), allow_nan=False)
        except InputError as error:
            refused += 1
            assert "altered.json" in str(error) and "Traceback" not in str(error)
    assert 0 < refused < 60
