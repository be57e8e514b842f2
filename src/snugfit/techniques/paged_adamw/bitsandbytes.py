"""`bitsandbytes` AdamW with 32-bit state, as our step needs it; imported only when a recipe asks for it."""

from __future__ import annotations

import importlib
from typing import Any

from snugfit.techniques.paged_state import PagedState

_AdamW: Any = importlib.import_module("bitsandbytes.optim").AdamW


class PagedAdamW(PagedState, _AdamW):  # type: ignore[misc]
    """The library's AdamW, whose state is plain when it leaves and paged when it comes back."""
