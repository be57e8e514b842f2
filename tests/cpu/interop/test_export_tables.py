"""Exports by tables: nothing of a recipe is lost in silence, and what is written loads in the tool itself."""

import json
import os

import pytest
import yaml
from benchmarks.export_cases import CASES, case, run_of

from snugfit.errors import RecipeError
from snugfit.fields import field_infos
from snugfit.interop.export_tables import TOOLS, differences, export_to
from snugfit.recipe import Recipe
from snugfit.workload import Workload
from snugfit.yaml_files import read_table

SILENT = ("coupled_samples", "optimizer_impl")
"""What makes no difference to what a tool does, or (Adafactor's kernels) that it cannot choose."""
SETTINGS_OF_SCRIPTS = ("betas",)
"""What goes with an optimizer that the script is told to make."""
OURS = ("keep_gradients", "keep_outputs", "batch_norm", "dropout", "half_weights", "nodes")


def exported(tool, name):
    return export_to(tool, case(name), model="org/model", seq_len=512)


def test_the_cases_have_every_field_at_another_value_than_the_plain_one():
    changed = {name for given in CASES.values() for name in given}
    infos = {**field_infos(Recipe), **field_infos(Workload)}
    assert changed | {"batch_size", "lr", "microbatch_size", *OURS} == infos.keys()


@pytest.mark.parametrize("tool", TOOLS)
def test_each_field_is_written_said_or_refused(tool):
    """Without a field the export is another one: nothing is dropped in silence."""
    silent = set(SILENT if tool in ("hf", "axolotl", "llamafactory") else (*SILENT, *SETTINGS_OF_SCRIPTS))
    for name, given in CASES.items():
        for field in given.keys() - silent:
            made = []
            if (tool, field) == ("torchtitan", "reduce_dtype"):  # in fp32 is the only way it knows
                continue
            for fields in (given, {one: value for one, value in given.items() if one != field}):
                try:
                    export = export_to(tool, run_of(fields), model="org/model", seq_len=512)
                except RecipeError as error:
                    made.append(str(error))
                else:
                    made.append((export.config, export.notes))
            assert made[0] != made[1] or "Export " in made[0], f"{tool}: {field} of {name!r} is lost"


@pytest.mark.parametrize(
    ("tool", "name", "field", "done"),
    [
        ("hf", "16 bits", "checkpoint", "all"),
        ("hf", "paged", "loss_impl", "full"),
        ("axolotl", "paged", None, None),
        ("axolotl", "mixed, checkpointed", "precision", "bf16-true"),
        ("axolotl", "shared out", "precision", None),
        ("llamafactory", "state on the host", "offload_optimizer", False),
    ],
)
def test_the_recipe_that_the_tool_follows(tool, name, field, done):
    run = case(name)
    found = {one: after for one, _, after in differences(run.recipe, exported(tool, name).follows)}
    if field is None:
        assert not found
    else:
        assert found.get(field) == done


def test_pieces_of_one_size():
    made = exported("hf", "replicated")
    assert (made.config["per_device_train_batch_size"], made.config["gradient_accumulation_steps"]) == (2, 4)
    assert "microbatch_size=3 does not divide" in made.notes[0]


def test_all_that_is_refused_is_told_at_once():
    with pytest.raises(RecipeError, match=r"(?s)momentum.*no equal shares|no equal shares.*momentum"):
        run = case("momentum")
        export_to("hf", type(run)(run.recipe, run.workload.replace(gpus=3)))


def loadable(tool):
    for name in CASES:
        try:
            yield name, exported(tool, name)
        except RecipeError:
            continue


def test_transformers_takes_the_file(tmp_path, monkeypatch):
    from transformers import HfArgumentParser, TrainingArguments

    monkeypatch.setattr(os, "environ", dict(os.environ))  # it switches accelerate's FSDP on by variables
    for name, made in loadable("hf"):
        given = {**json.loads(made.text()), "output_dir": str(tmp_path), "use_cpu": True}
        given.pop("tf32", None)  # no card of this machine has it
        (args,) = HfArgumentParser(TrainingArguments).parse_dict(given)
        assert args.per_device_train_batch_size * args.gradient_accumulation_steps * case(name).workload.ranks == 16
        assert args.lr_scheduler_type == ("cosine" if name == "scheduled" else "constant")


def test_accelerate_takes_the_file(tmp_path):
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    for name, made in loadable("accelerate"):
        (tmp_path / "a.yaml").write_text(made.text())
        assert ClusterConfig.from_yaml_file(str(tmp_path / "a.yaml")).num_processes == case(name).workload.ranks
        args = launch_command_parser().parse_args(["--config_file", str(tmp_path / "a.yaml"), "train.py"])
        args, *_ = _validate_launch_command(args)
        if name == "weights on the host":
            variables = prepare_multi_gpu_env(args)
            assert {key: variables[key] for key in ("FSDP_VERSION", "FSDP_OFFLOAD_PARAMS")} == {
                "FSDP_VERSION": "2",
                "FSDP_OFFLOAD_PARAMS": "true",
            }


def test_the_other_tools_get_keys_of_their_own():
    """The keys are those of their config classes; `benchmarks/table_exports.py` loads the files in the tools themselves."""
    made = yaml.safe_load(exported("axolotl", "qlora").text())
    assert (made["adapter"], made["load_in_4bit"], made["lora_target_modules"]) == ("qlora", True, ["q_proj", "v_proj"])
    assert exported("torchtitan", "shared out").text().splitlines()[-2:] == [
        "--parallelism.data_parallel_shard_degree=4",
        "--parallelism.fsdp_reshard_after_forward=always",
    ]
    muon = export_to("torchtitan", run_of({"optimizer": "muon"}), model=None, seq_len=512)
    assert any("another update" in note and "default_adamw" not in note for note in muon.notes)
    assert {read_table(f"interop/export_{tool}.yaml")["format"] for tool in TOOLS} == {"json", "yaml", "arguments"}
