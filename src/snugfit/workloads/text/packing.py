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
from snugfit.techniques.microbatch.apply import IGNORED_LABEL
from snugfit.workloads.text.causal import Marks
from snugfit.workloads.text.ragged import Ids, Indices, Ragged

_TOKENS_AT_ONCE = 2**18


class PackedSequences:
    """Rows of one length."""

    def __init__(self, ids: Ids, positions: Ids, labelled: np.ndarray) -> None:
        """Holds the rows.

        Args:
            ids: int32, `[N, T]`.
            positions: Place of each token in its sample, int32 `[N, T]`.
            labelled: Whether a token is learned, bool `[N, T]`.
        """
        self.ids, self.positions, self.labelled = ids, positions, labelled

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Returns some rows as a batch.

        Args:
            indices: Which, B of them.

        Returns:
            `input_ids`, `position_ids` and `labels` (-100 where nothing is learned), int64 `[B, T]`.
        """
        picked = np.asarray(indices, dtype=np.int64)
        ids = self.ids[picked].astype(np.int64)
        return {
            "input_ids": torch.from_numpy(ids),
            "position_ids": torch.from_numpy(self.positions[picked].astype(np.int64)),
            "labels": torch.from_numpy(np.where(self.labelled[picked], ids, IGNORED_LABEL)),
        }


def pack(ids: Ragged, prompts: Indices, *, length: int, pad_id: int, marks: Marks | None = None) -> PackedSequences:
    """Lays sequences end to end in rows.

    Args:
        ids: Token ids of samples, each with its end.
        prompts: Tokens at the front of each that are not learned, int64 `[samples]`.
        length: Tokens of a row, T.
        pad_id: What the last row is filled up with.
        marks: Whether each token is learned, where that is not all behind the front.

    Returns:
        The rows in which something is learned.
    """
    total = len(ids.values)
    rows = -(-total // length)
    starts = np.concatenate([ids.offsets[:-1], [total]])  # what fills up the last row is a sample of its own
    fronts = np.concatenate([np.maximum(prompts, 1), [rows * length]])
    packed = np.empty((rows, length), dtype=np.int32)
    positions = np.empty((rows, length), dtype=np.int32)
    learned = np.empty((rows, length), dtype=bool)
    count = 0
    at_once = max(_TOKENS_AT_ONCE // length, 1)
    for first in range(0, rows, at_once):  # places are counted in 64 bits: some rows at a time, not all
        place = np.arange(first * length, min(first + at_once, rows) * length, dtype=np.int64)
        sample = np.searchsorted(starts, place, side="right") - 1
        position = place - starts[sample]
        labelled = position >= fronts[sample]
        if marks is not None:
            there = marks[place[0] : place[-1] + 1]
            labelled[: len(there)] &= there
        # A sample that goes on in another row starts again there, and its first token there has nothing to predict it.
        position = np.minimum(position, place % length)
        labelled &= position > 0
        kept = labelled.reshape(-1, length).any(axis=1)
        here = np.full(len(place), pad_id, dtype=np.int32)
        values = ids.values[place[0] : place[-1] + 1]
        here[: len(values)] = values
        into = slice(count, count + int(kept.sum()))
        packed[into] = here.reshape(-1, length)[kept]
        positions[into] = position.reshape(-1, length)[kept]
        learned[into] = labelled.reshape(-1, length)[kept]
        count = into.stop
    return PackedSequences(packed[:count], positions[:count], learned[:count])


@torch.no_grad()
def check_borders(model: torch.nn.Module, *, vocabulary: int, name: str) -> None:
    """Stops where a model lets tokens of one sample see another sample of their row.

    Two rows of 16 tokens that differ in their first half only go through the model; the second half, a sample of its own,
    must come out the same.

    Args:
        model: A language model with memory; its training mode and the random state are left as they are.
        vocabulary: How many different tokens it takes.
        name: How it is named, for the message.

    Raises:
        InputError: It attends across the border.
    """
    device = next(model.parameters()).device
    half = torch.arange(8, device=device)
    one, other = ((torch.cat([half + start, half]) % vocabulary)[None] for start in (1, vocabulary // 2))
    positions = torch.cat([half, half])[None]
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        first, second = (model(input_ids=ids, position_ids=positions).logits[0, 8:].float() for ids in (one, other))
    finally:
        for module, mode in modes.items():
            module.training = mode
    precision = torch.finfo(next(model.parameters()).dtype).eps
    if not torch.allclose(first, second, rtol=0, atol=4 * precision * float(first.abs().max())):
        raise InputError(
            f"--packing: model {name!r} lets tokens attend to other samples of their row, so the loss would not be that of "
            "the samples. Leave --packing out; samples are then padded."
        )
