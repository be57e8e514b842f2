"""What other tools call things is recognised and never accepted; one mistake is told once."""

from __future__ import annotations

import pytest

from snugfit import Recipe, RecipeError
from snugfit.fields import field_infos
from snugfit.techniques.spellings import MEANINGS, SPELLINGS, meant, suggestion
from snugfit.workload import OPTIMIZERS, STORED_OPTIMIZERS, Workload

FREE = {"checkpoint": {"all", "none", "selective", "blocks:K", "every:N"}, "compile": {"inductor", "none"}}
FREE["offload_activations"] = {"all", "none", "blocks:K"}
FREE["shard"] = {"none", "gradients", "full", "hybrid:N"}


def _allowed(field):
    infos = {**field_infos(Workload), **field_infos(Recipe)}
    if field == "optimizer":
        return {*OPTIMIZERS, *STORED_OPTIMIZERS}
    return FREE.get(field) or set(infos[field].choices)


@pytest.mark.parametrize("field", SPELLINGS)
def test_what_is_suggested_exists(field):
    for words, values in SPELLINGS[field].items():
        assert set(values) <= _allowed(field), words
        assert len(set(words)) == len(words)
    assert set(MEANINGS.get(field, {})) <= _allowed(field)


@pytest.mark.parametrize("field", SPELLINGS)
def test_no_word_stands_in_two_rows(field):
    words = [word for row in SPELLINGS[field] for word in row]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("bf16", ("bf16-mixed", "bf16-true")),
        ("BFloat16", ("bf16-mixed", "bf16-true")),
        ("fp16", ("16-mixed", "16-true")),
        ("16", ("16-mixed", "16-true")),
        ("amp", ("bf16-mixed", "16-mixed")),
        ("float32", ("fp32",)),
        ("bf16_true", ("bf16-true",)),
        ("FP32", ("fp32",)),
    ],
)
def test_precision_names_all_that_may_be_meant(given, values):
    with pytest.raises(RecipeError) as error:
        Recipe(precision=given)
    [problem] = error.value.problems
    for value in values:
        assert f"{value!r} ({MEANINGS['precision'][value]})" in problem


@pytest.mark.parametrize("given", [16, True, 4.0])
def test_numbers_and_switches_of_yaml_are_words_too(given):
    with pytest.raises(RecipeError, match="which is unknown"):
        Recipe.from_mapping({"precision": given})


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("AdamW", "adamw"),
        ("8bit-adam", "adamw8bit"),
        ("adamw_8bit", "adamw8bit"),
        ("paged_adamw_8bit", "paged-adamw8bit"),
    ],
)
def test_optimizers(given, value):
    with pytest.raises(RecipeError, match=f"did you mean '{value}'"):
        Workload(optimizer=given)


@pytest.mark.parametrize("given", ["true", "Yes", True, ("on",)])
def test_a_switch_is_no_module(given):
    with pytest.raises(RecipeError, match=r"[Dd]id you mean 'all' \(every block\)"):
        Recipe(checkpoint=given)
    with pytest.raises(RecipeError, match=r"[Dd]id you mean 'all'"):
        Recipe(offload_activations=given)


def test_modules_with_the_names_of_words_are_still_modules():
    assert Recipe(checkpoint="blocks").checkpoint == ("blocks",)
    assert Recipe(checkpoint="1,2").checkpoint == ("1", "2")


def test_a_word_that_is_no_module_of_this_model():
    from torch import nn

    from snugfit import InputError
    from snugfit.techniques.blocks import named_blocks

    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(
        InputError, match=r"'blocks:K' \(the first K blocks\) or 'all' \(every block\)\? Its blocks: 0, "
    ):
        named_blocks(model, ("blocks",), field="checkpoint")


def test_compile_takes_a_backend():
    with pytest.raises(RecipeError, match="did you mean 'inductor'"):
        Recipe(compile="true")
    assert Recipe(compile="aot_eager").compile == "aot_eager"


def test_unknown_words_are_left_to_their_letters():
    assert meant("precision", "quux", ("fp32",)) == ()
    assert "'fp32'" in suggestion("precision", "fp3", ("fp32", "tf32"))


# -- one mistake, told once


def test_a_wrong_word_is_no_second_mistake_elsewhere():
    with pytest.raises(RecipeError) as error:
        Recipe(precision="bf16", stochastic_rounding=True)
    assert len(error.value.problems) == 1


def test_a_contradiction_that_no_word_would_solve_is_told():
    with pytest.raises(RecipeError) as error:
        Recipe(precision="bf16", step_in_backward=True, accumulate_dtype="fp32")
    assert len(error.value.problems) == 2


def test_a_contradiction_of_other_fields_is_told():
    with pytest.raises(RecipeError) as error:
        Recipe(precision="bf16", compile_memory_budget=0.5)
    assert len(error.value.problems) == 2


def test_options_are_judged_together_with_the_file(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("precision: bf16-true\n")
    with pytest.raises(RecipeError) as error:
        Recipe.from_yaml(file, stochastic_rounding=True, prefetch=0)
    assert len(error.value.problems) == 1
    file.write_text("precision: bf16\nstochastic-rounding: true\n")
    assert Recipe.from_yaml(file, precision="bf16-true").stochastic_rounding
