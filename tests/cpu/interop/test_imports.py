"""Configurations of other tools: what they mean here, each field accounted for."""

import json

import pytest
import yaml
from benchmarks.export_cases import CASES, case

from snugfit.errors import InputError, RecipeError
from snugfit.fields import as_typed
from snugfit.interop.deepspeed_config import deepspeed_export
from snugfit.interop.export_tables import export_to
from snugfit.interop.imports import TOOLS, import_config
from snugfit.yaml_files import read_table

QLORA = """
base_model: org/model
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 64
lora_dropout: 0.05
lora_target_modules: [q_proj, v_proj]
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
learning_rate: 2e-4
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
datasets: [{path: mhenrichsen/alpaca, type: alpaca}]
val_set_size: 0
wandb_project: mine
lora_modules_to_save: [embed_tokens]
relora: false
"""


@pytest.fixture
def read(tmp_path):
    def made(text, name="config.yaml", **settings):
        (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))
        return import_config(tmp_path / name, **settings)

    return made


def test_a_qlora_configuration_of_axolotl(read):
    found = read(QLORA)
    assert (found.tool, found.model, found.task, found.seq_len) == ("axolotl", "hf:org/model", "causal-lm", 2048)
    assert found.settings == {
        "batch_size": 8, "microbatch_size": 2, "precision": "bf16-mixed", "optimizer": "paged-adamw8bit",
        "checkpoint": "all", "attention": "flash", "adapter": "lora", "adapter_rank": 32, "adapter_alpha": 64.0,
        "adapter_dropout": 0.05, "adapter_targets": "*.q_proj,*.v_proj", "quantize": "nf4", "double_quantize": True,
        "evaluate": False,
    }  # fmt: skip
    assert found.ignored == ("learning_rate", "datasets", "wandb_project", "relora")
    assert found.not_understood == {"lora_modules_to_save": ["embed_tokens"]}
    assert not set(yaml.safe_load(QLORA)) - {*found.used, *found.ignored, *found.not_understood}
    assert "NOT understood, and left out: lora_modules_to_save=['embed_tokens']" in list(found.account())


FULL = "finetuning_type: full\nmodel_name_or_path: m\n"
LORA = "finetuning_type: lora\nmodel_name_or_path: m\nlora_target: q_proj,v_proj\n"
AXOLOTL = "base_model: m\nmicro_batch_size: 2\n"


@pytest.mark.parametrize(
    ("text", "ranks", "expected"),
    [
        (f"{FULL}bf16: true", 1, {"precision": "bf16-mixed", "checkpoint": "all", "batch_size": 8}),
        (f"{FULL}pure_bf16: true", 1, {"precision": "bf16-true"}),
        (f"{LORA}bf16: true", 1, {"precision": "bf16-true", "adapter_targets": "*.q_proj,*.v_proj"}),
        (
            f"{AXOLOTL}fsdp_config: {{fsdp_reshard_after_forward: true}}",
            4,
            {"shard": "full", "precision": "bf16-mixed"},
        ),
        (f"{AXOLOTL}fsdp_version: 2\nfsdp_config: {{reshard_after_forward: false}}", 2, {"shard": "gradients"}),
        (f"{AXOLOTL}fsdp_config: {{offload_params: true}}\nfsdp: [full_shard]", 2, {"offload_parameters": "all"}),
        (f"{AXOLOTL}lora_r: 8", 4, {"batch_size": 8, "precision": "bf16-true", "microbatch_size": None}),
    ],
)
def test_what_several_keys_mean_together(read, text, ranks, expected):
    found = read(text, ranks=ranks).settings
    assert {name: found.get(name) for name in expected} == expected
    assert ("adapter_rank" in found) == ("adapter" in found)


