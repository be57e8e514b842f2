"""Leaner optimizers: SGD keeps no state without momentum, Adafactor a row and a column a matrix; Adam keeps two copies.

Adam and AdamW hold 8 bytes a parameter in fp32 (4 in bf16), often more than weights and gradients together. SGD with
momentum holds half of that, SGD without momentum nothing. Adafactor factors the second moment and keeps no first one:
about 0.02 bytes a parameter.

Costs nothing in time, but is another algorithm: it needs its own learning rate (SGD's is usually 10 to 1000 times Adam's,
with a cosine schedule), and on transformers SGD often ends at a worse loss. Fidelity: different, never chosen unless
allowed.

`Workload.optimizer` says what is to be learned with; `Recipe.optimizer` replaces it to save memory and is labelled. Both
mean what `torch.optim` means: SGD has momentum 0, AdamW decays every parameter by 0.01. `no_decay` leaves biases and norms
out.

Source: Shazeer and Stern, Adafactor, 2018 (arXiv:1804.04235); torch.optim. Built by `training/optimizers.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from snugfit.techniques.declaration import OptimizerName, Technique
from snugfit.techniques.low_bit_optimizer import LowBit
from snugfit.techniques.muon import Muon
from snugfit.techniques.paged_adamw import PagedAdamW
from snugfit.techniques.planning import Choice, Planning


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """The optimizer that takes the place of the workload's."""

    optimizer: Literal["adam", "adamw", "sgd", "adafactor"] | Muon | LowBit | PagedAdamW | None = None
    """Replaces the workload's optimizer: by one that holds the same state in another way (adamw8bit holds adamw's in
    8 bits), or by another algorithm (labelled different). None: keep it."""


def _leaner(name: str) -> Choice:
    return Choice({"optimizer": name}, "different", lambda here: here.workload.optimizer != name)


_SGD, _ADAFACTOR = map(_leaner, ("sgd", "adafactor"))

TECHNIQUE = Technique(
    name="optimizer",
    fields=("optimizer",),
    rows=(8,),
    level="different",
    summary="optimizer state: SGD has none, Adafactor almost none",
    known_as="sgd adafactor adam adamw",
    spellings={
        ("adamw-torch", "adamw-torch-fused", "adamw-hf", "adamw-fused", "fused-adamw"): ("adamw",),
        ("momentum", "sgd-momentum", "nesterov"): ("sgd",),
    },
    optimizers=tuple(OptimizerName(name=name) for name in ("adam", "adamw", "sgd", "adafactor")),
    in_the_loop="make that optimizer there, from the parameters that are trained",
    planning=Planning(
        part="update",
        choices=(_SGD, _ADAFACTOR),
        leaner=(_SGD, Choice({**_SGD.changes, "step_in_backward": True}, "different")),
    ),
    example=({"microbatch_size": 4}, {"microbatch_size": 4, "optimizer": "sgd"}),
)
