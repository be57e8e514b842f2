"""A file of weights for a model of transformers of which only the small files are on this machine.

Its tensors have the names, shapes and dtype of the model that the config names, and no values: the file is a hole.
"""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import torch

from snugfit import private_torch
from snugfit.workloads.stored_weights import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_without_values(config: Path, place: Path) -> bool:
    """Writes the weights of a model; returns whether its config says enough.

    Args:
        config: `config.json` of the model, in its folder.
        place: The file that is written.
    """
    model = _model_of(config)
    if model is None:
        return False
    rows: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    kept = model.state_dict().keys()  # without buffers that are made anew
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if name in kept:
            begin, end = end, end + tensor.nbytes
            rows[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(rows).encode()
    with place.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
    return True


def _model_of(config: Path) -> torch.nn.Module | None:
    """The model of a config on the meta device, in the dtype that it was saved in; None where transformers has no such."""
    import transformers

    try:
        made = transformers.AutoConfig.from_pretrained(str(config.parent), local_files_only=True)
    except (OSError, ValueError):  # of a library of its own
        return None
    kind = getattr(transformers, next(iter(made.architectures or ()), ""), None)
    if kind is None or getattr(made, "quantization_config", None) is not None:  # whose weights are packed
        return None
    dtype = getattr(made, "dtype", None) or getattr(made, "torch_dtype", None) or torch.float32
    with private_torch.without_modes(), torch.device("meta"):
        return kind(made).to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)  # type: ignore[no-any-return]
