"""In-place activations: an activation function writes over its input instead of beside it.

Saves the copy of such an input for as long as the model's code holds on to it (torchvision's own CNNs already do it). That
is a moment, not the whole forward pass: only functions whose backward needs their output or a mask can do it (ReLU,
LeakyReLU, ELU and Dropout), and of these autograd keeps no input either way. Costs nothing.

Wrong when another operator still needs the old values: a skip connection that branches off before the activation would
silently read overwritten numbers. So a module is changed only where the model's structure proves that nobody else looks:
its only input comes straight from a linear, convolution or norm layer, none of which needs its own output for backward,
and goes nowhere else. The proof is a symbolic trace of the model, or, where the model as a whole cannot be traced, of its
parts. Containers right under a part that cannot be traced prove nothing: its code may walk through their elements and keep
what lies between. The trace runs on a copy without memory, so a forward method that counts or draws changes nothing. When
the model is prepared again, its activations are what they were before.

Fidelity: exact. Source: the guide's list of eleven; torch.fx.
"""

from __future__ import annotations

import dataclasses

from snugfit.techniques.declaration import Technique

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
    least=_ON,
    nothing_to_switch="the model has no activation module that could overwrite its input",
    example=({}, _ON),
)
