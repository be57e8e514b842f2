"""Optimizer state on the host: moments and a copy of the weights live in host memory, and the update runs there.

Takes the whole optimizer state (8 bytes a parameter for Adam in fp32) off the device; weights and gradients stay. Costs
host memory for state, weights and a gradient buffer (16 bytes a parameter), a copy of every gradient to the host and of
every weight back each step, and an update at the host's speed. Copies run on a second stream beside the updates of other
parameters, and, with `step_in_backward`, beside the backward pass.

What is written into a weight between two steps reaches the host's copy: by `weight.clamp_()` under `torch.no_grad()`, which
torch counts, or by `weight.data.clamp_()`, which the sum of the weight's bits tells (two reads of each weight a step).

Wrong when: the host is slow or its memory small; many small steps, since every one moves all parameters. Takes adam, adamw
and sgd; Adafactor's state is too small to be worth it. Fidelity: exact; on CPU bitwise that of torch's own kernel.

Source: Ren et al., ZeRO-Offload, 2021 (arXiv:2101.06840).
"""

from __future__ import annotations

import dataclasses

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planning

_ON = {"offload_optimizer": True}
_TAKES = (None, "adam", "adamw", "sgd", "adafactor")
_TOO_SMALL = "offload_optimizer takes adam, adamw or sgd; adafactor's state is so small that moving it saves nothing."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Where the update runs."""

    offload_optimizer: bool = False
    """Optimizer state lives in host memory and the update runs there (adam, adamw, sgd)."""


TECHNIQUE = Technique(
    name="offload_optimizer",
    fields=("offload_optimizer",),
    rows=(10,),
    level="exact",
    summary="optimizer state, for an update on the host",
    known_as="cpu-offload offload offloading optimizer-offload optimizer-offloading zero-offload",
    rules={
        _TOO_SMALL: lambda r: r.offload_optimizer and r.optimizer == "adafactor",
        "offload_optimizer takes adam, adamw or sgd, and optimizer is {recipe.optimizer!r}. Leave one of them out, "
        "or take paged-adamw8bit, which moves its own state.": lambda r: (
            r.offload_optimizer and r.optimizer not in _TAKES
        ),
    },
    misfits={
        _TOO_SMALL: lambda r, w: r.optimizer is None and r.offload_optimizer and w.optimizer == "adafactor",
    },
    may_change="update",
    in_the_loop="only the update of snugfit.prepare does that",
    updated_by="snugfit.techniques.offload_optimizer.apply:HostUpdate",
    planning=Planning(part="update", choices=(Choice(_ON),), on_host=True),
    example=({"microbatch_size": 4}, {"microbatch_size": 4, **_ON}),
)
