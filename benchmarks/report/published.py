"""What others have published, beside simulations of the same steps."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report.tables import Row, table


def published(results: Path) -> str:
    """Returns the section about the published ladder."""
    found = json.loads((results / "published.json").read_text(encoding="utf-8"))
    rows = [
        (
            row["name"],
            f"{row['published_reserved_gb']:.2f}",
            f"{row['simulated_reserved_gb']:.2f}",
            f"{row['difference_percent']:+.1f} %",
        )
        for row in found["rungs"]
    ]
    return (
        "## The published ViT-L/16 ladder\n\n"
        f"Reserved memory as its source printed it (torch {found['published_torch']}, one GPU), beside the simulation of "
        f"the same steps, written by hand (torch {found['torch']}, {found['date']}; `python -m benchmarks.published`). "
        "Nothing in the package is fitted to these rows.\n\n"
        + table(["rung", "published GB", "simulated GB", "difference"], rows)
    )


def guides(results: Path) -> str:
    """Returns the section about the published table of bert-large, nothing where it was not predicted."""
    path = results / "guides.json"
    if not path.is_file():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in found["rows"] if "then" in row]
    if not rows:
        return ""

    def difference(total: int, row: Row) -> str:
        return f"{100 * (total / row['published_bytes'] - 1):+.1f} %"

    return (
        "## The published bert-large table\n\n"
        "What the driver counted on a V100-16GB when the guide was written, beside the simulation of the same rungs with "
        "the CUDA context. Today's step needs less in the rungs of batch 4. Up to torch 1.10 gradients were zeroed in "
        "place, so that they were alive during the forward pass, and softmax kept its input for the backward pass. Both "
        "are in the sources of that time; with the step written so by hand (`benchmarks/guides_then.py`) these rungs agree "
        "as well. The guide does not name its torch, so that it was that old is concluded from the agreement. Nothing else "
        f"is fitted (torch {rows[0]['then']['torch_version']}; `python -m benchmarks.guides`).\n\n"
        + table(
            ["rung", "published MiB", "today's step", "gradients zeroed", "and softmax of then", "MiB"],
            [
                (
                    row["name"],
                    row["published"].split()[0],
                    difference(row["total_bytes"], row),
                    difference(row["then"]["zeroed_only_total_bytes"], row),
                    difference(row["then"]["total_bytes"], row),
                    f"{row['then']['total_bytes'] / 2**20:.0f}",
                )
                for row in rows
            ],
        )
    )
