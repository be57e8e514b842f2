"""A mode that is told of each tensor that an operator is about to write to."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from snugfit.private_torch import DirectMode, tree_leaves
from snugfit.private_torch.dispatcher import places_written


class BeforeWrites(DirectMode):  # type: ignore[no-untyped-call]
    """Calls `about_to_write` before operators that declare writes; undeclared ones are not seen."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether torch.compile may look past this mode: yes, a model that is compiled inside stays so."""
        return True

    def about_to_write(self, tensor: Tensor) -> None:
        """Called with each tensor that is written to next."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator."""
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)  # operators of a higher order have none
        if schema is not None and schema.is_mutable:
            for position, name in places_written(func):
                given = args[position] if position < len(args) else kwargs.get(name)
                for tensor in tree_leaves(given):
                    if isinstance(tensor, Tensor):
                        self.about_to_write(tensor)
        return func(*args, **kwargs)
