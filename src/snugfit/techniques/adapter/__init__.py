"""Adapters: small matrices beside frozen linear layers are trained, and the layers themselves are not.

LoRA adds `B A x * alpha / rank` to what a frozen layer returns, with `A` [rank, inputs] and `B` [outputs, rank]; `B` starts
at zero, so training starts from the model as it was. *rslora* divides by the root of the rank, which keeps high ranks from
learning ever more slowly. *dora* learns the length of each row of the weights apart from its direction; it computes the
whole weight of a layer in each forward pass, so it is slower and has a layer's weight as a temporary.

Saves gradients and optimizer state of all frozen weights (12 bytes a parameter with AdamW in fp32), and the inputs that
frozen layers would have kept for their own gradients. Costs the adapters' products, a few percent of a step, and their
small activations. What autograd needs to get through the model stays, so activations fall by less than one would think:
checkpointing and `quantize` go well with it.

`all-linear` means every linear layer but the head; name patterns choose among them. A language model's head is frozen, and
gets an adapter with `adapter_head` (not where it shares its weight with the embedding: merged, the adapter would change
both). A classifier's head is new for the task, so it is trained as it is. How heads are found is said in
`linear_layers.py`. Experts that are stacked in one parameter count as linear layers only where a pattern names them, such as
`*.experts.*`, or `*` for all there is: of 128 experts each would get its own adapter. Theirs is peft's
(`target_parameters`), computed as two small products beside the large one, where peft adds it to the whole stack first; it
takes neither dora nor dropout. Layers inside `nn.MultiheadAttention` take no adapter, because that module never calls them.

Adapters have the dtype of the weights they stand beside: fp32 under `fp32` and the mixed precisions, 16 bits under
`bf16-true` and `16-true` (as in torchtune; `stochastic_rounding` keeps their small updates). Their first values come from
the workload's seed and leave torch's own random state alone.

Keys of `state_dict` are those of the plain model, and beside them the adapters' own, as peft names them. A model that is
prepared again keeps its adapters when the settings are the same; others are refused, because what was learned would be lost.

Wrong when: the task is far from what the model knows (full fine-tuning learns more), or the model is small. The learning
rate is usually ten times that of full fine-tuning. Fidelity: different. Known limitation: a model that reads a layer's
weight instead of calling the layer gets nothing from an adapter beside it.

Source: Hu et al., LoRA, 2021 (arXiv:2106.09685); Kalajdzievski, rsLoRA, 2023 (arXiv:2312.03732); Liu et al., DoRA, 2024
(arXiv:2402.09353); peft, `inject_adapter_in_model`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from snugfit.techniques.declaration import SWITCHED_OFF, SWITCHED_ON, Technique
from snugfit.techniques.planning import Choice, Planning

_LORA = {"adapter": "lora"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Which layers get adapters, and which."""

    adapter: Literal["none", "lora", "rslora", "dora"] = "none"
    """Low-rank adapters beside frozen linear layers, trained in their place: lora, rslora (scaled for high ranks), dora
    (magnitude and direction apart). The model's output head is trained as it is for a new task."""

    adapter_rank: int = 8
    """Rank of the adapters."""

    adapter_alpha: float = 16.0
    """Adapters are scaled by alpha / rank (rslora: by alpha / root of the rank)."""

    adapter_dropout: float = 0.0
    """Dropout on the input of the adapters, 0 to below 1."""

    adapter_targets: str | tuple[str, ...] = "all-linear"
    """Linear layers that get an adapter: all-linear, or name patterns separated by commas, such as `*.q_proj,*.v_proj`."""

    adapter_head: bool = False
    """A language model's output head gets an adapter too."""

    @property
    def adapter_settings(self) -> str:
        """Names of the settings of adapters that are not at their default."""
        return ", ".join(name for name, default in _SETTINGS.items() if getattr(self, name) != default)


_SETTINGS = {field.name: field.default for field in dataclasses.fields(Fields) if field.name != "adapter"}

TECHNIQUE = Technique(
    name="adapter",
    fields=("adapter", *_SETTINGS),
    rows=(22, 23),
    level="different",
    summary="gradients and optimizer state of all weights that stay frozen",
    known_as="lora qlora rslora dora qdora peft low-rank-adapters",
    names={"adapter_targets": ("all-linear",)},
    spellings={(*SWITCHED_ON, "qlora", "peft"): ("lora",), ("rs-lora",): ("rslora",), SWITCHED_OFF: ("none",)},
    rules={
        "adapter_rank is {recipe.adapter_rank}; it must be at least 1.": lambda r: r.adapter_rank < 1,
        "adapter_alpha is {recipe.adapter_alpha}; it must be more than 0.": lambda r: (
            not 0 < r.adapter_alpha < float("inf")
        ),
        "adapter_dropout is {recipe.adapter_dropout}; it is a probability from 0 to below 1.": lambda r: (
            not 0 <= r.adapter_dropout < 1
        ),
        "{recipe.adapter_settings} without an adapter; set adapter='lora' (or rslora, dora), or leave that out.": lambda r: (
            r.adapter == "none" and bool(r.adapter_settings)
        ),
    },
    lowers={
        "{recipe.adapter} trains small matrices beside the weights, not the weights.": (
            "different",
            lambda r, _: r.adapter != "none",
        ),
    },
    hooks="snugfit.techniques.adapter.apply:Adapter",
    planning=Planning(part="passes", choices=(Choice(_LORA, "different"),)),
    example=({"microbatch_size": 4}, {"microbatch_size": 4, **_LORA}),
)
