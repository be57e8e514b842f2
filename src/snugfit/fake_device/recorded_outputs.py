"""Outputs of inner layers that transformers collects with hooks (hidden states, attentions).

Which layers a model collects from stands in a table of the library, filled when a model is built. A model that travelled
to the simulation was built elsewhere, so the table is asked here for what the model itself says.

Source: `transformers/utils/output_capturing.py`, _CanRecordRegistry.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from snugfit.fake_device.replaced import Change, replaced

_MODULE = "transformers.utils.output_capturing"


@contextmanager
def outputs_found() -> Iterator[None]:
    """Lets models that were built in another process find their layers while the context is open.

    Yields:
        Nothing.
    """
    registry: Any = getattr(sys.modules.get(_MODULE), "_CAN_RECORD_REGISTRY", None)
    changes: list[Change] = []
    kind: Any = type(registry)
    if registry is not None and kind is not dict:
        original = kind.get

        def get(self: Any, model: Any, *default: Any) -> Any:
            return original(self, model, *default) or getattr(model, "_can_record_outputs", None) or {}

        changes.append((kind, "get", get))
    with replaced(changes):
        yield
