"""How a batch goes through the model: cut into microbatches, moved to the device, and run as the techniques want it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import InputError
from snugfit.recipe import Recipe
from snugfit.techniques.base import ModelTechnique, WeightedPiece
from snugfit.techniques.batches import (
    LossWeight,
    Split,
    batch_length,
    first_tensor,
    loss_counts,
    loss_weights,
    map_tensors,
    split_batch,
)
from snugfit.techniques.shard.ranks import Ranks
from snugfit.training.caches import caching_configs, without_caches
from snugfit.training.model_call import Forward, Loss, losses_of, output_of
from snugfit.training.step_outputs import KeptOutputs
from snugfit.training.untouched import untouched

Pieces = list[WeightedPiece]


@dataclasses.dataclass(eq=False, repr=False)
class Passes:
    """The forward passes of one run."""

    model: nn.Module
    """The model, changed in place by the techniques."""
    techniques: list[ModelTechnique]
    """Those that surround the forward pass."""
    device: torch.device
    """Where training runs."""
    _: dataclasses.KW_ONLY
    loss: Loss | None
    """Function of output and batch, or None where the model returns its loss."""
    forward: Forward | None
    """How a batch reaches the model, or None for the usual ways."""
    own_split: Split | None
    """How a batch is cut, or None for dimension 0."""
    loss_weight: LossWeight
    """How losses of microbatches combine."""
    ranks: Ranks | None = None
    """The processes that share the batch; None: this one alone."""

    def __post_init__(self) -> None:
        self.split = self.own_split or split_batch
        self.parts = (self.model, self.loss, self.forward, self.own_split)
        """What runs, of the caller's code."""
        self._caching = caching_configs(self.model)
        self._sample: Any = None

    def pieces(self, batch: Any, recipe: Recipe, *, every: bool = False) -> Pieces:
        """Cuts a batch; `InputError` where it is empty, or its pieces cannot be added up.

        `every`: whether pieces that do not count are wanted, too.
        Returns the microbatches, with the factor of each one's loss.
        """
        if self.ranks is not None:
            return self._pieces_of_share(batch, recipe, self.ranks)
        size = recipe.microbatch_size
        tensor = first_tensor(batch)
        if self.forward is None and tensor is not None and tensor.shape[0] == 0:
            raise InputError("the batch holds no sample; give at least one.")
        if size is None or (self.split is split_batch and batch_length(batch) <= size):
            return [(batch, 1.0)]
        pieces = list(self.split(batch, size))
        if not pieces:
            raise InputError("split= returned no microbatch; it must cut the batch into a list of at least one.")
        if len(pieces) > 1 and recipe.step_in_backward:
            raise InputError(
                f"this batch makes {len(pieces)} microbatches of {size}, and step_in_backward frees each gradient before "
                "they can add up. Give batches of at most that size, or leave step_in_backward out."
            )
        weights = loss_weights(pieces, self.loss_weight)
        # A piece without a label that counts adds nothing; its own mean would be 0 / 0. A tensor may be on a device, which
        # would have to be waited for.
        pairs = zip(pieces, weights, strict=True)
        return [(piece, weight) for piece, weight in pairs if every or isinstance(weight, Tensor) or weight != 0]

    def shares(self, pieces: Pieces) -> list[float | Tensor]:
        """Returns the factors of this process's own pieces, which come first."""
        return [factor for piece, factor in pieces if self._sample is None or piece is not self._sample]

    def _pieces_of_share(self, batch: Any, recipe: Recipe, ranks: Ranks) -> Pieces:
        """Cuts this process's share of a batch into as many pieces as every other process has.

        All processes must go through the model equally often, since they collect its weights together. One with fewer
        pieces, or with no sample in the last batch, runs a sample that it knows, or that another one has, with a factor
        of 0.
        """
        size, tensor = recipe.microbatch_size, first_tensor(batch)
        known = self.forward is None or self.own_split is None  # what a batch's samples are
        empty = known and tensor is not None and tensor.shape[0] == 0
        pieces = [] if empty else [batch] if size is None else list(self.split(batch, size))
        counts = loss_counts(pieces, self.loss_weight)
        if self._sample is None and pieces:
            self._sample = self.split(pieces[0], 1)[0]
        on_device = [count for count in counts if isinstance(count, Tensor)]
        # One message: how many pieces there are here, how much they count, whether that number is only known on a
        # device, and whether this process still lacks a sample to fill up with.
        told = ranks.agree_by_share(
            [len(pieces), 0.0 if on_device else sum(counts), bool(on_device), self._sample is None]
        )
        if any(nothing for *_, nothing in told):  # a run that goes on with the last batch of the data
            samples = [one for one in ranks.tell(self._sample) if one is not None]
            if not samples:
                raise InputError("the batch holds no sample in any of the processes; give at least one.")
            self._sample = samples[0]
        total: Any = sum(count for _, count, *_ in told)
        if any(waiting for *_, waiting, _ in told):
            total = ranks.total(torch.as_tensor(sum(counts), dtype=torch.float32, device=ranks.device))
        elif self.loss_weight == "sum":
            total = 1.0
        if not isinstance(total, Tensor) and total == 0:
            raise InputError("no sample or label of this batch counts in any process, so its loss is undefined.")
        fillers = [(self._sample, 0.0)] * (int(max(number for number, *_ in told)) - len(pieces))
        return [*zip(pieces, [count / total for count in counts], strict=True), *fillers]

    def arrived(self, batch: Any) -> Any:
        """Returns a microbatch on the device, as the model needs it."""
        batch = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))
        for technique in self.techniques:
            batch = technique.convert(batch)
        return batch

    def loss_of(self, batch: Any, kept: KeptOutputs | None = None) -> Tensor:
        """Returns the loss of a microbatch, with its graph; `kept` receives the outputs and named losses."""
        with without_caches(self._caching), ExitStack() as around:
            for technique in self.techniques:
                around.enter_context(technique.around_forward())
                around.enter_context(technique.around_training_forward())
            output = output_of(self.model, batch, self.forward)
            loss, named = losses_of(output, batch, self.loss)
            if kept is not None:
                kept.take(output, named)
            return loss

    def evaluated(self, batch: Any) -> Any:
        """Returns the model's output for a batch, or a piece of one, without gradients."""
        with torch.no_grad(), without_caches(self._caching), self.around_step(), ExitStack() as around:
            for technique in self.techniques:
                around.enter_context(technique.around_forward())
            output = output_of(self.model, self.arrived(batch), self.forward)
            self._let_go()
            return output

    @contextmanager
    def once_more(self, batch: Any) -> Iterator[None]:
        """Context of what the model leaves of a pass in training mode; all of it is put back when the context ends.

        Args:
            batch: A microbatch of the step that is under way.

        Yields:
            Nothing, after the pass.
        """
        with untouched(self.parts):
            with torch.no_grad(), without_caches(self._caching), ExitStack() as around:
                for technique in self.techniques:
                    around.enter_context(technique.around_forward())
                output_of(self.model, self.arrived(batch), self.forward)
            self._let_go()
            yield

    def _let_go(self) -> None:
        """Lets go of weights that were collected: no backward pass does, and what is written into them would be lost."""
        if self.ranks is not None:
            from snugfit.techniques.shard.apply import let_go_of_weights

            let_go_of_weights(self.model)

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Context of a whole step, and of an evaluation pass."""
        with ExitStack() as around:
            for technique in self.techniques:
                around.enter_context(technique.around_step())
            yield
