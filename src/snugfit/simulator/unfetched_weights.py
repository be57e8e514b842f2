"""Pretrained weights that a script would download: nothing but their values is missing, and a model goes without them.

An empty file stands for one of torch.hub (torchvision's, for example) or one that timm asks the hub of Hugging Face for,
and one with tensors that have no values for one of transformers, if the model's config is on this machine.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import safetensors.torch
import torch

from snugfit.attributes import Change, replaced
from snugfit.simulator.unfetched_models import write_without_values

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
    with replaced(changes), _hub_asks_us():
        _told.append(told)
        try:
            yield
        finally:
            _told.remove(told)


@contextmanager
def _hub_asks_us() -> Iterator[None]:
    """Context in which libraries ask us for files of the hub."""
    if importlib.util.find_spec("huggingface_hub") is None:
        yield
        return
    import huggingface_hub

    # Which reads its variables when it is imported.
    constants: Any = importlib.import_module("huggingface_hub.constants")
    names = vars(huggingface_hub)  # which has its own function only when that was asked for
    before = names.get("hf_hub_download")
    names["hf_hub_download"] = _of_hub
    try:
        with replaced([(constants, "HF_HUB_OFFLINE", True), *_loaded()]):
            yield
    finally:
        if before is None:
            del names["hf_hub_download"]
        else:
            names["hf_hub_download"] = before


def _loaded() -> list[Change]:
    """The same for libraries that are imported by now."""
    of_timm = functools.partial(_of_hub, library_name="timm")
    askers = {"transformers.utils.hub": _of_hub, "timm.models._hub": of_timm}
    return [(sys.modules[name], "hf_hub_download", ours) for name, ours in askers.items() if name in sys.modules]


def _of_hub(repo_id: str, filename: str, *args: Any, **named: Any) -> Any:
    """Returns a file of the hub as its own function does; for weights that are not there, one without values."""
    from huggingface_hub.file_download import hf_hub_download

    try:
        return hf_hub_download(repo_id, filename, *args, **named)
    except OSError:
        of_timm = named.get("library_name") == "timm" and filename.endswith(".safetensors")
        if not _told or not (of_timm or filename == "model.safetensors"):
            raise
        if of_timm:
            path = Path(tempfile.mkdtemp()) / filename
            path.write_bytes(safetensors.torch.save({}))
        else:
            config = Path(hf_hub_download(repo_id, "config.json", *args, **named))
            path = config.parent / filename
            if not write_without_values(config, path):
                raise
        _told[-1].of(f"{filename} of {repo_id}")
        return str(path)
