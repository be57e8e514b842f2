"""Packing: short sequences laid end to end until a row is full, so that no memory is spent on padding.

Every row has exactly `--seq-len` tokens. `position_ids` start again at 0 with each sample, and the first token of a sample
has no label. Models of transformers read from the positions which tokens belong together and let none attend across a
border, so the loss is that of the samples by themselves. Some cannot (old and recurrent architectures build their mask
without the positions); training looks at the model itself (`check_borders`) and refuses there.

A sample that does not fit into the rest of a row goes on in the next one, where it cannot see what came before. The last
row is filled up with padding that is a sample of its own and has no labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from snugfit.errors import InputError
from snugfit.techniques.batches import IGNORED_LABEL
from snugfit.workloads.text.ragged import Indices, Ragged, tokens_of
from snugfit.workloads.traits import evaluating

_TOKENS_AT_ONCE = 2**17
_NAMES = ("input_ids", "position_ids", "labels")


class PackedTexts:
    """Rows of one length, cut from the samples when they are asked for; those in which nothing is learned are left out."""

    def __init__(self, samples: Ragged, *, length: int, pad_id: int, most: int | None = None) -> None:
        """Finds out which rows there are; `pad_id` fills up the last one.

        `length`: tokens of a row, T.
        `most`: rows that are kept, at most.
        """
        self._samples, self._length, self._pad_id = samples, length, pad_id
        every = np.arange(-(-len(samples.values) // length))
        at_once = max(_TOKENS_AT_ONCE // length, 1)  # places are counted in 64 bits: some rows at a time, not all
        kept = []
        for at in range(0, len(every), at_once):
            rows = every[at : at + at_once]
            _, _, labels = self._cut(rows)
            kept.append(rows[(labels != IGNORED_LABEL).any(axis=1)])
        self._rows: Indices = np.concatenate([every[:0], *kept])[:most]

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Returns B rows as a batch.

        `input_ids`, `position_ids` and `labels` (-100 where nothing is learned), int64 `[B, T]`.
        """
        made = self._cut(self._rows[np.asarray(indices, dtype=np.int64)])
        return {name: torch.from_numpy(one) for name, one in zip(_NAMES, made, strict=True)}

    def _cut(self, rows: Indices) -> tuple[Indices, Indices, Indices]:
        """Token ids of some rows, the position of each token in its sample, and the labels, int64 `[B, T]`."""
        values, offsets = self._samples.values, self._samples.offsets
        place = rows[:, None] * self._length + np.arange(self._length)
        there = place < len(values)
        held = np.full(place.shape, self._pad_id, dtype=np.int64)
        held[there] = values[place[there]]
        # What fills up the last row is a sample of its own, which begins where the others end.
        sample = np.searchsorted(offsets, place, side="right") - 1
        # A sample that goes on in another row starts again there, and its first token there has nothing to predict it.
        position = np.minimum(place - offsets[sample], np.arange(self._length))
        learned = there & (held >= 0) & (position > 0)
        return tokens_of(held), position, np.where(learned, held, IGNORED_LABEL)


@torch.no_grad()
def check_borders(model: torch.nn.Module, *, vocabulary: int, name: str) -> None:
    """Raises `InputError` where a model lets tokens of one sample see another sample of their row.

    Two rows of 16 tokens that differ in their first half only go through the model; the second half, a sample of its
    own, must come out the same.
    `model`: a language model with memory; its training mode and the random state are left as they are.
    """
    device = next(model.parameters()).device
    half = torch.arange(8, device=device)
    one, other = ((torch.cat([half + start, half]) % vocabulary)[None] for start in (1, vocabulary // 2))
    positions = torch.cat([half, half])[None]
    with evaluating(model):
        first, second = (model(input_ids=ids, position_ids=positions).logits[0, 8:].float() for ids in (one, other))
    precision = torch.finfo(next(model.parameters()).dtype).eps
    if not torch.allclose(first, second, rtol=0, atol=4 * precision * float(first.abs().max())):
        raise InputError(
            f"--packing: model {name!r} lets tokens attend to other samples of their row, so the loss would not be that of "
            "the samples. Leave --packing out; samples are then padded."
        )
