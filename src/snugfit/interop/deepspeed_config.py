"""A recipe as DeepSpeed's config (`ds_config.json`): the same update, held in memory by ZeRO.

What DeepSpeed can say goes into the config; what it leaves to the model or the loop is a note; what would make the update
another one is refused. Both lists stand in `deepspeed.yaml`. `deepspeed.initialize(model=..., model_parameters=...,
config="ds_config.json")` takes it as it is: the key `_snugfit`, which says where it is from, means nothing to it.
"""

from __future__ import annotations

import inspect
from typing import Any

from snugfit.errors import RecipeError
from snugfit.fields import as_data, as_typed, field_infos
from snugfit.interop.deepspeed_schedule import schedule_of
from snugfit.interop.deepspeed_wanted import TYPES, Wanted, algorithm, misfits, offloaded_to, refused, stage_of
from snugfit.interop.exported import Export
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.techniques.shard import numbered
from snugfit.workload import Workload
from snugfit.yaml_files import read_table

TARGET = "deepspeed"
BY_HAND = ("lr_schedule", "optimizer")
"""Training settings that the config can leave to the script."""
DEFAULT_NVME_PATH = "/local_nvme"

_KERNELS: dict[str | None, dict[str, bool]] = {
    None: {"fused": True}, "fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False},
}  # fmt: skip
_AUTOCAST = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
_ELEMENTS = 10**8
"""Elements of a tensor that DeepSpeed's buffers for NVMe hold by themselves (`offload_param.buffer_size`)."""


def deepspeed_export(run: Run, wanted: Wanted | None = None) -> Export:
    """Returns a recipe as DeepSpeed's config.

    Args:
        run: The recipe, and the training settings that it is for, batch size included.
        wanted: What else was asked for.

    Returns:
        The config and what it does not say.

    Raises:
        RecipeError: Listing everything that DeepSpeed would do otherwise.
    """
    wanted = wanted or Wanted()
    problems = [*refused(run), *misfits(run, wanted)]
    if problems:
        raise RecipeError(problems, subject="export to DeepSpeed")
    return _Writer(run, wanted).export()


