"""What `snugfit.plan_for` may change of a built Trainer, beside the batch of an evaluation.

They are arguments that every Trainer has: how the effective batch is cut, checkpointing, precision and optimizer.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
from collections.abc import Iterator, Mapping, Set
from typing import Any

from snugfit.techniques.levels import Level
from snugfit.workloads.traits import draws_masks

_PLAIN = ("adamw_torch", "adamw_torch_fused")


def settings_of(trainer: Any, levels: Set[Level], *, on_cpu: bool) -> Iterator[dict[str, Any]]:
    """Yields what may be combined with every microbatch."""
    rows = (checkpointing_of(trainer), _precision(trainer, levels, on_cpu=on_cpu), _optimizer(trainer, levels))
    for combined in itertools.product(*([{}, *row] for row in rows)):
        yield {name: value for part in combined for name, value in part.items()}


def splits_of(trainer: Any, levels: Set[Level]) -> Iterator[dict[str, Any]]:
    """Yields the ways to cut the effective batch, the largest microbatch first."""
    size, times = trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps
    whole = size * times
    if why_uncut(trainer, levels) is not None:
        yield {}
        return
    for pieces in range(1, whole + 1):
        if whole % pieces == 0:
            cut = {"per_device_train_batch_size": whole // pieces, "gradient_accumulation_steps": pieces}
            yield {} if pieces == times else cut


def why_uncut(trainer: Any, levels: Set[Level]) -> str | None:
    """Returns why the batch must not be cut otherwise than it is; None where it may be."""
    from snugfit.private_torch import BatchNorm

    model = trainer.model
    if any(isinstance(module, BatchNorm) and module.training for module in model.modules()):
        return "batch norm would take its statistics of another batch"
    if "different" not in levels and _draws_masks(trainer):
        return "dropout would draw other masks, and allow='different' lets it"
    if not adds_losses_up(trainer):
        return None
    owner = next(kind for kind in type(trainer).__mro__ if "compute_loss" in vars(kind))
    whose = None
    if trainer.compute_loss_func is not None:
        whose = "compute_loss_func"
    elif owner.__module__.partition(".")[0] not in ("transformers", "trl"):
        whose = f"{owner.__name__}.compute_loss"
    elif trainer.label_smoother is None and not _divides(model):
        whose = f"the loss of {type(model).__name__}"
    if whose is None:
        return None
    way_out = ""
    if hasattr(trainer, "loss_is_scaled_for_ga"):
        way_out = (
            " (if it is a mean over samples, set trainer.loss_is_scaled_for_ga = False, which divides by their number)"
        )
    return (
        f"transformers adds the losses of pieces up, and {whose} may not divide by the labels of all of them{way_out}"
    )


def _draws_masks(trainer: Any) -> bool:
    return any(map(draws_masks, trainer.model.modules()))


def adds_losses_up(trainer: Any) -> bool:
    """Whether transformers adds the losses of pieces up, and does not divide them by their number.

    It leaves it to the loss then to be divided by the labels of all pieces (`num_items_in_batch`).
    """
    said = getattr(trainer, "loss_is_scaled_for_ga", None)
    return bool(trainer.compute_loss_func is not None or trainer.model_accepts_loss_kwargs if said is None else said)


_BY_LABELS = {"ForCausalLMLoss", "ForMaskedLMLoss", "ForQuestionAnsweringLoss", "ForTokenClassification"}
"""Losses of transformers (`loss/loss_utils.py`) that are cross entropy, divided by the labels of all pieces."""
_BY_PROBLEM = "ForSequenceClassificationLoss"
"""That of texts, images, videos and sounds, which is so where a sample has one label."""


def _divides(model: Any) -> bool:
    """Whether a model of transformers leaves its loss to `loss_function`, and that is divided by all labels."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    code = getattr(inspect.unwrap(type(base).forward), "__code__", None)
    if "loss_function" not in getattr(code, "co_names", ()):
        return False
    config = getattr(base, "config", None)
    problem = getattr(config, "problem_type", None)
    single = problem == "single_label_classification" or (problem is None and getattr(config, "num_labels", 0) > 1)
    loss = getattr(base.loss_function, "__name__", "")
    return loss in _BY_LABELS or (loss == _BY_PROBLEM and single)


def checkpointing_of(trainer: Any) -> list[dict[str, Any]]:
    """Returns the other way of checkpointing than the Trainer's; nothing where its model knows none."""
    model = trainer.model
    if not getattr(model, "supports_gradient_checkpointing", hasattr(model, "gradient_checkpointing_enable")):
        return []
    return [{"gradient_checkpointing": not trainer.args.gradient_checkpointing}]


def _precision(trainer: Any, levels: Set[Level], *, on_cpu: bool) -> list[dict[str, Any]]:
    args = trainer.args
    half = any(one.is_floating_point() and one.element_size() < 4 for one in trainer.model.parameters())
    if "rounding" not in levels or half or args.bf16 or args.fp16:
        return []
    here = {} if not on_cpu or args.use_cpu else {"use_cpu": True}  # else transformers wants a GPU
    return [{"bf16": True, **here}]


def _optimizer(trainer: Any, levels: Set[Level]) -> list[dict[str, Any]]:
    if trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is not None:
        return []  # it is given, and arguments do not change it
    from transformers.training_args import OptimizerNames

    name = trainer.args.optim.value
    found = []
    if name == "adamw_torch":
        found.append("adamw_torch_fused")
    # That of torchao has to be compiled first, which takes minutes to simulate.
    if name in _PLAIN and "rounding" in levels and importlib.util.find_spec("bitsandbytes"):
        found.append("adamw_bnb_8bit")
    if "different" in levels and name != "adafactor":
        found.append("adafactor")
    return [{"optim": OptimizerNames(one)} for one in found]


def level_of(trainer: Any, changes: Mapping[str, Any]) -> Level:
    """Returns how close to the Trainer's own training changed arguments are."""
    optimizer = str(plain(changes.get("optim", "")))
    cut = "gradient_accumulation_steps" in changes
    if optimizer == "adafactor" or (cut and _draws_masks(trainer)):
        return "different"
    return "rounding" if changes.get("bf16") or optimizer.endswith("8bit") else "exact"


def plain(value: Any) -> Any:
    """Returns what an argument is typed as."""
    return getattr(value, "value", value)