@pytest.mark.parametrize(
    ("strategy", "batch", "left_out"), [("no", 64, 0), ("steps", 4, 0), ("steps", 64, 1), ("steps", None, 1)]
)
def test_evaluations_at_a_larger_batch_are_not_counted_and_so_named(read, strategy, batch, left_out):
    given = {"per_device_train_batch_size": 4, "learning_rate": 1, "eval_strategy": strategy}
    found = read({**given, **({} if batch is None else {"per_device_eval_batch_size": batch})}, "a.json")
    assert list(found.not_understood) == ["per_device_eval_batch_size"] * left_out
    assert found.settings["evaluate"] is (strategy == "steps")


def test_sharing_is_asked_for_where_a_file_does_not_say_for_how_many(read):
    found = read("base_model: m\nsequence_len: 9\nfsdp_version: 2\nfsdp_config: {reshard_after_forward: true}")
    assert "shard" not in found.settings and any("Give --gpus N" in note for note in found.notes)


def test_the_zero_stage_of_a_file_beside(read, tmp_path):
    zero = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "cpu_offload": True}}
    (tmp_path / "zero3.json").write_text(json.dumps({**zero, "train_micro_batch_size_per_gpu": "auto"}))
    text = "per_device_train_batch_size: 2\nlearning_rate: 1.0e-4\ndeepspeed: zero3.json\nbf16: true"
    found = read(text, ranks=2)
    assert found.settings["shard"] == "full" and found.settings["offload_parameters"] == "all"
    assert found.not_understood == {"zero3.json: zero_optimization.cpu_offload": True}
    assert "zero3.json: train_micro_batch_size_per_gpu" in found.ignored
    gone = read(text.replace("zero3", "zero9"), ranks=2)
    assert gone.not_understood == {"deepspeed": "zero9.json"} and "shard" not in gone.settings


@pytest.mark.parametrize("tool", ["hf", "axolotl", "llamafactory"])
def test_what_is_exported_comes_back(read, tool):
    """As the tool follows it: fields that its file says nothing of apart."""
    for name in CASES:
        run = case(name)
        try:
            made = export_to(tool, run, model="org/model", seq_len=512)
        except RecipeError:
            continue
        found = read(made.text(), f"a.{made.format}", ranks=run.workload.ranks)
        assert not found.not_understood, (name, found.not_understood)
        assert found.settings["batch_size"] == 16
        back = {"precision": "fp32", "checkpoint": "none", "shard": "none", **found.settings}
        said = ("checkpoint", "shard", "offload_parameters", "adapter", "adapter_rank", "quantize", "microbatch_size")
        for field in said if tool != "hf" else (*said[:3], "microbatch_size"):
            asked = as_typed(getattr(made.follows, field))
            assert as_typed(back.get(field, getattr(type(run.recipe)(), field))) == asked, (name, field)


def test_what_is_exported_to_deepspeed_comes_back(read):
    run = case("shared out")
    found = read(deepspeed_export(run).text(), "ds.json", ranks=4)
    assert (found.tool, found.model) == ("DeepSpeed", None) and not found.not_understood
    assert (found.settings["shard"], found.settings["precision"], found.settings["batch_size"]) == (
        "full",
        "bf16-mixed",
        16,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour: red", "is no configuration of axolotl, LLaMA-Factory, DeepSpeed, transformers"),
        ("base_model: m\nrl: dpo", "rl=dpo is a training that is not predicted from a configuration"),
        ("base_model: m\nmicro_batch_size: many", "the batch size of a GPU is 'many'; it must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_told(read, text, said):
    with pytest.raises(InputError, match=said):
        read(text)


def test_every_row_of_the_tables_means_something():
    """Rows name shared ones that exist, and `known_by` keys that the table has."""
    shared = read_table("interop/import_all.yaml")["shared"]
    for tool in TOOLS:
        table = read_table(f"interop/import_{tool}.yaml")
        assert all(row in shared for row in table["fields"].values() if isinstance(row, str))
        assert all(isinstance(key, str) for row in table["fields"].values() if isinstance(row, dict) for key in row), (
            tool
        )
