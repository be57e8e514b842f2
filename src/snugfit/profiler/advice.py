"""Advice for a profiled script: its model, simulated plainly and with one technique at a time.

The model travels as a skeleton, with the shapes it was called with and its optimizer's class and settings; the script's
own loss is not known, so where the model does not return one a mean over its outputs stands in for it. What is advised is
always the difference between two simulations of the same kind, never one against the measurement. A model that cannot be
simulated is left without advice, and the reason is given.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from snugfit.devices import Device, device_named
from snugfit.errors import SnugfitError, in_words
from snugfit.fake_device.personality import Personality
from snugfit.private_torch import tree_leaves
from snugfit.recipe import Recipe
from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.clock import clock, runs_of_step
from snugfit.recording.replay import replay
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.recording.trace import Trace
from snugfit.recording.uneven_sizes import UnevenSize, uneven_sizes
from snugfit.simulator.given_training import simulate_training
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.blocks import find_blocks
from snugfit.techniques.mixed_precision.apply import MixedPrecision
from snugfit.training.optimizers import OPTIMIZER_TABLE
from snugfit.workers import skeleton

WORTH_SHARE = 0.02
"""Advice that saves less than this share of the peak is not given."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """One technique and what it would do."""

    recipe: dict[str, Any]
    """The recipe's fields; empty where the advice is an argument of an optimizer that recipes have no name for."""
    optimizer_arguments: dict[str, Any]
    """What the script's own optimizer would be given; empty where the advice is no argument of it."""
    text: str
    """What would be done, such as `checkpointing these 24 blocks`."""
    saved_bytes: int
    """How much lower the peak would be."""
    more_time: float | None = None
    """Share of a step's time that is added; None where the card's speed is not known."""
    more_flops: float | None = None
    """There, share of its floating-point operations."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What simulations of a script's model say."""

    suggestions: tuple[Suggestion, ...] = ()
    """What is worth doing, the largest saving first."""
    simulated_peak_bytes: int | None = None
    """Peak of the simulation without any technique, to compare with the measured one; None without a simulation."""
    uneven_sizes: tuple[UnevenSize, ...] = ()
    """Sizes that this card's tensor cores cannot load whole, and what they cost."""
    missing: str = ""
    """Why there is no simulation; empty when there is."""


@dataclasses.dataclass(frozen=True, slots=True)
class SeenModel:
    """A model as a script used it, ready to be simulated: no weights, no values."""

    data: bytes
    """Model, inputs and optimizer, as a skeleton; empty when they cannot travel."""
    returns_loss: bool
    """Whether the model returns its loss."""
    precision: str
    """The recipe's word for the autocast under which the model was called."""
    blocks: int
    """Repeated blocks of the model."""
    problem: str = ""
    """Why it cannot travel."""

    @classmethod
    def of(cls, model: torch.nn.Module, called: Any, returns_loss: bool, optimizer: Any) -> SeenModel:
        """Records a model while the script runs, without its weights.

        `called`: arguments and keywords that it was called with, as meta tensors; or why these could not be had.
        """
        parameter = next(model.parameters())
        precision = _precision(parameter.device.type)
        blocks = len(find_blocks(model))
        kind = type(optimizer)
        known = inspect.signature(kind).parameters
        settings = {name: value for name, value in optimizer.defaults.items() if name in known}
        try:
            if isinstance(called, Exception):
                raise called
            data = skeleton.dumps((model, called, kind, settings))
        except Exception as error:  # pickling a user's class may raise anything
            return cls(b"", returns_loss, precision, blocks, in_words(error))
        return cls(data, returns_loss, precision, blocks)


def advise(seen: SeenModel | None, *, device_index: int | None) -> Advice:
    """Simulates a seen model plainly and with one technique at a time; `device_index` None: the CPU.

    `seen`: the model; None when no model was seen training.
    """
    if seen is None:
        return Advice(missing="no model was seen going through forward, backward and an optimizer step")
    if seen.problem:
        return Advice(missing=f"the model cannot be sent to the simulation ({seen.problem})")
    personality, device = Personality(kind="cpu"), None
    if device_index is not None:
        personality = Personality(capability=torch.cuda.get_device_capability(device_index))
        device = device_named("local")
    try:
        plain = _simulate(seen, {}, personality)
    except SnugfitError as error:
        return Advice(missing=f"the model cannot be simulated: {error}")
    config = TensorBytes() if device_index is None else AllocatorConfig()
    peak = replay(plain, config).peak_allocated_bytes
    suggestions = []
    for text, settings, optimizer_arguments in _candidates(seen, personality):
        try:
            changed = _simulate(seen, settings, personality, optimizer_arguments)
        except SnugfitError:
            continue  # this technique does not go with this model or optimizer
        saved = peak - replay(changed, config).peak_allocated_bytes
        if saved >= WORTH_SHARE * peak:
            found: dict[str, Any] = {"recipe": settings, "optimizer_arguments": optimizer_arguments, "text": text}
            suggestions.append(Suggestion(saved_bytes=saved, **found, **_more(plain, changed, device)))
    suggestions.sort(key=lambda suggestion: -suggestion.saved_bytes)
    sizes = () if device is None else uneven_sizes(plain, device)
    return Advice(suggestions=tuple(suggestions), simulated_peak_bytes=peak, uneven_sizes=sizes)


