"""What libraries find out by looking at values, and are told in a simulation, whose tensors have none.

- *Packed sequences.* Decoders of transformers look in every forward pass whether positions start again within a row. Where
  the model counts them itself they do not, and no mask is made: attention takes its causal kernels. Under fake tensors
  transformers takes the other way on purpose, and a simulation of it would show masks, copies of keys and values, and other
  attention kernels than the run has. So it is told that no row is packed; but for positions that the batch brings, as
  batches of packed samples do.
  Source: `transformers/masking_utils.py`, find_packed_sequence_indices (the check is skipped under fake tensors).
- *Padding masks.* A mask whose values are all 1 is left out, and attention takes kernels without one. It is looked at in
  every forward pass, so in a batch of which one sample is padded, the microbatches of the others run without a mask and take
  less memory. A simulated mask is kept: the prediction holds for padding in every microbatch, the most that it can take.
  Source: the same file, _ignore_causal_mask_sdpa and _ignore_bidirectional_mask_sdpa.
- *Nested tensors.* `nn.TransformerEncoder` makes one of a padded batch in evaluation where the padding of every row is at
  its end. It is told that this is not so, and goes on with the padded batch, which takes at least as much memory.
  Source: `torch/nn/modules/transformer.py`, TransformerEncoder.forward.
- *Matched objects.* Which prediction of a set-based detector belongs to which object is found by costs. The number of pairs
  is known all the same: every object gets a prediction of its own, as far as there are enough. Which one it is decides no
  size. Boxes are given by centre and extent, so their corners are in order, which is checked.
  Source: scipy, `optimize.linear_sum_assignment`; transformers, `loss/loss_for_object_detection.py`.
- *Recorded outputs.* Which layers a model of transformers collects hidden states from stands in a table of the library,
  filled when a model is built. A model that travelled here was built elsewhere, so it is asked for what it says itself.
  Source: `transformers/utils/output_capturing.py`, _CanRecordRegistry.
- *LBFGS.* How long it goes on: `line_search.py`.
- *Metrics of torchmetrics*: `metrics_answers.py`.
- *Packed sequences of torch.* How long they are: `packed_sequences.py`.
- *Arguments of distributions.* torch.distributions looks whether parameters and samples are valid. They are taken to be.
  Source: `torch/distributions/distribution.py`, Distribution.__init__ and _validate_sample.
- *Processes without images.* `nn.SyncBatchNorm` leaves out the statistics of processes that got none. All have some.
  Source: `torch/nn/modules/_functions.py`, SyncBatchNorm.forward.

Only libraries that are loaded are changed, and what was answered stands in the estimate.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.distributions import Distribution
from torch.nn import SyncBatchNorm

from snugfit.attributes import Change
from snugfit.errors import CannotSimulateError
from snugfit.private_torch.fake_tensors import FakeTensor
from snugfit.values.line_search import lbfgs_goes_on
from snugfit.values.metrics_answers import metrics_answers
from snugfit.values.packed_sequences import packed_sequences
from snugfit.values.read_values import ReadValues

UNPACKED = "transformers was told that no row of a batch packs several sequences"
PACKED_ROWS = "rows with positions of their own were taken to pack several sequences: attention has a mask"
PADDED = "transformers was told that every microbatch has padding; those without take less memory, as they need no mask"
PADDED_ANYWHERE = "evaluation is counted with padded batches, where torch would leave the padding out (nested tensors)"
VALID = "arguments and samples of torch.distributions were taken to be valid"
IMAGES = "every process was taken to have images for nn.SyncBatchNorm"
MATCHED = "every object was matched with a prediction of its own"

_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged")

Answered = Callable[[str], None]
"""Gets the answer in words when it is given."""


def library_answers(
    values: ReadValues, answered: Answered, category: Callable[[torch.Tensor], str | None]
) -> list[Change]:
    """Returns the replacements for what loaded libraries would find out by looking at values.

    `category`: what a tensor is known to be, such as `inputs`.
    """
    masks = "transformers.masking_utils"
    losses = [name for name in sys.modules if name.startswith("transformers.loss.")]
    return [
        *_wrapped(masks, "find_packed_sequence_indices", _packed, (answered, category)),
        *_wrapped(masks, "_ignore_causal_mask_sdpa", _padded, answered),
        *_wrapped(masks, "_ignore_bidirectional_mask_sdpa", _padded, answered),
        *_wrapped("torch", "_nested_tensor_from_mask_left_aligned", _padded_anywhere, answered),
        *(change for loss in losses for change in _wrapped(loss, "linear_sum_assignment", _matched, answered)),
        *(change for loss in losses for change in _wrapped(loss, "generalized_box_iou", _in_order, values)),
        *(change for name in _NESTED for change in _wrapped("torch.nested", name, _refused, name)),
        *_recorded_outputs(),
        *metrics_answers(answered),
        *lbfgs_goes_on(values, answered),
        *packed_sequences(answered),
        (Distribution, "__init__", _holding(VALID, Distribution.__init__, values)),
        (Distribution, "_validate_sample", _holding(VALID, Distribution._validate_sample, values)),
        (SyncBatchNorm, "forward", _holding(IMAGES, SyncBatchNorm.forward, values)),
    ]


def _wrapped(module: str, name: str, wrap: Callable[[Any, Any], Any], told: Any) -> list[Change]:
    """The replacement of a module's function by one made of it, where the module has it."""
    owner = sys.modules.get(module)
    return [(owner, name, wrap(getattr(owner, name), told))] if hasattr(owner, name) else []


