"""torch.compile: fuse operators, and let the compiler choose what to keep for backward.

Fusing saves the intermediates between elementwise operators and the time to write them; the partitioner of
`aot_eager_decomp_partition` and `inductor` also recomputes cheap operators instead of saving their results, and
`compile_memory_budget` (0 to 1, a share of activation memory) makes it recompute more. Costs minutes at the start, and
again for every new shape: a ragged last batch compiles once more. `aot_eager` only proves that a model compiles.

Wrong when: shapes change all the time, the run is short, or the model breaks the graph often. TorchScript is deprecated in
torch and not offered: it saves no training memory. Fidelity: `aot_eager` exact, `inductor` rounding.

Source: Ansel et al., PyTorch 2, 2024 (doi:10.1145/3620665.3640366); torch._functorch.config.activation_memory_budget.
"""

from __future__ import annotations

import dataclasses

from snugfit.techniques.declaration import SWITCHED_OFF, SWITCHED_ON, Technique


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """What the compiler does."""

    compile: str = "none"
    """torch.compile backend, such as inductor or aot_eager; none runs eagerly."""

    compile_memory_budget: float | None = None
    """Share of activation memory the compiler may keep, 0 to 1; the rest is recomputed. None: keep what it likes."""


TECHNIQUE = Technique(
    name="compile",
    fields=("compile", "compile_memory_budget"),
    rows=(20,),
    level="rounding",
    summary="intermediates between fused operators",
    known_as="torch.compile torch-compile inductor dynamo",
    free_word="backend",
    spellings={
        (*SWITCHED_ON, "torch.compile", "torch-compile", "default"): ("inductor",),
        SWITCHED_OFF: ("none",),
    },
    rules={
        "compile_memory_budget is {recipe.compile_memory_budget}; it is a share from 0 to 1.": lambda r: (
            r.compile_memory_budget is not None and not 0 <= r.compile_memory_budget <= 1
        ),
        "compile='torchscript' is not offered: TorchScript is deprecated in torch and saves no training memory. "
        "Use compile='inductor'.": lambda r: r.compile in ("torchscript", "jit", "ts"),
        "compile_memory_budget needs compile; set compile='inductor' or leave the budget out.": lambda r: (
            r.compile == "none" and r.compile_memory_budget is not None
        ),
        "checkpoint='selective' contradicts compile: use compile_memory_budget, which lets the compiler choose.": lambda r: (
            r.compile != "none" and r.checkpoint == "selective"
        ),
        "offload_activations contradicts compile: saved-tensor hooks that copy do not trace. Use compile_memory_budget "
        "or checkpoint with compile.": lambda r: r.compile != "none" and r.offload_activations != "none",
    },
    lowers={
        "{recipe.compile} fuses operators and rounds in other places.": (
            "rounding",
            lambda r, _: r.compile not in ("none", "eager", "aot_eager"),
        ),
    },
    only_on_cards={
        "it is compiled on a card, and the compiler knows no card that is pretended": lambda r: r.compile != "none",
    },
    hooks="snugfit.techniques.compile.apply:Compile",
    stage="model",
    never={
        "compile": "a compiled step is predicted as if it ran eagerly, which would be a guess; measure it, then pin it",
        "compile_memory_budget": "it belongs to compile",
    },
    example=({}, {"compile": "aot_eager_decomp_partition"}),
)
