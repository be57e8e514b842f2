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
from collections.abc import Iterator
from typing import TYPE_CHECKING

from snugfit.techniques.declaration import SWITCHED_OFF, SWITCHED_ON, Level, Planned, Technique

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """What the compiler does."""

    compile: str = "none"
    """torch.compile backend, such as inductor or aot_eager; none runs eagerly."""

    compile_memory_budget: float | None = None
    """Share of activation memory the compiler may keep, 0 to 1; the rest is recomputed. None: keep what it likes."""


def _problems(recipe: Recipe) -> Iterator[str]:
    if recipe.compile_memory_budget is not None and not 0 <= recipe.compile_memory_budget <= 1:
        yield f"compile_memory_budget is {recipe.compile_memory_budget}; it is a share from 0 to 1."
    if recipe.compile in ("torchscript", "jit", "ts"):
        yield (
            "compile='torchscript' is not offered: TorchScript is deprecated in torch and saves no training memory. "
            "Use compile='inductor'."
        )


def _contradictions(recipe: Recipe) -> Iterator[str]:
    if recipe.compile == "none":
        if recipe.compile_memory_budget is not None:
            yield "compile_memory_budget needs compile; set compile='inductor' or leave the budget out."
        return
    if recipe.checkpoint == "selective":
        yield "checkpoint='selective' contradicts compile: use compile_memory_budget, which lets the compiler choose."
    if recipe.offload_activations != "none":
        yield (
            "offload_activations contradicts compile: saved-tensor hooks that copy do not trace. Use compile_memory_budget "
            "or checkpoint with compile."
        )


def _lowers(recipe: Recipe, workload: Workload) -> Iterator[tuple[str, Level, str]]:
    if recipe.compile not in ("none", "eager", "aot_eager"):
        yield "compile", "rounding", f"{recipe.compile} fuses operators and rounds in other places."


TECHNIQUE = Technique(
    name="compile",
    fields=("compile", "compile_memory_budget"),
    rows=(20,),
    level="rounding",
    summary="intermediates between fused operators",
    known_as="torch.compile torch-compile inductor dynamo",
    free={"compile": "backend"},
    spellings={
        "compile": {
            (*SWITCHED_ON, "torch.compile", "torch-compile", "default"): ("inductor",),
            SWITCHED_OFF: ("none",),
        }
    },
    problems=_problems,
    contradictions=_contradictions,
    lowers=_lowers,
    hooks="snugfit.techniques.compile.apply:Compile",
    stage="model",
    plan=Planned(
        never={
            "compile": "a compiled step is predicted as if it ran eagerly, which would be a guess; measure it, then pin it",
            "compile_memory_budget": "it belongs to compile",
        }
    ),
    example=({}, {"compile": "aot_eager_decomp_partition"}),
)