def _packed(original: Any, told: tuple[Answered, Callable[[torch.Tensor], str | None]]) -> Any:
    answered, category = told

    def find_packed_sequence_indices(position_ids: Any) -> Any:
        packed = original(position_ids)  # what it computes on the way belongs to the run
        if torch.compiler.is_compiling():  # compiled code reads no values, and keeps the mask
            return packed
        given = category(position_ids) == "inputs"
        answered(PACKED_ROWS if given else UNPACKED)
        return packed if given else None

    return find_packed_sequence_indices


def _padded(original: Any, answered: Answered) -> Any:
    def ignore_mask(padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
        ignored = original(padding_mask, *args, **kwargs)
        if padding_mask is not None and not ignored and not torch.compiler.is_compiling():
            answered(PADDED)
        return ignored

    return ignore_mask


def _padded_anywhere(original: Any, answered: Answered) -> Any:
    def left_aligned(*_: Any, **__: Any) -> bool:
        answered(PADDED_ANYWHERE)
        return False

    return left_aligned


def _refused(_: Any, name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotSimulateError(
            f"torch.nested.{name}: operators on nested tensors are not simulated. Predict with padded batches, which take "
            "at least as much memory, or measure a run (snugfit profile)."
        )

    return refuse


def _matched(solve: Any, answered: Answered) -> Any:
    def pairs(costs: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(costs, FakeTensor):
            return solve(costs, *args, **kwargs)
        answered(MATCHED)
        count = min(costs.shape)
        return torch.arange(count), torch.arange(count)

    return pairs


def _in_order(overlap: Any, values: ReadValues) -> Any:
    def of(first: Any, second: Any) -> Any:
        before = values.assumptions
        values.assumptions = dataclasses.replace(before, branch=True)
        try:
            return overlap(first, second)
        finally:
            values.assumptions = before

    return of


def _holding(why: str, asks: Any, values: ReadValues) -> Any:
    @functools.wraps(asks)
    def answered(*args: Any, **kwargs: Any) -> Any:
        with values.holding(why):
            return asks(*args, **kwargs)

    return answered


def _recorded_outputs() -> list[Change]:
    registry: Any = getattr(sys.modules.get("transformers.utils.output_capturing"), "_CAN_RECORD_REGISTRY", None)
    if registry is None or type(registry) is dict:
        return []
    original = type(registry).get

    def get(self: Any, model: Any, *default: Any) -> Any:
        return original(self, model, *default) or getattr(model, "_can_record_outputs", None) or {}

    return [(type(registry), "get", get)]
