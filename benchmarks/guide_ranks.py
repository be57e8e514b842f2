"""The guide's ViT-H/14 on four GPUs: what is predicted for each rung beside what was published.

    python -m benchmarks.guide_ranks

The guide's runs were of torch's first FSDP in June 2023, which collected weights without waiting for those before to be
let go (`limit_all_gathers` was off until July 2023: pytorch pull request 104900). So beside each rung stands what it takes
where all collected weights stay to the end of the pass (`shard=gradients`), and what float16 copies of them take, which
that FSDP made for itself under `16-mixed`.

Source: rasbt/pytorch-memory-optim, 08_baseline.py to 10_fsdp-with-cpu-offload.py (518 pixels, 4 images a GPU, Adam).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

import snugfit
from benchmarks.results_file import write
from snugfit.recipe import Recipe

RUNGS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("plain", 22.63, {}),
    ("FSDP, one unit", 19.83, {"shard": "full", "shard_unit": f"size:{2**31}"}),
    ("by block", 17.63, {"shard": "full"}),
    ("by size, 2M", 17.23, {"shard": "full", "shard_unit": "size:2000000"}),
    ("+ checkpointing", 9.03, {"shard": "full", "checkpoint": "all"}),
    ("+ CPU offload", 6.68, {"shard": "full", "checkpoint": "all", "offload_parameters": "all"}),
)
GPUS, IMAGES = 4, 4
HALF_BYTES = 2


def build() -> torch.nn.Module:
    """The guide's model."""
    from torchvision.models import vit_h_14

    model = vit_h_14(image_size=518)
    model.heads.head = torch.nn.Linear(1280, 10)
    return model  # type: ignore[no-any-return]


def main() -> None:
    """Predicts every rung and writes `results/guide_ranks.json`."""
    images = torch.empty(GPUS * IMAGES, 3, 518, 518, device="meta")
    predict = functools.partial(
        snugfit.estimate,
        build,
        (images, torch.empty(GPUS * IMAGES, dtype=torch.long, device="meta")),
        loss=torch.nn.functional.cross_entropy,
        optimizer="adam",
        device="a100-40gb",
        gpus=GPUS,
        keep_gradients=True,
    )
    rows = []
    for name, published, fields in RUNGS:
        found = predict(recipe=Recipe(precision="16-mixed", **fields))
        assert found.peak_reserved_bytes is not None
        row = {
            "rung": name,
            "published_gb": published,
            "predicted_gb": round(found.peak_reserved_bytes / 1e9, 2),
            "step_seconds": found.step_seconds,
        }
        if fields.get("shard") == "full" and name != RUNGS[1][0]:
            kept = predict(recipe=Recipe(precision="16-mixed", **{**fields, "shard": "gradients"}))
            assert kept.peak_reserved_bytes is not None
            row["unlimited_gb"] = round(kept.peak_reserved_bytes / 1e9, 2)
            row["with_copies_gb"] = round((kept.peak_reserved_bytes + HALF_BYTES * kept.parameters) / 1e9, 2)
        rows.append(row)
        print(row, flush=True)
    write("guide_ranks", {"source": "rasbt/pytorch-memory-optim", "rows": rows})


if __name__ == "__main__":
    main()
