"""The recipe: fields, help, mistakes all at once, contradictions, YAML."""

import dataclasses

import pytest

from snugfit import InputError, Recipe, RecipeError
from snugfit.fields import field_infos, from_text
from snugfit.workload import Workload

OTHER_VALUES = {
    "precision": "bf16-true",
    "microbatch_size": 4,
    "accumulate_dtype": "fp32",
    "checkpoint": ("blocks.0", "head"),
    "offload_activations": ("stem",),
    "optimizer": "sgd",
    "optimizer_impl": "foreach",
    "offload_optimizer": True,
    "step_in_backward": True,
    "stochastic_rounding": True,
    "init": "meta",
    "inplace": True,
    "workers": 3,
    "pin_memory": True,
    "prefetch": 5,
    "attention": "flash",
    "loss_impl": "chunked",
    "compile": "inductor",
    "compile_memory_budget": 0.25,
    "adapter": "rslora",
    "adapter_rank": 4,
    "adapter_alpha": 8.0,
    "adapter_dropout": 0.5,
    "adapter_targets": ("*.q_proj", "*.v_proj"),
    "adapter_head": True,
    "quantize": "nf4",
    "double_quantize": True,
    "shard": "hybrid:2",
    "shard_unit": "size:1000",
    "reduce_dtype": "fp32",
    "reduce_gradients": "batch",
    "offload_parameters": "all",
    "tensor_parallel": 2,
}
NEEDS = {
    "stochastic_rounding": {"precision": "bf16-true"},
    "compile_memory_budget": {"compile": "inductor"},
    "quantize": {"adapter": "lora"},
    "double_quantize": {"adapter": "lora", "quantize": "nf4"},
    "offload_parameters": {"shard": "full"},
} | {f"adapter_{name}": {"adapter": "lora"} for name in ("rank", "alpha", "dropout", "targets", "head")}


def test_the_set_of_fields_is_pinned():
    assert tuple(field_infos(Recipe)) == tuple(OTHER_VALUES)


def test_every_field_says_what_it_does():
    for name, info in field_infos(Recipe).items():
        assert len(info.doc) > 20 and info.doc.endswith("."), name
        assert info.option == "--" + name.replace("_", "-")


def test_that_of_a_plan_is_read_from_what_it_printed(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"recipe": {"checkpoint": "all", "precision": "bf16-mixed"}, "budget_bytes": 1, "reasons": {}}')
    assert Recipe.from_yaml(path, precision="fp32") == Recipe(checkpoint="all")


def test_names_that_are_no_field_are_told_as_all_mistakes():
    with pytest.raises(RecipeError, match=r"2 problems\n  - 'checkpoints' is no field; did you mean 'checkpoint'"):
        Recipe(checkpoints="all", precision="bf17")
    with pytest.raises(RecipeError, match="'learning_rate' is no field; did you mean 'lr'"):
        Workload.from_mapping({"learning_rate": 0.1})


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_yaml_round_trip(name, tmp_path):
    recipe = Recipe(**{**NEEDS.get(name, {}), name: OTHER_VALUES[name]})
    path = tmp_path / "recipe.yaml"
    text = recipe.to_yaml(path)
    assert path.read_text() == text
    assert Recipe.from_yaml(path) == recipe
    assert getattr(Recipe.from_yaml(path), name) == OTHER_VALUES[name] != getattr(Recipe(), name)
    assert Recipe.from_mapping(recipe.to_mapping(defaults=False)) == recipe


def test_frozen_and_hashable():
    recipe = Recipe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.inplace = True
    assert recipe.replace(inplace=True).inplace and not recipe.inplace
    assert len({Recipe(), Recipe(), Recipe(workers=1)}) == 2
    with pytest.raises(TypeError):
        Recipe("fp32")


