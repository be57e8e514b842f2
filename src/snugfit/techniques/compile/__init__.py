"""torch.compile: fuse operators, and let the compiler choose what to keep for backward.

Fusing saves the intermediates between elementwise operators and the time to write them; the partitioner of
`aot_eager_decomp_partition` and `inductor` also recomputes cheap operators instead of saving their results, and
`compile_memory_budget` (0 to 1, a share of activation memory) makes it recompute more. Costs minutes at the start, and
again for every new shape: a ragged last batch compiles once more. `aot_eager` only proves that a model compiles.

A prediction compiles the step as a run does, for fake tensors: what the partitioner saves, what inductor fuses and which
buffers its code reuses are torch's own answers, and take torch's own time, kernels apart. So it holds for the torch that
makes it. Known to be missing: matrices that inductor pads on a card (sizes that are not multiples of 8, such as 50,257
words), kernels that it chooses by timing them (`max-autotune`), CUDA graphs. The time of a fused kernel is that of its
bytes, held against no measurement; so a plan compiles only where that is pinned, and searches with eager steps.

Wrong when: shapes change all the time, the run is short, or the model breaks the graph often. TorchScript is deprecated in
torch and not offered: it saves no training memory. Fidelity: `aot_eager` exact, `inductor` rounding.

Source: Ansel et al., PyTorch 2, 2024 (doi:10.1145/3620665.3640366); torch._functorch.config.activation_memory_budget.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from snugfit.techniques.declaration import SWITCHED_OFF, SWITCHED_ON, Technique
from snugfit.techniques.planning import Planning

if TYPE_CHECKING:
    from snugfit.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """What the compiler does."""

    compile: str = "none"
    """torch.compile backend, such as inductor or aot_eager; none runs eagerly."""

    compile_memory_budget: float | None = None
    """Share of activation memory the compiler may keep, 0 to 1; the rest is recomputed. None: keep what it likes."""


def eager_of(recipe: Recipe) -> Recipe:
    """Returns the same recipe without a compiler."""
    return recipe.replace(compile="none", compile_memory_budget=None)


WITHIN_ON_CPU, WITHIN_ON_CARDS = 0.05, 0.08
"""By how much the predicted memory of a compiled step may be off: of all that were compared, and of the three that
others published (`benchmarks/compiled.py`, `benchmarks/published_compiled.py`)."""


def bound_in_words(what: str, *, on_card: bool) -> str:
    """Returns a sentence that says how far a prediction of a compiled step can be trusted, which `what` asked for."""
    share, where = (
        (WITHIN_ON_CARDS, "three published runs on cards") if on_card else (WITHIN_ON_CPU, "measured runs on cpu")
    )
    return (
        f"{what} is predicted by compiling the step without its kernels: memory within {share:.0%} of "
        f"{where}; another version of torch may compile otherwise. Seconds of fused kernels are not held against any."
    )


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
    in_the_loop="call model.compile() there, after snugfit.apply",
    planning=Planning(
        off=lambda field, _: (
            "the time of a compiled step is held against no measurement, and compiling takes minutes; pin it"
            if field == "compile"
            else ""
        )
    ),
    example=({}, {"compile": "aot_eager_decomp_partition"}),
)
