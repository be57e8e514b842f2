"""Where nothing fits a card: which others have the room, and that several may share. No simulation is needed for either."""

from __future__ import annotations

from snugfit.device_kinds import CUDA
from snugfit.devices import DEVICES, Device
from snugfit.errors import option
from snugfit.planner.constraints import Constraints
from snugfit.planner.margin import margin_for
from snugfit.planner.probe import Place

_MOST = 3
"""Cards that are named, the smallest first."""


def other_cards(need_bytes: int, place: Place, *, may_share: bool) -> str:
    """Returns lines to add to a refusal; empty for a processor.

    `need_bytes`: what the leanest recipe that is allowed needs on the card that was asked for.
    `may_share`: whether one card was asked for, and several could share the training.
    """
    if place.on_cpu:
        return ""
    if _room_bytes(place.card) >= need_bytes:
        return f"\n{place.card.name} itself has the memory for the first of these budgets."
    roomy = [card for card in DEVICES if _room_bytes(card) >= need_bytes]
    named = sorted(roomy, key=lambda card: (card.memory_bytes or 0, card.name))[:_MOST]
    lines = []
    if named:
        lines.append(f"Cards with the memory for the first of these budgets: {', '.join(card.name for card in named)}.")
    if place.card.peer_link is not None and may_share:
        lines.append(f"Several of them can share the weights out: {option('gpus')} auto finds the fewest that do it.")
    return "".join(f"\n{line}" for line in lines)


def may_be_shared(constraints: Constraints) -> bool:
    """Returns whether several cards may share a training out; a script's own loop may not."""
    return constraints.is_free("shard")


def _room_bytes(card: Device) -> int:
    """What a plan for all of a card may need."""
    if card.memory_bytes is None:
        return 0
    return margin_for(CUDA, card.context).room_bytes(card.memory_bytes, card.context_bytes)
