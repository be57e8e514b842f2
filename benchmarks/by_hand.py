"""Large models planned for small cards, against what a patient person would find by hand.

By hand: for every number format, loss, adapter and optimizer that such people take, microbatches of 1, 2, 4, 8 samples and
the whole batch, `selective`, everything offloaded, and `blocks:K` for every K, with the inputs of checkpointed blocks on the
card and on the host. More blocks take neither less time nor more memory, so of all K the smallest that fits is looked for by
halves; each recipe is simulated. A size is left out where even its plain step is slower than the best recipe by then.

`python -m benchmarks.plan_quality --large` writes the rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.errors import RecipeError
from snugfit.planner.constraints import Constraints
from snugfit.planner.places import place_for
from snugfit.planner.planner import Planner
from snugfit.planner.probe import Probe, Simulations
from snugfit.recipe import Recipe
from snugfit.report.words import recipe_in_words
from snugfit.simulator.request import NamedModel
from snugfit.simulator.subjects import named_subject
from snugfit.units import GIB
from snugfit.workers.pool import Pool
from snugfit.workload import Workload

Changes = Mapping[str, Any]
_ROUNDED = {"precision": "bf16-true", "stochastic_rounding": True}
_LLAMA = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
_SMALL = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
_LORA = [{"adapter": "lora"}, {"adapter": "lora", "quantize": "nf4"}]
_LOSSES = [{}, {"loss_impl": "chunked"}]
_BITS = [{}, {"optimizer": "adamw8bit"}]
_IN_BACKWARD = [{}, {"step_in_backward": True}]


@dataclasses.dataclass(frozen=True)
class Large:
    """A model, where it is trained, and what a person would try."""

    model: str | Changes
    """Its name, or the sizes of a Llama."""
    batch: int
    budget_gib: int
    device: str
    allow: str = "exact"
    pins: Changes = dataclasses.field(default_factory=dict)
    choices: Sequence[Sequence[Changes]] = ()
    """Of each of these one is taken."""


CASES: dict[str, Large] = {
    "ViT-L/16, 6 GiB": Large(
        "torchvision:vit_l_16", 64, 6, "rtx-3060-12gb", pins={"precision": "bf16-mixed"}, choices=[_IN_BACKWARD]
    ),
    "ViT-L/16, 12 GiB": Large(
        "torchvision:vit_l_16", 64, 12, "rtx-3060-12gb", pins={"precision": "bf16-mixed"}, choices=[_IN_BACKWARD]
    ),
    "Llama 1B, 12 GiB": Large(
        _SMALL, 8, 12, "rtx-3060-12gb", "rounding",
        choices=[[_ROUNDED, {"precision": "bf16-mixed"}], _LOSSES, _BITS, _IN_BACKWARD],
    ),
    "Llama 8B, 12 GiB": Large(_LLAMA, 8, 12, "rtx-3060-12gb", "different", choices=[[_ROUNDED], _LOSSES, _LORA]),
    "Llama 8B, 16 GiB": Large(_LLAMA, 8, 16, "rtx-4080-16gb", "different", choices=[[_ROUNDED], _LOSSES, _LORA]),
    "Llama 8B, 24 GiB": Large(_LLAMA, 8, 24, "rtx-4090", "different", choices=[[_ROUNDED], _LOSSES, _LORA]),
    "Llama 8B, 48 GiB": Large(_LLAMA, 8, 48, "l40s-48gb", "different", choices=[[_ROUNDED], _LOSSES, _LORA]),
}  # fmt: skip
_LEVELS = {"exact": {"exact"}, "rounding": {"exact", "rounding"}, "different": {"exact", "rounding", "different"}}


def compare(name: str, pool: Pool) -> dict[str, Any]:
    """Plans a case, then looks for the best by hand.

    Args:
        name: Its name.
        pool: Workers.

    Returns:
        A row of results.
    """
    case = CASES[name]
    constraints = Constraints(
        allow=frozenset(_LEVELS[case.allow]),  # type: ignore[arg-type]
        pins=case.pins,
        host_budget_bytes=128 * GIB,
    )
    with tempfile.TemporaryDirectory() as folder:
        named = NamedModel(spec=case.model) if isinstance(case.model, str) else _llama(case.model, Path(folder))
        subject = named_subject(named, Workload(batch_size=case.batch))
        with Planner(subject, place_for(case.device), constraints, pool=pool) as planner:
            plan = planner.at(case.budget_gib * GIB)
            print(f"{name}: {plan.step_seconds:.3f} s, {recipe_in_words(plan.recipe)}; {plan.simulated}", flush=True)
            simulated = plan.simulated
            blocks = len(planner.simulations.probes[plan.recipe].recorded.block_names)
            best, tried = _by_hand(case, planner.simulations, planner.capacity_bytes(case.budget_gib * GIB), blocks)
    assert best is not None
    return {
        "model": name,
        "device": case.device,
        "budget_bytes": case.budget_gib * GIB,
        "listed": tried,
        "plan": plan.recipe.to_mapping(defaults=False),
        "plan_seconds": plan.step_seconds,
        "simulated": simulated,
        "best": best.recipe.to_mapping(defaults=False),
        "best_seconds": best.seconds,
        "over_best_percent": round(100 * (plan.step_seconds / best.seconds - 1), 3),
    }


def _llama(sizes: Changes, folder: Path) -> NamedModel:
    given = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, **sizes}
    given |= {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192}
    file = folder / "config.json"
    file.write_text(json.dumps({**given, "rope_theta": 500000.0, "tie_word_embeddings": False}))
    return NamedModel(spec=f"hf:{file}", task="causal-lm", seq_len=2048)


def _by_hand(case: Large, simulations: Simulations, capacity: int, blocks: int) -> tuple[Probe | None, int]:
    """The fastest recipe found by hand that fits, and how many there are of which it is the fastest."""
    best: Probe | None = None
    listed = 0

    def seen(recipe: Recipe, **changes: Any) -> Probe | None:
        nonlocal best
        try:
            made = recipe.replace(**changes)
        except RecipeError:
            return None
        simulations.simulate([made])
        probe = simulations.probes.get(made)
        if probe is not None and probe.need_bytes <= capacity and (best is None or probe.seconds < best.seconds):
            best = probe
            print(f"  by hand {probe.seconds:.3f} s, {recipe_in_words(made)}", flush=True)
        return probe

    for recipe in _recipes(case):
        plain = seen(recipe)
        listed += 2 * blocks + 3
        if plain is None or plain.need_bytes <= capacity or (best is not None and plain.seconds >= best.seconds):
            continue
        seen(recipe, checkpoint="selective")
        seen(recipe, offload_activations="all")
        for offload in ("none", "checkpoints"):
            few, many = 0, blocks
            everything = seen(recipe, checkpoint="all", offload_activations=offload)
            if everything is None or everything.need_bytes > capacity:
                continue
            while many - few > 1:
                count = (few + many) // 2
                found = seen(recipe, checkpoint=f"blocks:{count}", offload_activations=offload)
                slow = found is not None and best is not None and found.seconds > best.seconds
                if found is None or (slow and found.need_bytes > capacity):
                    break  # those with more blocks are slower still
                few, many = (few, count) if found.need_bytes <= capacity else (count, many)
    return best, listed


def _recipes(case: Large) -> Iterator[Recipe]:
    """Every choice at every size of microbatch, nothing done to blocks."""
    for size in (None, 1, 2, 4, 8):
        for changes in itertools.product(*case.choices):
            given = {name: value for change in (case.pins, *changes) for name, value in change.items()}
            cut = size is not None and size < case.batch
            if (cut and given.get("step_in_backward")) or (size is not None and not cut):
                continue  # a gradient that is used at once cannot add up
            if cut:
                given["microbatch_size"] = size
                given |= {"accumulate_dtype": "fp32"} if given.get("precision") == "bf16-true" else {}
            yield Recipe.from_mapping(given)
