"""Options are the fields of recipe and workload; all mistakes come at once."""

import argparse

import pytest

from snugfit.cli import options
from snugfit.errors import RecipeError
from snugfit.fields import field_infos
from snugfit.recipe import Recipe
from snugfit.workload import Workload


def parse(*words):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)
    return parser.parse_args(words)


def test_the_set_of_options_is_pinned():
    parser = argparse.ArgumentParser()
    options.add_recipe_options(parser)
    options.add_workload_options(parser)
    found = {word for action in parser._actions for word in action.option_strings} - {"-h", "--help", "--recipe"}
    switches = {info.option for info in options.recipe_fields() if info.kinds == (bool,)}
    expected = {info.option for info in field_infos(Recipe).values()} | switches
    expected |= {"--no-" + option[2:] for option in switches}
    # Read off the model, or of use in Python only.
    unsaid = {"--batch-norm", "--dropout", "--half-weights", "--keep-gradients", "--keep-outputs"}
    expected |= {info.option for info in field_infos(Workload).values()} - unsaid - {"--evaluate"}
    expected |= {"--no-coupled-samples", "--no-evaluate"}
    assert found == expected


def test_every_option_has_its_field_docstring_and_choices():
    parser = argparse.ArgumentParser(prog="x")
    options.add_recipe_options(parser)
    options.add_workload_options(parser)
    shown = " ".join(parser.format_help().split())
    for info in [*options.recipe_fields(), *options.workload_fields()]:
        assert info.doc
        assert " ".join(info.doc.split()[:4]) in shown
        assert not info.choices or "{" + ",".join(info.choices) + "}" in shown.replace(" ", "")


def test_evaluation_is_on_and_can_be_switched_off():
    assert options.settings_from(parse())[1].evaluate
    assert not options.settings_from(parse("--no-evaluate"))[1].evaluate


def test_nothing_given_is_plain_training():
    assert options.settings_from(parse()) == (Recipe(), Workload(batch_size=64))


def test_values_become_what_the_fields_take():
    recipe, workload = options.settings_from(
        parse(
            *("--precision", "bf16-mixed", "--microbatch-size", "4", "--checkpoint", "every:2", "--no-inplace"),
            *("--compile-memory-budget", "0.5", "--compile", "aot_eager"),
            *("--batch-size", "8", "--betas", "0.8,0.9", "--lr", "1e-3", "--no-decay", "--freeze", "a.*,b"),
            *("--optimizer", "adam", "--clip-norm", "none"),
        )
    )
    assert recipe == Recipe(
        precision="bf16-mixed",
        microbatch_size=4,
        checkpoint="every:2",
        compile="aot_eager",
        compile_memory_budget=0.5,
    )
    assert workload == Workload(
        batch_size=8, betas=(0.8, 0.9), lr=1e-3, no_decay=True, freeze=("a.*", "b"), optimizer="adam"
    )


def test_options_go_before_the_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("precision: bf16-true\ninplace: true\ncheckpoint: all\n")
    assert options.recipe_from(parse("--recipe", str(path), "--no-inplace", "--checkpoint", "none")) == Recipe(
        precision="bf16-true"
    )


def test_optimizer_belongs_to_the_workload_and_its_replacement_to_the_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("optimizer: sgd\n")
    recipe, workload = options.settings_from(parse("--recipe", str(path), "--optimizer", "adam"))
    assert recipe.optimizer == "sgd" and workload.optimizer == "adam"


def test_mistakes_of_file_options_and_settings_come_at_once(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("presicion: fp32\nmicrobatch_size: 0\ncheckpoint: every:x\nworkers: many\n")
    with pytest.raises(RecipeError) as caught:
        options.settings_from(
            parse("--recipe", str(path), "--attention", "flesh", "--lr", "-1", "--optimizer", "adamm")
        )
    text = str(caught.value)
    for part in ("presicion", "microbatch_size is 0", "every:x", "workers is 'many'", "flesh", "lr is -1", "adamm"):
        assert part in text
    assert len(caught.value.problems) == 7
