"""Which device torch finds, as a line of JSON: `python -m benchmarks.gpu.place_probe`, so that nobody else holds a card."""

from __future__ import annotations

import json
import sys

import torch


def found() -> dict[str, object]:
    """Returns the device by the fields of `Place`."""
    version = torch.__version__.partition("+")[0]
    if not torch.cuda.is_available():
        return {"kind": "cpu", "card": "cpu", "torch_version": version}
    card = torch.cuda.get_device_properties(0)
    return {
        "kind": "cuda",
        "card": card.name,
        "torch_version": version,
        "capability": [card.major, card.minor],
        "memory_bytes": card.total_memory,
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found()) + "\n")
