"""In-place activations: an activation function writes over its input instead of beside it.

Saves the copy of such an input for as long as the model's code holds on to it (torchvision's own CNNs already do it). That
is a moment, not the whole forward pass: only functions whose backward needs their output or a mask can do it (ReLU,
LeakyReLU, ELU and Dropout), and of these autograd keeps no input either way. Costs nothing.

Wrong when somebody still needs the old values: a skip connection that branches off before the activation, an attribute or a
list that keeps them, a hook. So a module overwrites only where the model's structure proves that nobody else looks: its only
input comes straight from a linear, convolution or norm layer, none of which needs its own output for backward, goes nowhere
else, and is held by nobody when the forward method returns. The proof is a symbolic trace of the model, or, where the model
as a whole cannot be traced, of its parts. Containers right under a part that cannot be traced prove nothing: its code may
walk through their elements and keep what lies between. The trace runs on a copy without memory, and what it draws or appends
is put back. A trace knows one way through the code, so at each pass an activation overwrites only while that very part runs
in training, with the flags and numbers it had in the trace and without a hook that could see the input. What a checkpointed
block is given is never overwritten.

Fidelity: exact. Source: the guide's list of eleven; torch.fx.
"""

from __future__ import annotations

import dataclasses

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planning

_ON = {"inplace": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Whether activation functions overwrite."""

    inplace: bool = False
    """Activation functions overwrite their input where autograd allows it."""


TECHNIQUE = Technique(
    name="inplace",
    fields=("inplace",),
    rows=(18,),
    level="exact",
    summary="the input of activation functions while the code holds on to it",
    known_as="in-place relu-inplace",
    hooks="snugfit.techniques.inplace.apply:InPlace",
    may_change="passes",
    planning=Planning(
        part="switch",
        switchable=True,
        choices=(Choice(_ON),),
        off=lambda _, plan: (
            "" if plan.switchable else "the model has no activation module that could overwrite its input"
        ),
    ),
    example=({}, _ON),
)
