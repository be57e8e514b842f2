"""What a run leaves in its directory beside its own description and rows, and how all of that is removed again.

Files whose names the run does not choose (a tokenizer's) are listed in `.beside`, so that a run that replaces this one
removes them and nothing that is the user's. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from snugfit.atomic_file import TEMPORARY_PREFIX, remove, replaced_file

MODEL = "model.safetensors"
CHECKPOINTS, TENSORBOARD, ADAPTER, BEST = "checkpoints", "tensorboard", "adapter", "best"
BEST_WEIGHTS = "step-*.safetensors"
_IN_FOLDERS = {
    CHECKPOINTS: "step-*.ckpt", TENSORBOARD: "events.out.tfevents.*", ADAPTER: "adapter_*", BEST: BEST_WEIGHTS
}  # fmt: skip
"""What a run writes into its folders; whatever else is there is the user's."""
_BESIDE = ".beside"


@contextlib.contextmanager
def taken_in(path: Path) -> Iterator[Path]:
    """Context with an empty folder, whose files are moved into the run directory at the end and listed there."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=path) as name:
        folder = Path(name)
        yield folder
        files = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
        if not files:
            return
        # First the list: whatever is moved is on it, even if the process is killed in between.
        with replaced_file(path / _BESIDE) as temporary:
            listed = {*written_beside(path), *(file.as_posix() for file in files)}
            temporary.write_text(json.dumps(sorted(listed)) + "\n", encoding="utf-8")
        for file in files:
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).replace(path / file)


def remove_results(path: Path) -> None:
    """Removes the results of an earlier run, and nothing of the user's."""
    files = [path / name for name in (MODEL, *written_beside(path), _BESIDE)]
    for folder, pattern in _IN_FOLDERS.items():
        files += (path / folder).glob(pattern)
    for file in files:
        remove(file)
    for place in {*(file.parent for file in files), *(path / folder for folder in _IN_FOLDERS)} - {path}:
        with contextlib.suppress(OSError):  # missing, or something of the user's is in it
            place.rmdir()


def written_beside(path: Path) -> list[str]:
    """Returns the names of the files a run has written beside its weights: config, tokenizer."""
    try:
        found = json.loads((path / _BESIDE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    names = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
    # The list decides what is deleted, so it reaches no further than its directory.
    inside = path.resolve()
    return [name for name in names if (inside / name).resolve().is_relative_to(inside)]
