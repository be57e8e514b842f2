"""Layers cut among processes by torch's `parallelize_module`, before any other technique surrounds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from snugfit.errors import warn
from snugfit.private_torch.collectives import styles_of_transposed
from snugfit.techniques.base import ModelTechnique
from snugfit.techniques.shard.ranks import is_simulated
from snugfit.techniques.tensor_parallel import cuts
from snugfit.techniques.tensor_parallel.masks import OwnMasks

if TYPE_CHECKING:  # every step asks whether it has something to do here; torch's part is for those who have
    from torch.distributed.tensor.parallel import ParallelStyle


class TensorParallel(ModelTechnique):
    """Cuts the layers so that each process keeps its part."""

    field = "tensor_parallel"

    def change(self, model: nn.Module) -> None:
        """Cuts the layers, and says which layers of a block stay whole."""
        ranks = self.setup.ranks
        if ranks is None:
            return
        assert ranks.layers is not None
        from torch.distributed.tensor.parallel import parallelize_module

        from snugfit.techniques.tensor_parallel.shared_input import SharedInput

        found = cuts.cuts_of(model, ranks.tensor)
        masks = OwnMasks(ranks) if self.setup.workload.dropout and not is_simulated() else None
        for columns, row in found.pairs:
            layers = [model.get_submodule(name) for name in columns]
            if len(layers) > 1:
                SharedInput(layers, ranks.layers)
            if masks is not None and layers:
                masks.surround(layers[0], model.get_submodule(row))
        if masks is not None:
            masks.check_before_first(model)
        done: set[nn.Module] = set()
        for name, style in found.styles.items():
            module = model.get_submodule(name)
            if style == cuts.PARTLY_SEEN:
                ranks.seen_in_part |= {f"{name}.{own}" for own, _ in module.named_parameters()}
            elif module not in done:
                done.add(module)
                parallelize_module(module, ranks.layers, _style(module, style), src_data_rank=None)
        for name, attribute, number in found.counts:
            setattr(model.get_submodule(name), attribute, number)
        ranks.cut |= {name for name, weight in model.named_parameters() if _is_cut(weight)}
        if found.whole:
            warn(
                f"tensor_parallel leaves {', '.join(found.whole[:4])} of each block whole on every GPU: no equal parts of "
                "it give parts of what comes out (q, k and v in one matrix, for example)."
            )


def _is_cut(weight: object) -> bool:
    from torch.distributed.tensor import Shard

    return any(isinstance(one, Shard) for one in getattr(weight, "placements", ()))


def _style(module: nn.Module, how: str) -> ParallelStyle:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    columns, rows = (ColwiseParallel, RowwiseParallel) if isinstance(module, nn.Linear) else styles_of_transposed()
    if how in (cuts.COLUMNS, cuts.GATHERED):
        return columns(output_layouts=Replicate() if how == cuts.GATHERED else None)
    return rows(input_layouts=Replicate() if how == cuts.SPLIT else None)
