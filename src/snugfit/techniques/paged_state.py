"""Optimizer state of bitsandbytes that the CUDA driver moves to the host when the card is full; imports no bitsandbytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snugfit.errors import note, warn

_MOMENTS = ("state1", "state2")


def announce_pages(name: str, device: torch.device, runs_as: str) -> None:
    """Says that pages move to the host when the card is full, and that nothing is paged on cpu."""
    if device.type != "cpu":
        note(f"optimizer {name} runs on bitsandbytes: its pages move to the host when the card is full.")
        return
    warn(f"optimizer {name!r} runs as {runs_as}: on cpu the state is in host memory already, and nothing is paged.")


class PagedState:
    """Beside an optimizer of bitsandbytes: its state leaves as plain tensors, and is paged again when it comes back."""

    host_decides = True
    """No kernel can be masked on the device, and the library waits for it after each parameter anyway."""
    is_paged: bool
    state: dict[nn.Parameter, dict[str, Any]]
    param_groups: list[dict[str, Any]]

    def _init_group(self, group: dict[str, Any]) -> None:
        """Makes the state of a first step; the library would make it between the updates of two parameters."""
        number = next(at for at, one in enumerate(self.param_groups) if one is group)
        for position, weight in enumerate(group["params"]):
            if weight.grad is not None and not self.state[weight]:
                self.init_state(group, weight, number, position)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain tensors, without the marks of paged memory."""
        plain: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        plain["state"] = {key: _plain(state) for key, state in plain["state"].items()}
        return plain

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state, into pages where this optimizer has them."""
        if not self.is_paged:
            super().load_state_dict(state_dict)  # type: ignore[misc]
            return
        super().load_state_dict(state_dict, move_to_device=False)  # type: ignore[misc]
        for weight, state in self.state.items():
            for name in _MOMENTS:
                if name in state:
                    loaded = state[name]
                    state[name] = self.get_state_buffer(weight, loaded.dtype)  # type: ignore[attr-defined]
                    state[name].copy_(loaded)
        self.to_gpu()  # type: ignore[attr-defined]  # what is not paged


def _plain(state: Any) -> Any:
    """Tensors without attributes: a copy of paged memory is not paged."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.detach() if isinstance(state, torch.Tensor) else state
