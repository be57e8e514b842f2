"""A transformers Trainer that is built, TRL's included, as a job for the simulation: its own `train`, three steps of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from snugfit.attributes import replaced
from snugfit.errors import CannotSimulateError, InputError
from snugfit.interop.recorded_training import Samples, modules_in
from snugfit.phases import phase
from snugfit.simulator.watched_script import STEPS
from snugfit.simulator.widest_samples import widest_samples

if TYPE_CHECKING:
    import torch

_STAYS = frozenset((
    "accelerator", "args", "callback_handler", "control", "deepspeed", "eval_dataset", "gather_function", "hub_model_id",
    "lr_scheduler", "model_wrapped", "neftune_hook_handle", "optimizer", "state", "train_dataset",
))  # fmt: skip
"""What belongs to one process and one run, and is made anew."""
_ACCELERATE = ("forward", "_original_forward", "_is_accelerate_prepared")
"""Attributes that accelerate gives a model."""
_EVALUATION_BATCHES = 2
"""Batches of an evaluation that are looked at; where predictions are kept, as many more as follow."""
_KEPT_BATCHES = 32
"""Batches of an evaluation that keeps what it has predicted."""


class TrainerJob:
    """What a Trainer trains, and how."""

    def __init__(self, trainer: Any, changes: Mapping[str, Any] | None = None) -> None:
        """Takes a Trainer apart; it is not changed.

        `changes`: fields of its `TrainingArguments` that are other ones in the simulation.
        """
        check_trainer(trainer)
        args, changes = trainer.args, dict(changes or {})
        self.kind = type(trainer)
        self.attributes = {name: value for name, value in vars(trainer).items() if name not in _STAYS}
        self.optimizer = given_optimizer(trainer) if "optim" not in changes else None
        self.args = changed_arguments(args, changes)
        self.checkpoints_no_more = changes.get("gradient_checkpointing", True) is False and args.gradient_checkpointing
        # Of several microbatches any may be the widest, so that each is.
        self.train_samples = widest_samples(trainer.train_dataset, self.args.per_device_train_batch_size)
        self.evaluated: list[Any] = []
        """Samples of an evaluation; empty where there is none."""
        self.evaluated_samples: int | None = None
        """How many there really are; None where that is not known."""
        if args.eval_strategy != "no" and trainer.eval_dataset is not None:
            self.evaluated = self._evaluation_samples(trainer)

    def _evaluation_samples(self, trainer: Any) -> list[Any]:
        size = self.args.per_device_eval_batch_size
        keeps = trainer.compute_metrics is not None and not self.args.prediction_loss_only
        count = size * (_KEPT_BATCHES if keeps else _EVALUATION_BATCHES)
        given = trainer.eval_dataset
        every = given.values() if isinstance(given, dict) else (given,)
        self.evaluated_samples = max((len(one) for one in every if hasattr(one, "__len__")), default=None)
        return max((widest_samples(one, count, "eval_dataset") for one in every), key=len)

    @property
    def samples(self) -> list[Any]:
        """All samples that travel."""
        return [*self.train_samples, *self.evaluated]

    @contextmanager
    def as_built(self) -> Iterator[None]:
        """Context in which the model's forward pass is its own, without what accelerate puts around it for a precision."""
        model = self.attributes["model"]
        table = vars(model)
        before = {name: table.pop(name) for name in _ACCELERATE if name in table}
        own = before.get("_original_forward", before.get("forward"))
        if own is not None and getattr(own, "__func__", None) is not type(model).forward:
            table["forward"] = own
        try:
            yield
        finally:
            table.pop("forward", None)
            table.update(before)

    def owners(self) -> Iterator[torch.nn.Module]:
        """Yields the modules that hold its weights: the model, and a reference or a teacher."""
        yield from {id(one): one for one in modules_in(self.attributes)}.values()

    def optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """Yields the optimizer that was given, if one was."""
        if self.optimizer is not None:
            yield self.optimizer

    def train(self, device: torch.device) -> None:
        """Builds the Trainer again, and lets it train."""
        import torch
        from transformers import TrainerControl, TrainerState
        from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

        fresh_accelerate()
        trainer = object.__new__(self.kind)
        vars(trainer).update(self.attributes)
        args = trainer.args = self.args
        if device.type != "cpu":  # who asks for a card means it
            args.use_cpu = False
        _ = args.device  # looks for it now, before the accelerator is made, whose state that would reset
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
        trainer.train_dataset = Samples(self.train_samples, -(-batch * (STEPS + 1) // len(self.train_samples)))
        trainer.eval_dataset = Samples(self.evaluated, 1, self.evaluated_samples) if self.evaluated else None
        trainer._train_batch_size = args.train_batch_size
        trainer.deepspeed = None
        trainer.model_wrapped = trainer.model
        if self.checkpoints_no_more:
            trainer.model.gradient_checkpointing_disable()
        trainer.create_accelerator_and_postprocess()
        trainer.optimizer, trainer.lr_scheduler = self.optimizer, None
        callbacks: Any = CallbackHandler
        trainer.callback_handler = callbacks([DefaultFlowCallback], trainer.model, trainer.processing_class, None, None)
        trainer.state, trainer.control = TrainerState(), TrainerControl()
        evaluate = trainer.evaluation_loop

        def evaluation_loop(*args: Any, **settings: Any) -> Any:
            with phase("evaluation"):
                return evaluate(*args, **settings)

        create = trainer.create_optimizer

        def create_optimizer(*args: Any, **settings: Any) -> Any:
            # Tied weights are told by their addresses, which simulated ones do not have.
            with replaced([(torch.Tensor, "data_ptr", lambda tensor: tensor.untyped_storage()._cdata)]):
                return create(*args, **settings)

        trainer.evaluation_loop, trainer.create_optimizer = evaluation_loop, create_optimizer
        trainer.train()


def check_trainer(trainer: Any) -> None:
    """Refuses what is no Trainer that could train here."""
    if not all(
        hasattr(trainer, name) for name in ("args", "model", "train_dataset", "create_accelerator_and_postprocess")
    ):
        raise InputError(
            f"trainer is a {type(trainer).__name__}; give a transformers.Trainer that is built (TRL's trainers are such). "
            "For other trainers and loops: snugfit estimate SCRIPT and snugfit plan SCRIPT."
        )
    if trainer.train_dataset is None:
        raise InputError("the Trainer has no train_dataset, so there is no batch to look at. Build it with one.")
    if trainer.args.world_size > 1 or trainer.args.n_gpu > 1:
        raise CannotSimulateError(
            f"the Trainer runs on {max(trainer.args.world_size, trainer.args.n_gpu)} GPUs; only one process with one GPU is "
            "simulated. Build it in one process, with CUDA_VISIBLE_DEVICES=0, to see what one takes without sharding."
        )


def given_optimizer(trainer: Any) -> Any:
    """Returns the optimizer of a Trainer as torch has it; None where it makes its own later."""
    optimizer = trainer.optimizer
    return getattr(optimizer, "optimizer", optimizer)


def changed_arguments(args: Any, changes: Mapping[str, Any]) -> Any:
    """Returns a copy of `TrainingArguments` for a few steps that leave nothing behind."""
    changed = copy.copy(args)
    quiet = {
        "max_steps": STEPS, "report_to": [], "save_strategy": "no", "load_best_model_at_end": False, "disable_tqdm": True,
        "push_to_hub": False, "dataloader_num_workers": 0, "dataloader_prefetch_factor": None,
        "dataloader_persistent_workers": False, "auto_find_batch_size": False, "eval_on_start": False,
        "train_sampling_strategy": "sequential", "logging_strategy": "steps", "logging_steps": 1, "eval_delay": 0,
        "resume_from_checkpoint": None, "deepspeed": None, "skip_memory_metrics": True,
    }  # fmt: skip
    if args.eval_strategy != "no":
        quiet |= {"eval_strategy": "steps", "eval_steps": STEPS}
    set_fields(changed, {**quiet, **changes})
    vars(changed).pop("_setup_devices", None)  # asked again where the simulated device is
    return changed


def set_fields(args: Any, changes: Mapping[str, Any]) -> None:
    """Sets fields of `TrainingArguments`, and those that go with them, without asking whether this machine could do it."""
    for name, value in changes.items():
        setattr(args, name, value)
    if "gradient_checkpointing" in changes and hasattr(args, "activation_checkpointing"):
        args.activation_checkpointing = changes["gradient_checkpointing"]
    if changes.get("bf16"):
        args.mixed_precision = "bf16"


def fresh_accelerate() -> None:
    """Makes accelerate look at the device again: a worker may have simulated another training before."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
