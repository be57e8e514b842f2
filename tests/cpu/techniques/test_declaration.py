"""What every declaration must hold to, and that a technique is known by name in few places."""

from __future__ import annotations

import dataclasses
import string
from pathlib import Path

import pytest
from run_code import run_code

import snugfit
from snugfit import Recipe, RecipeError, Workload, fidelity
from snugfit.fields import field_infos
from snugfit.techniques import OPTIMIZER_NAMES, TECHNIQUES
from snugfit.techniques.base import ModelTechnique, model_techniques
from snugfit.techniques.declaration import loaded, said
from snugfit.techniques.levels import LEVELS
from snugfit.techniques.own_optimizer import OwnOptimizer, own_optimizer
from snugfit.techniques.parameter_update import ParameterUpdate
from snugfit.training.changeable import CHANGEABLE

ROOT = Path(__file__).resolve().parents[3]
by_name = pytest.mark.parametrize("row", TECHNIQUES, ids=lambda row: row.name)


def changes_of(row):
    """Every change that a declaration names."""
    examples = () if isinstance(row.example, str) else row.example
    return [*examples, *(choice.changes for choice in (*row.planning.choices, *row.planning.lean))]


def test_declarations_load_no_torch():
    code = "import sys, snugfit.techniques, snugfit.recipe; assert 'torch' not in sys.modules"
    assert run_code(code, without_torch=True).returncode == 0


def test_every_field_of_a_recipe_belongs_to_a_technique():
    assert {field for row in TECHNIQUES for field in row.fields} == set(field_infos(Recipe))
    assert len({row.name for row in TECHNIQUES}) == len(TECHNIQUES)
    for base in filter(dataclasses.is_dataclass, Recipe.__mro__[1:]):
        names = {field.name for field in dataclasses.fields(base)}
        [owner] = [row for row in TECHNIQUES if base.__module__ == f"snugfit.techniques.{row.name}"]
        assert names == set(owner.fields)


@by_name
def test_what_it_names_exists(row):
    assert (ROOT / "docs" / "techniques" / f"{row.name}.md").exists()
    assert row.level in LEVELS
    infos = field_infos(Recipe)
    for change in changes_of(row):
        assert set(change) <= set(infos)
        for field, value in change.items():
            assert not infos[field].choices or value is None or value in infos[field].choices
    assert set(row.names) <= set(row.fields)


@by_name
def test_choices_are_what_the_planner_takes_them_for(row):
    planning = row.planning
    assert bool(planning.choices) == bool(planning.part) and not (planning.advised and planning.least is None)
    for choice in (*planning.choices, *planning.lean):
        assert choice.level in LEVELS
    for choice in planning.choices:
        assert row.fields[0] in choice.changes
        made = Recipe(**choice.changes)
        assert all(getattr(made, field) != getattr(Recipe(), field) for field in choice.changes)
    if planning.part in ("switch", "build"):
        assert len(planning.choices) == 1 and planning.choices[0].level == "exact"
    if planning.by_block is not None:
        names = ["a", "b", "c"]
        some = planning.by_block.value([1], names)
        assert Recipe(**{row.fields[0]: some}) != Recipe() and planning.by_block.count(some, 3) == 1
        assert planning.by_block.value([], names) == "none"


@by_name
def test_examples_are_recipes_that_differ_in_it(row):
    if not isinstance(row.example, str):
        without, with_it = (Recipe(**fields) for fields in row.example)
        assert any(getattr(without, field) != getattr(with_it, field) for field in row.fields)


@by_name
def test_sentences_name_values_that_there_are(row):
    rules = [*row.rules, *row.misfits, *row.lowers]
    for sentence in rules:
        assert sentence.endswith(".")
        for _, name, _, _ in string.Formatter().parse(sentence):
            kind, _, field = (name or "batch").partition(".")
            assert hasattr({"recipe": Recipe(), "workload": Workload(), "batch": ""}[kind], field or "strip"), name
    assert not list(said(row.rules, Recipe())) and not list(said(row.misfits, Recipe(), Workload()))


@by_name
def test_code_is_found_where_it_says(row):
    for one in row.optimizers:
        own = own_optimizer(one.name)
        assert (own is None) == (not one.built_by) and (own is None or isinstance(own, OwnOptimizer))
        assert not one.holds or OPTIMIZER_NAMES[one.holds].holds == ""
    if row.updated_by:
        assert issubclass(loaded(row.updated_by), ParameterUpdate)
    if row.hooks:
        [hooks] = [one for one in model_techniques() if one.__module__.startswith(f"snugfit.techniques.{row.name}.")]
        assert issubclass(hooks, ModelTechnique) and hooks.field == row.fields[0]
        assert hooks.wanted(Recipe()) is False


def test_techniques_change_a_model_in_the_order_of_their_stages():
    names = [one.__name__ for one in model_techniques()]
    assert names == [
        "MixedPrecision", "TruePrecision", "TF32", "Quantization", "InPlace", "Adapter", "TensorParallel", "Attention",
        "LossImpl", "ActivationOffload", "Checkpointing", "Compile",
    ]  # fmt: skip


def test_a_rule_is_said_with_the_values_it_is_about():
    with pytest.raises(RecipeError, match="batch of unknown size"):
        fidelity(Recipe(step_in_backward=True, microbatch_size=4), Workload())
    with pytest.raises(RecipeError, match="microbatches of 4 in a batch of 16"):
        fidelity(Recipe(step_in_backward=True, microbatch_size=4), Workload(batch_size=16))


def test_what_may_change_belongs_to_techniques_that_say_so():
    assert set(CHANGEABLE) == {field for row in TECHNIQUES if row.may_change for field in row.fields}
    assert "precision" not in CHANGEABLE and "checkpoint" in CHANGEABLE


def test_central_files_name_no_technique():
    """Loops do not grow with techniques. Files that are about one field, or about a pair of them, are not central."""
    central = [
        "recipe.py", "planner/smallest.py", "planner/search.py", "planner/explain.py", "planner/maximize.py",
        "planner/space.py", "planner/planner.py", "planner/fallbacks.py", "runs/run_device.py", "report/plan_card.py",
        "training/changeable.py", "techniques/spellings.py", "techniques/base.py", "techniques/own_optimizer.py",
        "planner/compose.py", "planner/profile.py", "planner/probe.py", "profiler/advice.py",
        "fake_device/library_kernels.py",
    ]  # fmt: skip
    names = {row.name for row in TECHNIQUES} - {"optimizer", "init", "compile", "loading"}
    values = {value for row in TECHNIQUES for change in changes_of(row) for value in change.values()}
    words = {value for value in values if isinstance(value, str)} - {"all", "none", "full", "host", "device"}
    kernels = {"foreach", "for-loop", "fused"}  # also torch's words for an optimizer's arguments
    # advises the arguments of a script's own optimizer, and names the field that stands for them
    about = {"profiler/advice.py": {"optimizer_impl"}}
    assert len(words) > 15
    for path in central:
        text = (Path(snugfit.__file__).parent / path).read_text(encoding="utf-8")
        named = {name for name in names if f'"{name}"' in text or f"recipe.{name}" in text}
        assert named <= about.get(path, set()), path
        assert not [word for word in words - kernels if f'"{word}"' in text], path
