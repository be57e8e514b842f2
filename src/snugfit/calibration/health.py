"""What is installed on this machine and works, what is missing, what that leaves out, and how to get it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Literal

from snugfit import calibrations, machine
from snugfit.calibration.library_probe import Tried, try_libraries
from snugfit.devices import card_identity
from snugfit.machine import Gpu, Requirement
from snugfit.recording.cpu_clock import processor_identity
from snugfit.units import GIB, format_bytes

EXTRAS = {
    "vision": "models of torchvision and timm, images, the digits of the demo",
    "text": "models of transformers (hf:), adapters, text data",
    "lowbit": "optimizers with state in 8, 4 or fp8 bits, weights in nf4 and int8",
    "report": "figures as PNG, TensorBoard",
    "gpu": "nvml_bytes of a run: what the driver counts for its process",
}
"""Extra -> what is left out without it."""
_BREAK = {"torchvision": "torchvision", "torchao": "torchao", "bitsandbytes": "bitsandbytes", "nvidia-ml-py": "pynvml"}
"""Libraries that may be installed and not work with this torch or this GPU -> their modules."""
_LEAST_FREE = GIB


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    """What was looked at."""
    state: Literal["ok", "missing", "broken"]
    """Broken: snugfit asks for it and it is not there, or it is there and does not work."""
    found: str
    """What is there, or what is wrong."""
    left_out: str = ""
    """What cannot be done as it is; empty where it is ok."""
    fix: str = ""
    """What to type or do."""


def checks() -> list[Check]:
    """Looks at everything; takes the seconds that importing torch and what is built on it takes."""
    asked, cards = machine.requirements(), machine.gpus()
    there = [
        module for library, module in _BREAK.items() if machine.installed(library) and (cards or module != "pynvml")
    ]
    tried = try_libraries(["torch", *there])
    torch = tried["torch"]
    return [
        _torch(asked, torch),
        _needed([one for one in asked if one.extra is None and one.library != "torch"]),
        _gpu(cards, torch),
        *_extras(asked, tried),
        _compiler(),
        _calibration(torch),
        _cache(),
    ]


def _torch(asked: list[Requirement], tried: Tried) -> Check:
    goes = next((one.versions for one in asked if one.library == "torch"), "")
    if tried.problem:
        fix = f"pip install --force-reinstall 'torch{goes}'"
        return Check(name="torch", state="broken", found=tried.problem, left_out="everything", fix=fix)
    version = tried.facts["version"]
    if not machine.within(version, goes):
        return Check(
            name="torch",
            state="broken",
            found=f"{version}, where {goes} was tested",
            left_out="predictions that can be trusted: they rest on private parts of torch",
            fix=f"pip install 'torch{goes}', or another snugfit",
        )
    built = f"for CUDA {tried.facts['cuda']}" if tried.facts["cuda"] else "for the processor only"
    return Check(name="torch", state="ok", found=f"{version}, built {built}; tested: {goes or 'unknown'}")


def _needed(asked: list[Requirement]) -> Check:
    unmet = [one for one in asked if not one.met]
    if unmet:
        found = ", ".join(f"{one.library} {one.installed or 'not installed'}" for one in unmet)
        fix = "pip install " + " ".join(f"'{one.library}{one.versions}'" for one in unmet)
        return Check(name="libraries", state="broken", found=found, left_out="commands that use them", fix=fix)
    return Check(name="libraries", state="ok", found=_listed(asked))


def _gpu(cards: list[Gpu], torch: Tried) -> Check:
    card = torch.facts.get("card")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if cards and not card and not torch.problem:
        hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        return Check(
            name="GPU",
            state="broken",
            found=f"{cards[0].name} is there, and torch {torch.facts['version']} cannot use it{hidden}",
            left_out="training on it",
            fix="install a torch that is built for CUDA, or a driver that is new enough for it (pytorch.org says which)",
        )
    if not cards and not card:
        found = "none that NVIDIA's driver names"
        return Check(
            name="GPU", state="missing", found=found, left_out="training on one; predictions and plans need none"
        )
    free = ("" if one.free_bytes is None else f", {format_bytes(one.free_bytes)} free now" for one in cards)
    names = [f"{one.name}{more}" for one, more in zip(cards, free, strict=True)]
    return Check(name="GPU", state="ok", found="; ".join(names or [str(card)]))


def _extras(asked: list[Requirement], tried: Mapping[str, Tried]) -> Iterator[Check]:
    for extra, left_out in EXTRAS.items():
        libraries = [one for one in asked if one.extra == extra]
        failed = [one for one in (tried.get(_BREAK.get(two.library, "")) for two in libraries) if one and one.problem]
        unmet = [one for one in libraries if not one.met]
        if failed:
            yield Check(
                name=f"extra {extra}",
                state="broken",
                found="; ".join(f"{one.library}: {one.problem}" for one in failed),
                left_out=left_out,
                fix=f"install torch and {failed[0].library} again, together and from the same place",
            )
        elif unmet:
            found = ", ".join(f"{one.library} {one.installed or 'not installed'}" for one in unmet)
            fix = f"pip install 'snugfit[{extra}]'"
            yield Check(name=f"extra {extra}", state="missing", found=found, left_out=left_out, fix=fix)
        elif libraries:
            yield Check(name=f"extra {extra}", state="ok", found=_listed(libraries))


def _compiler() -> Check:
    names = (os.environ.get("CXX") or "g++", "clang++", "cl")
    path = next((found for found in map(shutil.which, names) if found), None)
    if path:
        return Check(name="compiler", state="ok", found=path)
    return Check(
        name="compiler",
        state="missing",
        found=f"none of {', '.join(names)}",
        left_out="--compile inductor",
        fix="install g++ by your system's means, or name another in CXX",
    )


def _calibration(torch: Tried) -> Check:
    found = []
    if not torch.problem:
        version, card = torch.facts["version"], torch.facts["card"]
        kept = [calibrations.kept(card_identity(card, version))] if card else []
        kept.append(calibrations.kept(processor_identity(torch.facts["processor"], version)))
        found = [f"{' '.join(one['identity'].values())}, {one['date']}" for one in kept if one]
    if found:
        return Check(name="calibration", state="ok", found="; ".join(found))
    left_out = "seconds that hold for this machine: those of typical ones are said instead"
    return Check(
        name="calibration", state="missing", found="none of this torch", left_out=left_out, fix="snugfit calibrate"
    )


def _cache() -> Check:
    left_out, fix = "answers that are kept: each command measures anew", "set XDG_CACHE_HOME to a folder with room"
    try:
        folder = calibrations.cache_folder("").absolute()
        there = next(one for one in (folder, *folder.parents) if one.exists())
        free = shutil.disk_usage(there).free
    except (OSError, RuntimeError) as error:
        return Check(name="cache", state="missing", found=str(error), left_out=left_out, fix=fix)
    found = f"{folder}: {format_bytes(free)} free"
    if not os.access(there, os.W_OK) or free < _LEAST_FREE:
        found += "" if os.access(there, os.W_OK) else ", and it cannot be written"
        return Check(name="cache", state="missing", found=found, left_out=left_out, fix=fix)
    return Check(name="cache", state="ok", found=found)


def _listed(libraries: list[Requirement]) -> str:
    return ", ".join(f"{one.library} {one.installed}" for one in libraries)
