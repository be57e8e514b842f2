"""Pretrained weights that a script would download: nothing but their values is missing, and a model goes without them.

An empty file stands for one of torch.hub (torchvision's, for example) or one that timm asks the hub of Hugging Face for.
"""

from __future__ import annotations

import importlib.util
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch

from snugfit.attributes import Change, replaced

_NOTHING = struct.pack("<Q", 2) + b"{}"
"""A file of safetensors that holds no tensor."""


_told: list[_Told] = []
"""Who is told, of the context that is open: a library keeps the function that it imported in an earlier one."""


class _Told:
    """What is missing in one run."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self.any = note, False

    def of(self, name: str) -> None:
        self.any = True
        self._note(
            f"{name} is not on this machine, and nothing is downloaded in an estimate: the model goes without its values."
        )


@contextmanager
def unfetched_weights(note: Callable[[str], None]) -> Iterator[None]:
    """Context in which weights that are not on this machine are done without; `note`: is told which."""
    load, told = torch.nn.Module.load_state_dict, _Told(note)

    def fetched(url: str, dst: str, *_: Any, **__: Any) -> None:
        told.of(Path(urlparse(url).path).name)
        torch.save({}, dst)

    def loaded(model: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return load(model, state_dict if state_dict or not told.any else model.state_dict(), *args, **kwargs)

    changes: list[Change] = [
        (torch.hub, "download_url_to_file", fetched),
        (torch.nn.Module, "load_state_dict", loaded),
    ]
    with replaced(changes), _asked_by_timm():
        _told.append(told)
        try:
            yield
        finally:
            _told.remove(told)


@contextmanager
def _asked_by_timm() -> Iterator[None]:
    """Context in which timm asks us for files of the hub, from when it is imported."""
    if importlib.util.find_spec("timm") is None:
        yield
        return
    import huggingface_hub

    names = vars(huggingface_hub)  # which has its own function only when that was asked for
    before = names.get("hf_hub_download")
    names["hf_hub_download"] = _of_hub
    try:
        yield
    finally:
        if before is None:
            del names["hf_hub_download"]
        else:
            names["hf_hub_download"] = before


def _of_hub(*args: Any, **named: Any) -> Any:
    """Returns a file of the hub as its own function does; for weights of timm that are not there, one that holds none."""
    from huggingface_hub.file_download import hf_hub_download

    try:
        return hf_hub_download(*args, **named)
    except OSError:
        name = str(named.get("filename"))
        if not _told or named.get("library_name") != "timm" or not name.endswith(".safetensors"):
            raise
        _told[-1].of(f"{name} of {named.get('repo_id')}")
        path = Path(tempfile.mkdtemp()) / name
        path.write_bytes(_NOTHING)
        return str(path)
