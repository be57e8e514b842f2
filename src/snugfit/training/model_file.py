"""The final model as one safetensors file that plain PyTorch code loads: torchvision and timm included."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from snugfit.training.atomic_file import replaced_file


def save_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Writes a state dict as safetensors, complete or not at all.

    Tied tensors are stored under each of their names, so that a plain model loads the file with `strict=True`.

    Args:
        path: Final name of the file.
        state: Parameter or buffer name -> tensor on any device.

    Raises:
        OSError: The disk is full or the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        plain = tensor.detach().cpu().contiguous()  # on the host: a card may be full
        storage = plain.untyped_storage()
        # The format refuses tensors that share memory with another one or with the rest of a larger storage.
        shared = storage.data_ptr() in seen or storage.nbytes() != plain.nbytes
        seen.add(storage.data_ptr())
        stored[name] = plain.clone() if shared else plain
    with replaced_file(path) as temporary:
        try:
            save_file(stored, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error