def _candidates(seen: SeenModel, personality: Personality) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yields what may be worth doing: words, fields of a recipe, arguments of the script's optimizer."""
    for technique in TECHNIQUES:
        advised, least = technique.planning.advised, technique.planning.least
        if least is not None and advised and (seen.blocks or "{blocks}" not in advised):
            yield advised.format(blocks=seen.blocks), dict(least.changes), {}
    _, _, kind, settings = skeleton.loads(seen.data)
    if implementation_of(kind, settings, personality) == "foreach":
        held = "the update's temporaries for all parameters at once"
        named = _name_of(kind, settings) is not None
        by_name = named and OPTIMIZER_TABLE[str(_name_of(kind, settings))].fused
        if by_name or (personality.kind == "cpu" and "fused" in inspect.signature(kind).parameters):
            impl: dict[str, Any] = {"optimizer_impl": "fused"} if named else {}
            yield f"{kind.__name__}(..., fused=True), which holds none of {held},", impl, {"fused": True}
        impl = {"optimizer_impl": "for-loop"} if named else {}
        text = f"{kind.__name__}(..., foreach=False), one parameter after the other in place of {held},"
        yield text, impl, {"foreach": False}


def implementation_of(kind: type, settings: Mapping[str, Any], personality: Personality) -> str | None:
    """Returns fused, foreach or for-loop for a script's optimizer; None for a class that does not say.

    Torch's default is foreach on CUDA and for-loop on the CPU.
    """
    if "foreach" not in inspect.signature(kind).parameters:
        return None
    if settings.get("fused"):
        return "fused"
    if settings.get("foreach") is not None:
        return "foreach" if settings["foreach"] else "for-loop"
    return "foreach" if personality.is_card else "for-loop"


def _simulate(
    seen: SeenModel,
    settings: dict[str, Any],
    personality: Personality,
    optimizer_arguments: Mapping[str, Any] | None = None,
) -> Trace:
    model, batch, kind, defaults = skeleton.loads(seen.data)
    if optimizer_arguments:
        defaults = {**defaults, "fused": None, "foreach": None, **optimizer_arguments}
        defaults = {name: value for name, value in defaults.items() if name in inspect.signature(kind).parameters}
    optimizer, fields = _optimizer_as_seen(kind, defaults, personality)
    arguments: dict[str, Any] = {"forward": _call_as_seen, **optimizer}
    if not seen.returns_loss:
        arguments["loss"] = _stand_in_loss
    recipe = Recipe(precision=seen.precision, **{**fields, **settings})  # type: ignore[arg-type]
    return simulate_training(model, recipe, batch, personality=personality, evaluate=False, arguments=arguments).trace


def _optimizer_as_seen(
    kind: type, settings: dict[str, Any], personality: Personality
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the optimizer for `prepare`, and the recipe's fields that make it run as the script's does.

    It goes by name where that says all, since some techniques need one by name.
    """
    name = _name_of(kind, settings)
    if name is None:
        return {"optimizer": functools.partial(kind, **settings)}, {}
    given = {field: settings[field] for field in ("momentum", "weight_decay") if settings.get(field)}
    said = settings.get("foreach") is not None or settings.get("fused")
    # Adafactor by itself takes the for-loop everywhere; the three with a fused kernel take foreach on CUDA.
    known = "foreach" in inspect.signature(kind).parameters and (said or OPTIMIZER_TABLE[name].fused)
    return {"optimizer": name, **given}, (
        {"optimizer_impl": implementation_of(kind, settings, personality)} if known else {}
    )


def _name_of(kind: type, settings: Mapping[str, Any]) -> str | None:
    """Returns an optimizer's name, None where the name does not say all that takes memory."""
    if any(settings.get(word) for word in ("amsgrad", "maximize", "nesterov", "differentiable")):
        return None
    return next((name for name, row in OPTIMIZER_TABLE.items() if row.cls is kind), None)


def _call_as_seen(model: Any, batch: Any) -> Any:
    args, kwargs = batch
    return model(*args, **kwargs)


def _stand_in_loss(output: Any, batch: Any) -> Any:
    """Sums the means of all outputs that gradients can flow through."""
    known = isinstance(output, torch.Tensor | Mapping | tuple | list)
    leaves = tree_leaves(output if known else dict(vars(output)))
    return sum(leaf.float().mean() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad)


def _precision(device_type: str) -> str:
    if not torch.is_autocast_enabled(device_type):
        return Recipe().precision
    return MixedPrecision.word_of(torch.get_autocast_dtype(device_type))


def _more(plain: Trace, changed: Trace, device: Device | None) -> dict[str, Any]:
    """Returns the share by which a step takes longer, or where no time is known, needs more operations."""
    if device is not None:
        before, after = clock(plain, device), clock(changed, device)
        if before is not None and after is not None:
            return {"more_time": after.step_seconds / before.step_seconds - 1}
    before_flops = _last_step_flops(plain)
    return {"more_flops": _last_step_flops(changed) / before_flops - 1 if before_flops else 0.0}


def _last_step_flops(trace: Trace) -> int:
    return sum(trace.runs[index].flops for index in runs_of_step(trace))
