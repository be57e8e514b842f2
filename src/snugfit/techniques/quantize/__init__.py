"""Quantised frozen weights under adapters: nf4 holds four of 16 bits, int8 eight, and each product unpacks one layer.

Saves the weights of all linear layers but the head, and of a mixture's experts: of 2 bytes a weight in bf16 stay 0.56
(nf4), 0.52 (nf4 with `double_quantize`) or 1.0 (int8); with LoRA on top this is QLoRA. Embeddings, norms and the head keep
their precision, and what else of matrices stays as it is gets counted in a note, or in a warning where it is much.
Costs unpacking a layer in forward and twice in backward with checkpointing, and one unpacked layer as a temporary: the
saving is nothing for a model whose largest layer is most of it.

Weights are quantised one layer at a time before the model moves to its device: the device never holds the full model,
and the host frees each full weight as soon as it is packed. Of a named `hf:` model, or with weights from a file, it does not
hold the full model either: a layer is read, or drawn, when it is packed (`techniques/init/late.py`).

Experts whose matrices are stacked in one parameter, as transformers holds them, are packed too. Their code reads an object
in the parameter's place (`frozen_stack.py`), whichever way it multiplies: expert by expert, as a batch or by groups of rows.
By groups the whole stack of a layer is unpacked for a product (1.75 GiB of Mixtral's), expert by expert one matrix.

Quantised weights cannot take small updates, so they are frozen, and an adapter must be trained beside them. Merging is
refused: rounding the sum to 4 bits would lose most of what was learned. The adapters load onto the full model
(`snugfit.load_adapter`) and merge there.

Which library. nf4 is packed and unpacked by the kernels of bitsandbytes on every device, so the numbers are those of QLoRA
as people know it. torchao's NF4 unpacks through int64 indices (more than 16 bytes a weight), always quantises its scales
twice, and takes only layers of a multiple of 16384 weights. int8 needs no library: it is a division and a rounding.
The layer around them is ours (`frozen_linear.py`), because the libraries' layers are not sound in training: bitsandbytes'
`Linear8bitLt` holds its input where neither checkpointing nor offload can free it, its `Linear4bit` repacks its weights
at the first evaluation on CPUs with bf16 instructions and then has no gradient, and both change the dtype of biases.

Wrong when: the linear layers are small beside embeddings and head. DoRA with `adapter_dropout` keeps unpacked weights until
backward. Fidelity: different. Source: Dettmers et al., QLoRA, 2023 (arXiv:2305.14314); Dettmers et al., LLM.int8(), 2022
(arXiv:2208.07339); bitsandbytes 0.50, `nn/modules.py`, `autograd/_functions.py`; torchao 0.18, `nf4_tensor.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from snugfit.techniques.declaration import SWITCHED_OFF, Technique
from snugfit.techniques.planning import Choice, Planning

_QLORA = {"adapter": "lora", "quantize": "nf4"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """How frozen weights are packed."""

    quantize: Literal["none", "nf4", "int8"] = "none"
    """Frozen weights under adapters in 4 bits (nf4) or 8 bits (int8); they cannot be trained themselves."""

    double_quantize: bool = False
    """The scales of nf4 are quantised once more."""


TECHNIQUE = Technique(
    name="quantize",
    fields=("quantize", "double_quantize"),
    rows=(24,),
    level="different",
    summary="three quarters of the frozen weights, or half",
    known_as="qlora qdora nf4 int8 4bit 4-bit 8bit 8-bit quantization load-in-4bit load-in-8bit bitsandbytes bnb",
    spellings={
        ("4", "4bit", "int4", "fp4", "load-in-4bit", "bnb-4bit", "qlora"): ("nf4",),
        ("8", "8bit", "load-in-8bit", "llm-int8", "bnb-8bit"): ("int8",),
        SWITCHED_OFF: ("none",),
    },
    rules={
        "quantize={recipe.quantize!r} without an adapter: quantised weights cannot take small updates, so they "
        "are frozen and something beside them must be trained. Set adapter='lora', or leave quantize out.": lambda r: (
            r.quantize != "none" and r.adapter == "none"
        ),
        "double_quantize needs quantize='nf4'; quantize is {recipe.quantize!r}.": lambda r: (
            r.double_quantize and r.quantize != "nf4"
        ),
    },
    lowers={
        "the frozen weights are rounded to {recipe.quantize} first.": ("different", lambda r, _: r.quantize != "none"),
    },
    hooks="snugfit.techniques.quantize.apply:Quantization",
    reads_weights=True,
    planning=Planning(part="passes", choices=(Choice(_QLORA, "different"),)),
    example=({"microbatch_size": 4, "adapter": "lora"}, {"microbatch_size": 4, **_QLORA}),
)
