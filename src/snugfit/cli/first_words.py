"""What `snugfit` says to somebody who types nothing behind it: what to type first, and what this machine has."""

from __future__ import annotations

from snugfit import calibrations, machine
from snugfit.processor import model_and_features
from snugfit.report.console import card
from snugfit.units import format_bytes

_FIRST = """say what to do, for example
  snugfit estimate torchvision:resnet50 --batch-size 64 --device all      what a step needs, on which cards it fits
  snugfit estimate --device rtx-4090 train.py --lr 3e-4      the same of your own script, as it is
  snugfit plan torchvision:resnet50 --batch-size 64 --device rtx-3060-12gb --budget 4GiB      how to train in less
  snugfit train torchvision:resnet18 --data digits --image-size 32 --epochs 1 --budget 1GiB      plan and train here
and `snugfit --help` for all commands."""
_MOST_SECONDS = 1.0
"""How long the driver may take to answer."""


def first_words() -> str:
    """Returns ten lines at most; asks the driver for GPUs, and loads no torch."""
    torch, cards = machine.installed("torch"), machine.gpus(_MOST_SECONDS)
    rows = [("GPU", _cards(cards)), ("torch", torch or "not installed"), ("calibrated", _calibrated(torch, cards))]
    return "\n".join([_FIRST, card("This machine (`snugfit doctor` looks closer)", rows)])


def _cards(cards: list[machine.Gpu]) -> str:
    """The first GPU with its memory, and how many more there are."""
    if not cards:
        return "none that NVIDIA's driver names; predictions and plans need none"
    first = cards[0]
    free = ""
    if first.free_bytes is not None and first.total_bytes is not None:
        free = f", {format_bytes(first.free_bytes)} of {format_bytes(first.total_bytes)} free now"
    return f"{first.name}{free}" + (f" (and {len(cards) - 1} more)" if cards[1:] else "")


def _calibrated(torch: str | None, cards: list[machine.Gpu]) -> str:
    """Which devices of this machine have speeds that were measured with this torch."""
    release, processor = (torch or "").partition("+")[0], model_and_features()[0]
    kept = [one for one in calibrations.identities() if str(one.get("torch")).partition("+")[0] == release]
    found = [
        name for name in dict.fromkeys(card.name for card in cards) if any(one.get("name") == name for one in kept)
    ]
    found += ["processor"] if any(str(one.get("processor", "-")).startswith(processor) for one in kept) else []
    return (
        ", ".join(found) or "no; `snugfit calibrate` takes a minute, and predicted seconds then hold for this machine"
    )
