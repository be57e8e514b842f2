"""A recipe as DeepSpeed's config: what is written, what is noted, what is refused; and DeepSpeed's own word on it."""

import importlib.util
import json
import math

import pytest

from snugfit.errors import RecipeError
from snugfit.fields import field_infos
from snugfit.interop.deepspeed_config import deepspeed_export
from snugfit.interop.deepspeed_wanted import Wanted
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.training.schedule import lr_factor
from snugfit.workload import Workload
from snugfit.yaml_files import read_table


def export(wanted=None, *, gpus=4, batch_size=64, settings=None, **fields):
    workload = Workload(**{"batch_size": batch_size, "gpus": gpus, **(settings or {})})
    return deepspeed_export(Run(Recipe(**fields), workload), wanted)


def noted(made, *parts):
    return any(all(part in note for part in parts) for note in made.notes)


@pytest.mark.parametrize(
    ("fields", "asked", "stage"),
    [
        ({}, {}, 0),
        ({}, {"stage": 1}, 1),
        ({"shard": "gradients"}, {}, 2),
        ({"shard": "full"}, {}, 3),
        ({"shard": "hybrid:2"}, {}, 3),
        ({"offload_optimizer": True}, {}, 1),
        ({"precision": "bf16-true"}, {}, 1),
        ({"shard": "gradients", "offload_optimizer": True}, {}, 2),
        ({"shard": "gradients", "offload_parameters": "all"}, {}, 3),
        ({"shard": "gradients"}, {"offload": "nvme"}, 3),
    ],
)
def test_the_stage_is_the_recipes_or_the_least_that_the_rest_needs(fields, asked, stage):
    made = export(Wanted(**asked), **fields)
    assert made.config["zero_optimization"]["stage"] == stage
    own = {"gradients": 2, "full": 3, "none": 0}.get(fields.get("shard", "none"), 3)
    assert noted(made, f"ZeRO {stage} in place of {own}") == (stage != own and "stage" not in asked)


