"""The batches that a recording goes through: a process's share of them, and those of its evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from snugfit.errors import in_words, warn
from snugfit.private_torch.sparse_layouts import without_memory
from snugfit.recipe import Recipe
from snugfit.recorder.materialise import Materialiser
from snugfit.techniques.batch_share import share_of, sharers
from snugfit.techniques.batches import first_tensor, held_by, map_tensors, split_batch, why_uncut
from snugfit.training.evaluation import evaluated_at_once, task_of
from snugfit.training.fallbacks import elements
from snugfit.workload import Workload

EVALUATED = 2
"""Batches that are evaluated: the first finds the cache as training left it, the second is like all later ones."""


class EvaluationBatches:
    """The evaluation of held-out data, in batches of the size that the loop reads: training's microbatches."""

    def __init__(self, task: Any, arguments: Mapping[str, Any], recipe: Recipe, batches: Sequence[Any]) -> None:
        """Cuts the largest of the training batches, outside of the recording; `task` None: the loss alone."""
        batch = max(batches, key=elements)
        self._own = task is None
        self.task = task or task_of(arguments.get("loss"), arguments.get("loss_weight", "samples"))
        pieces, tensor = [batch], first_tensor(batch)
        if recipe.microbatch_size is not None and tensor is not None:
            pieces = (arguments.get("split") or split_batch)(batch, evaluated_at_once(recipe, tensor.shape[0]))
        pieces = [pieces[i % len(pieces)] for i in range(EVALUATED)]
        self._batches = [map_tensors(piece, _in_its_own_memory) for piece in pieces]

    def run(self, course: Any, place: Any) -> None:
        """Evaluates on fake tensors."""
        try:
            course.evaluate(Materialiser().tree(batch, place) for batch in self._batches)
        except Exception as error:
            if not self._own:
                raise
            warn(
                "evaluation is left out of the estimate: model and loss do not run as an evaluation does, in eval mode and "
                f"without gradients ({in_words(error)}). evaluate=False leaves it out without a word.",
            )


def batch_share(batch: Any, given: Mapping[str, Any], workload: Workload, recipe: Recipe, rank: int) -> Any:
    """As many samples of a batch as one process's share has."""
    tensor = first_tensor(batch)
    if workload.ranks == 1 or tensor is None:
        return batch
    ranks = sharers(recipe, workload.ranks)
    start, end = share_of(tensor.shape[0], ranks, rank * ranks // workload.ranks)
    return map_tensors((given.get("split") or split_batch)(batch, end - start)[0], _in_its_own_memory)


def _in_its_own_memory(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return without_memory(tensor)

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def longest(batches: list[Any]) -> int | None:
    """Returns the samples of the longest batch; None where they cannot be known."""
    if any(map(why_uncut, batches)):
        return None
    lengths = [tensor.shape[0] for tensor in map(first_tensor, batches) if tensor is not None]
    return max(lengths, default=None) or None


def shape_in_words(batches: list[Any]) -> str:
    """Returns the shape of the batches, such as `64 x 3 x 224 x 224`; of images in a list the first one's, and how many."""
    shapes = []
    for batch in batches:
        tensor = first_tensor(batch)
        if tensor is not None:
            count = _images_in_a_list(batch)
            shapes.append(" x ".join(map(str, [*filter(None, [count]), *tensor.shape])))
    shapes = list(dict.fromkeys(shapes))
    more = f" and {len(shapes) - 3} more shapes" if len(shapes) > 3 else ""
    return ", ".join(shapes[:3]) + more


def _images_in_a_list(batch: Any) -> int:
    """How many images stand side by side in the first part of a batch, as detectors take them; 0 for any other batch."""
    first = next(iter((held_by(batch) or {}).values()), None)
    images = first if isinstance(first, list | tuple) else []
    each = all(isinstance(one, torch.Tensor) and one.dim() == 3 and one.shape[0] in (1, 3, 4) for one in images)
    return len(images) if each else 0
