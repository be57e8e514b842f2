"""The one contract of all techniques that touch the model or its forward pass: a few hooks, all silent by default."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import nn

from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import loaded
from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.streams import CopyStream

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.techniques.shard.ranks import Ranks
    from snugfit.workload import Workload


WeightedPiece = tuple[Any, "float | torch.Tensor"]
"""A microbatch with the factor of its loss."""
Order = Callable[[Iterable[WeightedPiece], Callable[[Any], torch.Tensor], Callable[[torch.Tensor], None]], torch.Tensor]
"""Takes microbatches through forward (to a loss) and backward (from a weighted loss); returns the loss of the batch."""
Stage = Literal["numbers", "layers", "calls", "saved tensors", "blocks", "model"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What a technique may look at while it is put in place."""

    recipe: Recipe
    """How the step is held in memory."""
    workload: Workload
    """What is learned."""
    device: torch.device
    """Where training runs."""
    pool: HostPool
    """Host memory for what leaves the device."""
    copies: CopyStream
    """Order of the copies between host and device."""
    generator: torch.Generator | None = None
    """Source of the random bits of stochastic rounding."""
    ranks: Ranks | None = None
    """The processes that share the batch; None: this one alone."""


def model_techniques() -> list[type[ModelTechnique]]:
    """Returns the techniques that change a model, in the order in which they do; later ones surround earlier ones."""
    declared: list[type[ModelTechnique]] = [loaded(row.hooks) for row in TECHNIQUES if row.hooks]
    return sorted(declared, key=lambda technique: STAGES.index(technique.stage))


def wanted_techniques(setup: Setup) -> list[ModelTechnique]:
    """Returns the techniques that a recipe asks for, in the order in which they change a model."""
    return [technique(setup) for technique in model_techniques() if technique.wanted(setup.recipe)]


class WrappedForward:
    """Stands in for the forward method of one module, on the instance, so that the class and the state_dict keys stay."""

    def __init__(self, module: nn.Module, around: Callable[..., Any]) -> None:
        """Remembers the method, which `around` is given in front of the arguments of each call."""
        self.forward: Callable[..., Any] = module.forward
        self.around = around
        functools.update_wrapper(self, module.forward, assigned=("__doc__",), updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the forward method as the technique wants it."""
        return self.around(self.forward, *args, **kwargs)


class ModelTechnique:
    """A technique that changes the model in place or surrounds its forward pass; overrides the hooks it needs.

    No hook draws a random number, and none changes or removes a key of the model's `state_dict`. Adapters add keys of their
    own, as peft names them (`lora_A.default.weight`). Only `quantize`, which works before the model moves, takes keys away:
    a layer then has `W_q` and `scales` in place of `weight`.
    """

    field: ClassVar[str]
    """The recipe field that asks for it."""
    values: ClassVar[tuple[str, ...]] = ()
    """Values of the field that ask for it; none: all but the default."""
    stage: ClassVar[Stage] = "layers"
    """When it changes the model; later ones surround earlier ones."""
    stays: ClassVar[str] = ""
    """What of it stays in a model that it is taken off, in words."""
    from_host: ClassVar[bool] = False
    """Whether it takes a model that is built on the host to the device."""
    wraps: ClassVar[bool] = False
    """Whether it surrounds blocks or the model, and so is put on anew with every other recipe."""
    spans_backward = False
    """Whether backward needs its `around_step` as much as forward does."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @classmethod
    def wanted(cls, recipe: Recipe) -> bool:
        """Returns whether a recipe asks for this technique."""
        value, default = getattr(recipe, cls.field), type(recipe).__dataclass_fields__[cls.field].default
        return value in cls.values if cls.values else bool(value != default)

    @classmethod
    def may_gain(cls, model: nn.Module) -> bool:
        """Returns whether a model has something that this could change; asked of techniques that declare so."""
        return False

    @classmethod
    def comes_off(cls, old: Recipe, new: Recipe) -> bool:
        """Returns whether it is undone and put on anew where a run changes over to another recipe."""
        return cls.wraps

    @classmethod
    def undo(cls, model: nn.Module) -> None:
        """Gives a model back what it changed, if it did; wrapped forward methods come off without it."""

    def change_before_it_moves(self, model: nn.Module) -> None:
        """Changes the caller's model where it was built, so that the device never holds it as it was."""

    def change(self, model: nn.Module) -> None:
        """Changes the caller's model in place, once, on its device and before the optimizer is built."""

    def convert(self, batch: Any) -> Any:
        """Returns a microbatch as the model needs it: the same one, or a converted copy."""
        return batch

    def returned(self, output: Any) -> Any:
        """Returns a model's output as a user's own training loop gets it: their loss runs outside our contexts."""
        return output

    def order(self) -> Order | None:
        """Returns in which order a step's microbatches go through the model; None: in any."""
        return None

    def around_forward(self) -> AbstractContextManager[Any]:
        """Returns the context of one forward pass and its loss, in training and evaluation."""
        return nullcontext()

    def around_training_forward(self) -> AbstractContextManager[Any]:
        """Returns the context of one forward pass and its loss that a backward pass follows."""
        return nullcontext()

    def around_step(self) -> AbstractContextManager[Any]:
        """Returns the context of a whole step, backward passes and update included, and of an evaluation pass."""
        return nullcontext()


def take_off(model: nn.Module, techniques: Iterable[type[ModelTechnique]]) -> None:
    """Undoes techniques on a model (prepared or not, or a copy), and gives all modules their own forward methods back."""
    for technique in techniques:
        technique.undo(model)
    for module in model.modules():
        _unwrap(module)


def _unwrap(module: nn.Module) -> None:
    """Gives a module its own forward method back, wrapped any number of times or not at all."""
    wrapper = vars(module).get("forward")
    while isinstance(wrapper, WrappedForward):
        original = wrapper.forward
        if getattr(original, "__func__", None) is type(module).forward:
            del module.forward
        else:  # the caller's own replacement of the method, or another wrapper
            module.forward = original
        wrapper = vars(module).get("forward")