def test_five_mistakes_come_at_once():
    with pytest.raises(RecipeError) as error:
        Recipe.from_mapping(
            {"precison": "bf16", "precision": "bf16", "microbatch-size": 0, "workers": "two", "checkpoint": "every:x"}
        )
    problems = "\n".join(error.value.problems)
    assert len(error.value.problems) == 5 and "recipe: 5 problems" in str(error.value)
    for part in (
        "did you mean 'precision'",
        "precision is 'bf16', which is unknown",
        "microbatch_size is 0",
        "it takes a whole number",
        "every:N",
    ):
        assert part in problems


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step_in_backward": True, "precision": "16-mixed"}, "loss scale"),
        ({"step_in_backward": True, "accumulate_dtype": "fp32"}, "never add up"),
        ({"stochastic_rounding": True}, "needs precision='bf16-true'"),
        ({"stochastic_rounding": True, "precision": "bf16-true", "offload_optimizer": True}, "round to nearest"),
        ({"offload_optimizer": True, "optimizer": "adafactor"}, "moving it saves nothing"),
        ({"offload_activations": "checkpoints"}, "inputs of checkpointed blocks"),
        ({"offload_activations": "checkpoints", "checkpoint": "selective"}, "inputs of checkpointed blocks"),
        ({"offload_activations": "all", "checkpoint": "selective"}, "saved-tensor hooks"),
        ({"checkpoint": "selective", "inplace": True}, "nothing may overwrite"),
        ({"optimizer": "adafactor", "optimizer_impl": "fused"}, "no fused kernel"),
        ({"compile_memory_budget": 0.5}, "needs compile"),
        ({"compile": "inductor", "checkpoint": "selective"}, "lets the compiler choose"),
        ({"compile": "inductor", "offload_activations": "all"}, "do not trace"),
        ({"compile": "torchscript"}, "deprecated"),
        ({"optimizer": "adamw8bit", "offload_optimizer": True}, "moves its own state"),
        ({"optimizer": "muon", "optimizer_impl": "foreach"}, "has its own"),
        ({"adapter_rank": 4, "adapter_head": True}, "adapter_rank, adapter_head without an adapter"),
        ({"quantize": "nf4"}, "cannot take small updates"),
        ({"adapter": "lora", "quantize": "int8", "double_quantize": True}, "needs quantize='nf4'"),
    ],
)
def test_contradictions(fields, message):
    with pytest.raises(RecipeError, match=message):
        Recipe(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"microbatch_size": -1},
        {"microbatch_size": True},
        {"microbatch_size": 2.0},
        {"workers": -1},
        {"workers": True},
        {"prefetch": 0},
        {"prefetch": None},
        {"compile": "inductor", "compile_memory_budget": 1.1},
        {"compile": "inductor", "compile_memory_budget": float("nan")},
        {"adapter_rank": 0, "adapter": "lora"},
        {"adapter_alpha": 0.0, "adapter": "lora"},
        {"adapter_dropout": 1.0, "adapter": "lora"},
        {"adapter_targets": (), "adapter": "lora"},
        {"checkpoint": "blocks:0"},
        {"checkpoint": "some:2"},
        {"checkpoint": ""},
        {"checkpoint": ()},
        {"checkpoint": (1,)},
        {"checkpoint": None},
        {"offload_activations": ("",)},
        {"offload_activations": "blocks:0"},
        {"offload_activations": "every:2"},
        {"init": "gpu"},
        {"inplace": 1},
        {"inplace": "yes"},
        {"optimizer": "lamb"},
        {"precision": None},
    ],
    ids=str,
)
def test_values_that_make_no_sense(fields):
    (name,) = [name for name in fields if name not in ("compile", "adapter")]
    with pytest.raises(RecipeError, match=name):
        Recipe(**fields)


def test_properties_and_names():
    assert Recipe(checkpoint="a, b.c").checkpoint == ("a", "b.c")
    assert (Recipe(precision="16-true").true_precision, Recipe(precision="bf16-mixed").true_precision) == ("16", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n- b\n", "field: value"),
        ("a: [", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        ("worker: 1\n", "did you mean 'workers'"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message):
        Recipe.from_yaml(path)


def test_missing_empty_and_unwritable_files(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        Recipe.from_yaml(tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert Recipe.from_yaml(tmp_path / "empty.yaml") == Recipe()
    with pytest.raises(InputError, match="cannot be written"):
        Recipe().to_yaml(tmp_path / "no" / "such" / "folder.yaml")


def test_texts_of_the_command_line():
    infos = field_infos(Recipe)
    given = {
        "microbatch_size": ("4", 4),
        "compile_memory_budget": ("0.5", 0.5),
        "inplace": ("yes", True),
        "optimizer": ("none", None),
        "checkpoint": ("none", "none"),
        "workers": ("two", "two"),
        "compile": ("none", "none"),
    }
    for name, (text, value) in given.items():
        assert from_text(infos[name], text) == value, name
