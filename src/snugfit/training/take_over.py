"""A model that is prepared a second time: what the first recipe put on it is taken off, and its trainer retires.

What cannot be undone stays: the dtype and device of the weights.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import nn

from snugfit.techniques.base import WrappedForward, model_techniques

if TYPE_CHECKING:
    from snugfit.training.step import Trainer

_trainers: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Trainer]] = weakref.WeakKeyDictionary()


def remember_trainer(model: nn.Module, trainer: Trainer) -> None:
    """Takes note of who trains a model; its hooks go when the trainer goes.

    Args:
        model: The prepared model.
        trainer: Its trainer.
    """
    _trainers[model] = weakref.ref(trainer)
    weakref.finalize(trainer, trainer.release_hooks).atexit = False


def take_over(model: nn.Module) -> None:
    """Takes everything off a model that an earlier `prepare` has put on it.

    Args:
        model: A model, prepared before or not, or a copy of a prepared one.
    """
    earlier = _trainers.pop(model, lambda: None)()
    if earlier is not None:
        earlier.give_up_model()
    for technique in model_techniques():
        technique.undo(model)
    for module in model.modules():
        unwrap(module)


def unwrap(module: nn.Module) -> None:
    """Gives a module its own forward method back.

    Args:
        module: A module, wrapped any number of times or not at all.
    """
    wrapper = vars(module).get("forward")
    while isinstance(wrapper, WrappedForward):
        original = wrapper.forward
        if getattr(original, "__func__", None) is type(module).forward:
            del module.forward
        else:  # the caller's own replacement of the method, or another wrapper
            module.forward = original
        wrapper = vars(module).get("forward")
