"""Step in backward: a parameter is updated the moment its gradient is complete, and the gradient is freed at once.

All gradients are then never alive together: 4 bytes a parameter in fp32 (2 in bf16) shrink to those of one parameter.
Costs nothing but the launch of one update a parameter, and overlaps updates with the backward pass.

Wrong, and refused with the reason, where the update needs all gradients first: accumulation over microbatches, clipping by
the global norm, fp16 loss scaling. A step whose loss is not finite is not taken at all; if a gradient in the middle of a
backward pass is not finite, the parameters behind it have been updated and those from there on are left alone.

Wrong as well where something reads a weight after its gradient is complete, in the same backward pass: `weight.detach()` or
`.data` beside the weight, a checkpointed block that uses it without a gradient, a function that looks it up, blocks that
share it and are checkpointed reentrantly. Before the first update a few samples go through twice, once with each weight
negated at its turn: where gradients differ, the step is refused by the weight's name and nothing has moved. Simulations see
it, too, so plans go around such models. Hooks on parameters run in these passes as well; several processes make no such
trial.

Fidelity: exact. Source: torch.Tensor.register_post_accumulate_grad_hook and the tutorial "How to save memory by fusing the
optimizer step into the backward pass"; Lv et al., LOMO, 2023 (arXiv:2306.09782).
"""

# Done by the hooks of `training/update.py`.

from __future__ import annotations

import dataclasses

from snugfit.techniques.declaration import Technique
from snugfit.techniques.microbatch import splits
from snugfit.techniques.planning import Choice, Planning

_ON = {"step_in_backward": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """When parameters are updated."""

    step_in_backward: bool = False
    """Each parameter is updated as soon as its gradient is complete, and the gradient freed at once."""


TECHNIQUE = Technique(
    name="step_in_backward",
    fields=("step_in_backward",),
    rows=(11,),
    level="exact",
    summary="all gradients but one parameter's",
    known_as="fused-backward optimizer-in-backward lomo per-parameter-update",
    rules={
        "step_in_backward contradicts precision='16-mixed': the loss scale is only judged when all gradients are "
        "there. Use bf16-mixed, or leave step_in_backward out.": lambda r: (
            r.step_in_backward and r.precision == "16-mixed"
        ),
        "step_in_backward contradicts accumulate_dtype='fp32': gradients are used at once and never add up. "
        "Leave one of them out.": lambda r: r.step_in_backward and r.accumulate_dtype == "fp32",
    },
    misfits={
        "step_in_backward contradicts accumulation: microbatches of {recipe.microbatch_size} in a batch of {batch} "
        "add up their gradients, and step_in_backward frees each at once. Leave one of them out, or make the batch "
        "as small as the microbatch (another batch: different).": lambda r, w: r.step_in_backward and splits(r, w),
        "step_in_backward contradicts clip_norm: the global norm is known only when all gradients are. "
        "Leave one of them out.": lambda r, w: r.step_in_backward and w.clip_norm is not None,
        "step_in_backward contradicts keep_gradients: it frees each gradient as soon as it is used, so none is left "
        "to look at. Leave one of them out.": lambda r, w: r.step_in_backward and w.keep_gradients,
    },
    may_change="update",
    in_the_loop="step each parameter there, in a hook of register_post_accumulate_grad_hook",
    updated_by="snugfit.techniques.parameter_update:ParameterUpdate",
    planning=Planning(
        part="update",
        choices=(Choice(_ON),),
        advised="updating each parameter during backward, so that gradients never pile up",
    ),
    example=({"checkpoint": "all"}, {"checkpoint": "all", **_ON}),
)
