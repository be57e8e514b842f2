"""Blocks are alike in everything but their number, or they are not alike."""

from __future__ import annotations

from typing import Any

from torch import nn

from snugfit.simulator.alike_modules import rows_alike


class Block(nn.Module):
    """A block that knows its number."""

    def __init__(self, number: int, width: int = 4, **settings: Any) -> None:
        super().__init__()
        self.number = number
        self.linear = nn.Linear(4, width)
        for name, value in settings.items():
            setattr(self, name, value)


def rows(*blocks: nn.Module) -> list[tuple[int, int]]:
    return list(rows_alike(blocks))


def test_the_number_of_a_block_does_not_count() -> None:
    assert rows(*(Block(number) for number in range(4))) == [(0, 4)]


def test_another_width_begins_another_row() -> None:
    assert rows(Block(0), Block(1), Block(2, width=8), Block(3, width=8)) == [(0, 2), (2, 2)]


def test_another_setting_begins_another_row() -> None:
    assert rows(Block(0, local=True), Block(1, local=True), Block(2, local=False)) == [(0, 2), (2, 1)]
    assert rows(Block(0, scale=0.1), Block(1, scale=0.2)) == [(0, 1), (1, 1)]


def test_frozen_weights_begin_another_row() -> None:
    frozen = Block(1)
    frozen.linear.weight.requires_grad_(False)
    assert rows(Block(0), frozen) == [(0, 1), (1, 1)]


def test_objects_compare_by_identity() -> None:
    shared = object()
    assert rows(Block(0, config=shared), Block(1, config=shared)) == [(0, 2)]
    assert rows(Block(0, config=object()), Block(1, config=object())) == [(0, 1), (1, 1)]