class _Writer:
    """Writes the parts of one config, and notes what it cannot say."""

    def __init__(self, run: Run, wanted: Wanted) -> None:
        self.recipe, self.workload, self.wanted = run.recipe, run.workload, wanted
        self.stage, why = stage_of(run.recipe, run.workload, wanted)
        self.notes = [why] if why else []
        self.device = offloaded_to(run.recipe, wanted)
        self.params_too = self.device is not None and self.stage == 3 and not run.recipe.offload_optimizer

    def export(self) -> Export:
        config = {
            **self.batch(),
            **({} if self.workload.clip_norm is None else {"gradient_clipping": self.workload.clip_norm}),
            **self.optimizer(),
            "zero_optimization": self.zero(),
            **self.precision(),
            **self.formats(),
        }
        if self.device == "nvme":
            config["aio"] = {"block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True}
        if self.recipe.offload_activations == "checkpoints":
            config["activation_checkpointing"] = {"cpu_checkpointing": True}
        self.notes += _left_out(self.recipe, self.workload)
        changed = as_data(self.recipe.to_mapping(defaults=False))
        config["_snugfit"] = {"recipe": changed, "gpus": self.workload.ranks, "notes": self.notes}
        return Export(target=TARGET, config=config, notes=tuple(self.notes), follows=_followed(self.recipe))

    def batch(self) -> dict[str, int]:
        """The batch in equal pieces, as DeepSpeed wants them: the largest that are no larger than the recipe's."""
        assert self.workload.batch_size is not None
        share = self.workload.batch_size // self.workload.ranks
        most = min(self.recipe.microbatch_size or share, share)
        micro = next(size for size in range(most, 0, -1) if share % size == 0)
        if micro != most:
            self.notes.append(
                f"microbatch_size={most} does not divide a share of {share}, and DeepSpeed takes pieces of one size: "
                f"{micro}."
            )
        if share > micro or self.workload.ranks > 1:
            self.notes.append(
                "DeepSpeed averages the losses of microbatches and GPUs, each counted alike: the update of the whole batch "
                "where every sample weighs the same. A loss per token of texts of unequal length is another one."
            )
        return {
            "train_batch_size": self.workload.batch_size,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": share // micro,
        }

    def optimizer(self) -> dict[str, Any]:
        if "optimizer" in self.wanted.by_hand:
            self.notes.append(
                "optimizer: hand it to deepspeed.initialize(optimizer=...), and its schedule as lr_scheduler=."
            )
            return {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
        name = algorithm(self.recipe, self.workload)
        params = settings_of(name, self.workload)
        config: dict[str, Any] = {}
        by_hand = "lr_schedule" in self.wanted.by_hand
        if by_hand and (self.workload.lr_schedule != "constant" or self.workload.warmup_steps):
            self.notes.append(
                f"lr_schedule={self.workload.lr_schedule}, warmup_steps={self.workload.warmup_steps}: hand a scheduler to "
                "deepspeed.initialize(lr_scheduler=...)."
            )
        elif not by_hand:
            schedule = schedule_of(self.workload, params["lr"])
            params["lr"] *= schedule.first
            config |= {} if schedule.scheduler is None else {"scheduler": schedule.scheduler}
        if name in ("adam", "adamw"):
            # DeepSpeed means AdamW by both names where nothing else is said.
            params |= {} if name == "adamw" else {"adam_w_mode": False}
            # On the host its own kernel updates; else torch's, which nothing must be compiled for.
            params |= {} if self.device else {"torch_adam": True, **_KERNELS[self.recipe.optimizer_impl]}
        else:
            params |= {} if self.device or name == "adafactor" else _KERNELS[self.recipe.optimizer_impl]
            if self.stage:
                config["zero_allow_untested_optimizer"] = True
            if self.device:
                config["zero_force_ds_cpu_optimizer"] = False
        if self.recipe.optimizer is not None and name != self.recipe.optimizer:
            self.notes.append(
                f"optimizer={self.recipe.optimizer}: DeepSpeed's config has no state in fewer bits; it holds {name}'s in "
                "full, which takes more memory. (--by-hand optimizer: hand it one of bitsandbytes or torchao.)"
            )
        return {"optimizer": {"type": TYPES[name], "params": params}, **config}

    def zero(self) -> dict[str, Any]:
        zero: dict[str, Any] = {"stage": self.stage}
        group = numbered(self.recipe.shard, "hybrid")
        if self.stage == 3:
            # Weights are let go after each use, as `shard=full` lets them go; DeepSpeed's own default keeps 1e9 of them.
            zero["stage3_max_reuse_distance"] = 0
            zero["stage3_gather_16bit_weights_on_model_save"] = True
            if group is not None and group != self.workload.ranks:
                zero["zero_hpz_partition_size"] = group
                self.notes.append(
                    f"shard=hybrid:{group}: DeepSpeed shares out among all GPUs, and each group of {group} keeps one "
                    "more copy of the weights, from which backward reads them: the same update."
                )
        if self.recipe.shard == "gradients" and self.stage == 2:
            self.notes.append(
                "shard=gradients: ZeRO 2 keeps all weights on every GPU between steps too, where snugfit shares them out; "
                "count their bytes on top of what is predicted."
            )
        if self.device is not None:
            where = self._where()
            zero["offload_optimizer"] = dict(where)
            if self.params_too:
                zero["offload_param"] = {**where, **self._buffers()}
        return zero

    def _where(self) -> dict[str, Any]:
        where: dict[str, Any] = {"device": self.device, "pin_memory": True}
        if self.device == "nvme":
            where["nvme_path"] = self.wanted.nvme_path or DEFAULT_NVME_PATH
        return where

    def _buffers(self) -> dict[str, int]:
        """A buffer must hold the largest weight of the model (DeepSpeed's own: 1e8 elements)."""
        if self.device != "nvme":
            return {}
        largest = self.wanted.largest_tensor
        if largest is None:
            self.notes.append(
                "offload_param.buffer_size is DeepSpeed's 1e8: give --model where a weight may have more elements."
            )
        return {"buffer_size": max(_ELEMENTS, largest or 0)}

    def precision(self) -> dict[str, Any]:
        precision = self.recipe.precision
        if precision == "tf32":
            self.notes.append('precision=tf32: call torch.set_float32_matmul_precision("high").')
        if precision == "16-mixed" and self.stage:
            # Under ZeRO its autocast to fp16 trained to other weights (benchmarks/deepspeed_export.py).
            self.notes.append(
                "precision=16-mixed: ZeRO computes everything in fp16, norms and softmax included, beside fp32 copies of "
                "the weights; cast the inputs to fp16. Loss scaling begins at 65536, as torch's does."
            )
            return {"fp16": {"enabled": True}}
        if precision in _AUTOCAST:
            # No module's weights and gradients travel in 16 bits: autocast rounds what is computed, and nothing else.
            modules: dict[str, list[str]] = (
                {} if self.recipe.reduce_dtype == "bf16" else {"lower_precision_safe_modules": []}
            )
            return {"torch_autocast": {"enabled": True, "dtype": _AUTOCAST[precision], **modules}}
        if precision == "16-true":
            self.notes.append(
                "precision=16-true: DeepSpeed holds fp32 copies of the weights, and their state, beside: more exact, and 12 "
                "bytes a parameter more."
            )
            return {"fp16": {"enabled": True, "loss_scale": 1.0}}
        if precision == "bf16-true":
            return {"bf16": {"enabled": True, **self._bf16()}}
        return {}

    def _bf16(self) -> dict[str, bool]:
        cut = self.recipe.accumulate_dtype == "fp32"
        if not (self.recipe.stochastic_rounding or cut) and not self.device:
            return {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        why = (
            "stochastic_rounding" if self.recipe.stochastic_rounding else "accumulate_dtype=fp32" if cut else "offload"
        )
        self.notes.append(
            f"precision=bf16-true with {why}: DeepSpeed keeps fp32 copies of the weights, and their state, so that no small "
            "update is lost: more exact, and up to 12 bytes a parameter more."
        )
        return {}

    def formats(self) -> dict[str, Any]:
        formats: dict[str, Any] = {}
        if self.recipe.accumulate_dtype == "fp32":
            formats["data_types"] = {"grad_accum_dtype": "fp32"}
        if self.recipe.reduce_dtype != "as-is" and self.recipe.precision != "bf16-mixed":
            formats["communication_data_type"] = self.recipe.reduce_dtype
        return formats


def settings_of(optimizer: str, workload: Workload) -> dict[str, Any]:
    """Returns the settings of an optimizer, each written out: DeepSpeed's defaults are not those of torch.

    Args:
        optimizer: Its name.
        workload: Says some of them.
    """
    from snugfit.training.optimizers import OF_TORCH

    defaults = inspect.signature(OF_TORCH[optimizer]).parameters
    found = {}
    for name in ("lr", "betas", "eps", "momentum", "weight_decay"):
        if name in defaults and not (name == "eps" and optimizer == "adafactor"):
            given = getattr(workload, name, None)
            found[name] = as_data(defaults[name].default if given is None else given)
    return found


def _followed(recipe: Recipe) -> Recipe:
    """The recipe without what DeepSpeed has nothing for."""
    memory = read_table("interop/deepspeed.yaml")["memory"]
    return recipe.replace(**{name: field_infos(Recipe)[name].default for name in memory})


def _left_out(recipe: Recipe, workload: Workload) -> list[str]:
    """A sentence for each field that is not plain and has no place in the config."""
    table = read_table("interop/deepspeed.yaml")
    found = []
    for settings in (recipe, workload):
        changed = settings.to_mapping(defaults=False)
        for part in ("script", "memory"):
            found += [
                sentence.format(value=as_typed(changed[name]))
                for name, sentence in table[part].items()
                if name in changed
            ]
    return found