@pytest.mark.parametrize(
    ("batch", "gpus", "micro", "expected"),
    [
        (64, 4, None, (16, 1)),
        (64, 4, 4, (4, 4)),
        (64, 4, 5, (4, 4)),
        (60, 4, 4, (3, 5)),
        (8, 8, None, (1, 1)),
        (7, 1, 3, (1, 7)),
    ],
)
def test_pieces_are_of_one_size_and_make_up_the_batch(batch, gpus, micro, expected):
    made = export(gpus=gpus, batch_size=batch, microbatch_size=micro)
    size, pieces = made.config["train_micro_batch_size_per_gpu"], made.config["gradient_accumulation_steps"]
    assert (size, pieces) == expected and size * pieces * gpus == made.config["train_batch_size"] == batch
    assert size <= (micro or batch)
    assert noted(made, "does not divide") == (micro is not None and size != min(micro, batch // gpus))


def test_offload():
    zero = export(shard="full", offload_parameters="all").config["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"
    zero = export(shard="full", offload_optimizer=True).config["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == "cpu" and "offload_param" not in zero
    made = export(Wanted(offload="nvme", nvme_path="/fast", largest_tensor=3 * 10**8), shard="full").config
    assert made["zero_optimization"]["offload_param"]["buffer_size"] == 3 * 10**8
    assert made["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/fast" and made["aio"]
    # On the host DeepSpeed's own kernel updates; a GPU is left to torch's.
    assert "torch_adam" not in made["optimizer"]["params"]
    assert export(shard="full").config["optimizer"]["params"]["torch_adam"] is True


def test_groups_keep_a_copy_of_the_weights_each():
    made = export(shard="hybrid:2")
    assert made.config["zero_optimization"]["zero_hpz_partition_size"] == 2 and noted(made, "shard=hybrid:2")
    assert "zero_hpz_partition_size" not in export(shard="hybrid:4").config["zero_optimization"]  # all of them


def test_optimizers_keep_the_meaning_of_torch():
    adamw = export().config["optimizer"]
    assert adamw["type"] == "AdamW" and adamw["params"]["weight_decay"] == 0.01  # DeepSpeed's own default is 0
    adam = export(settings={"optimizer": "adam", "lr": 2e-4, "betas": (0.8, 0.9)}).config["optimizer"]
    assert adam["params"]["adam_w_mode"] is False and adam["params"]["betas"] == [0.8, 0.9]
    sgd = export(shard="full", settings={"optimizer": "sgd", "momentum": 0.9, "clip_norm": 2.0}).config
    assert sgd["optimizer"]["params"]["momentum"] == 0.9 and sgd["zero_allow_untested_optimizer"]
    assert sgd["gradient_clipping"] == 2.0 and "gradient_clipping" not in export().config
    made = export(optimizer="adamw8bit")
    assert made.config["optimizer"]["type"] == "AdamW" and noted(made, "optimizer=adamw8bit", "more memory")
    by_hand = export(Wanted(by_hand=("optimizer",)), settings={"optimizer": "muon"})
    assert "optimizer" not in by_hand.config and noted(by_hand, "hand it to deepspeed.initialize")


def test_precision():
    def part(name, shard="full", **more):
        return export(shard=shard, precision=name, **more).config

    assert part("fp32").keys().isdisjoint({"bf16", "fp16", "torch_autocast"})
    assert part("bf16-mixed")["torch_autocast"]["dtype"] == "bfloat16"
    assert part("bf16-mixed")["torch_autocast"]["lower_precision_safe_modules"] == []
    assert "lower_precision_safe_modules" not in part("bf16-mixed", reduce_dtype="bf16")["torch_autocast"]
    assert part("16-mixed", shard="none")["torch_autocast"]["dtype"] == "float16"
    assert part("16-mixed")["fp16"] == {"enabled": True} and "torch_autocast" not in part("16-mixed")
    assert part("bf16-true")["bf16"]["bf16_master_weights_and_grads"]
    assert "bf16_master_weights_and_grads" not in part("bf16-true", stochastic_rounding=True)["bf16"]
    assert part("bf16-true", accumulate_dtype="fp32")["data_types"] == {"grad_accum_dtype": "fp32"}
    assert noted(export(precision="tf32"), "set_float32_matmul_precision")


WARMED = [(0, 12), (1, 12), (2, 12), (3, 12), (5, 12)]


def rates(config, steps):
    """What DeepSpeed 0.19.8 trains with, step by step: `deepspeed/runtime/lr_schedules.py`, said once more."""
    lr = config["optimizer"]["params"]["lr"]
    if "scheduler" not in config:
        return [lr] * steps
    kind, given = config["scheduler"]["type"], config["scheduler"]["params"]
    warm, found = max(2, given["warmup_num_steps"]), [lr]
    for step in range(1, steps):
        at, total = given["last_batch_iteration"] + step, given.get("total_num_steps", 0)
        if at < warm:
            share = at / warm
        elif kind == "WarmupCosineLR":
            share = (1 + math.cos(math.pi * min(1.0, (at - warm + 1) / (total - warm)))) / 2
        else:
            share = 1.0 if kind == "WarmupLR" else max(0.0, (total - at) / (total - warm))
        least, most = given.get("warmup_min_lr", 0.0), given.get("warmup_max_lr", lr)
        found.append(least + (most - least) * share)
    return found


@pytest.mark.parametrize(
    ("kind", "warmup", "steps"),
    [("cosine", 0, 12), *(("constant", *one) for one in WARMED), *(("linear", *one) for one in WARMED)],
)
def test_the_learning_rate_is_ours_at_every_step(kind, warmup, steps):
    settings = {"lr": 0.5, "lr_schedule": kind, "warmup_steps": warmup, "max_steps": steps}
    expected = [0.5 * lr_factor(step, Workload(**settings)) for step in range(steps)]
    assert rates(export(settings=settings).config, steps) == pytest.approx(expected, abs=1e-12)


def test_a_schedule_that_the_script_brings_leaves_the_rate_whole():
    made = export(
        Wanted(by_hand=("lr_schedule",)),
        settings={"lr": 0.5, "lr_schedule": "cosine", "warmup_steps": 3, "max_steps": 9},
    )
    assert "scheduler" not in made.config and made.config["optimizer"]["params"]["lr"] == 0.5
    assert noted(made, "lr_schedule=cosine, warmup_steps=3", "lr_scheduler=")


def test_every_field_is_written_noted_or_refused():
    written = {
        "precision", "microbatch_size", "accumulate_dtype", "optimizer", "optimizer_impl", "offload_optimizer", "shard",
        "reduce_dtype", "offload_parameters", "stochastic_rounding",
    }  # fmt: skip
    follow = {"prefetch", "double_quantize", *(name for name in field_infos(Recipe) if name.startswith("adapter_"))}
    table = read_table("interop/deepspeed.yaml")
    listed = {name for part in table.values() for name in part}
    missing = field_infos(Recipe).keys() - written - follow - listed
    assert not missing, f"interop/deepspeed.yaml says nothing of {missing}"
    assert not listed & written


def test_what_the_config_has_no_place_for_is_noted():
    made = export(
        checkpoint="all", offload_activations="checkpoints", adapter="lora", attention="sdpa",
        settings={"no_decay": True, "freeze": ("stem.*",)},
    )  # fmt: skip
    for name in ("checkpoint=all", "offload_activations=checkpoints", "adapter=lora", "attention=sdpa", "no_decay"):
        assert noted(made, name), name
    assert noted(made, "freeze=stem.*")
    assert made.config["activation_checkpointing"] == {"cpu_checkpointing": True}
    assert made.config["_snugfit"]["recipe"]["adapter"] == "lora"
    assert json.loads(made.text()) == made.config
    assert export(gpus=1).notes == ()


@pytest.mark.parametrize(
    ("asked", "fields", "settings", "message"),
    [
        ({}, {}, {"batch_size": 66}, "a batch of 66 has no equal shares for 4 GPUs.*Give 64 or 68"),
        ({"stage": 1}, {"shard": "full", "offload_parameters": "all"}, {}, "--stage 1: offload_parameters=all needs ZeRO 3"),
        ({"stage": 2, "offload": "nvme"}, {}, {}, "--stage 2: --offload nvme needs ZeRO 3"),
        ({"nvme_path": "/fast"}, {}, {}, "--nvme-path is for --offload nvme"),
        ({}, {}, {"optimizer": "muon"}, "optimizer=muon: DeepSpeed has none with that update"),
        ({"stage": 1}, {}, {"optimizer": "adafactor"}, "optimizer=adafactor looks at whole matrices"),
        ({}, {}, {"lr_schedule": "linear"}, "the number of steps is unknown; give --max-steps"),
        ({}, {}, {"lr_schedule": "linear", "max_steps": 3, "warmup_steps": 3}, "warmup_steps=3 is all of the 3 steps"),
        ({}, {}, {"lr_schedule": "cosine", "max_steps": 9, "warmup_steps": 2}, "takes the first update at a rate of"),
    ],
)  # fmt: skip
def test_what_would_be_another_update_is_refused(asked, fields, settings, message):
    with pytest.raises(RecipeError, match=message):
        export(Wanted(**asked), settings=settings, **fields)


def test_all_mistakes_come_at_once():
    with pytest.raises(RecipeError) as error:
        export(Wanted(stage=2, offload="nvme"), settings={"batch_size": 66, "optimizer": "muon"})
    assert len(error.value.problems) == 3


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize(
    ("fields", "asked", "settings"),
    [
        ({}, {}, {}),
        ({"shard": "gradients", "precision": "bf16-true", "microbatch_size": 4}, {}, {"clip_norm": 1.0}),
        ({"shard": "full", "precision": "16-mixed", "checkpoint": "all"}, {}, {"optimizer": "sgd"}),
        ({"shard": "full", "precision": "bf16-mixed"}, {"offload": "nvme"}, {"lr_schedule": "linear", "max_steps": 9}),
        ({"shard": "full", "offload_parameters": "all"}, {}, {"lr_schedule": "cosine", "max_steps": 9}),
    ],
)
def test_deepspeed_reads_it(fields, asked, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    made = export(Wanted(**asked), gpus=1, batch_size=16, settings=settings, **fields)
    path = tmp_path / "ds_config.json"
    path.write_text(made.text())
    read = DeepSpeedConfig(str(path))
    assert read.zero_optimization_stage == made.config["zero_optimization"]["stage"]
    assert read.train_batch_size == 16 and read.optimizer_name.lower() == made.config["optimizer"]["type"].lower()
    assert read.scheduler_name == made.config.get("scheduler", {}).get("type")
