"""The share of the card's rate that a matrix product reaches: tiles, waves, splits, and short inner sides by hand."""

import pytest

from snugfit.recording.product_times import (
    HOPPER_TILE_SECONDS,
    TILE_INNER,
    TILE_SHARES,
    TILES,
    around_tile,
    product_share,
)

LONG = 1 << 30
"""An inner side beside which the begin and end of a tile are nothing."""


def began(inner, split=1):
    return inner / (inner + split * TILE_INNER)


@pytest.mark.parametrize(
    "product, sms, share",
    [
        ((1, 256, 128, LONG), 1, 1.0),
        ((1, 128, 128, LONG), 1, 0.9),  # a smaller tile is a slower one
        ((1, 257, 128, LONG), 1, 0.9 * 257 / 320),  # a row too much: five tiles of 64 rows waste least
        ((1, 128, 32, LONG), 1, 0.8),  # a narrow tile
        ((1, 2560, 1280, LONG), 100, 1.0),  # a hundred tiles, one wave
        ((16, 256, 128, LONG), 16, 1.0),
        ((1, 256, 128, 64), 1, began(64)),
        ((1, 128, 64, 64), 100, 0.9 * began(64) * 2 / 100),  # nothing to split
        (
            (1, 256, 128, 2048),
            100,
            0.9 * 0.64 * began(2048, 8),
        ),  # eight small tiles, split in eight along the inner side
        ((1, 64, 64, 1 << 20), 100, 0.9 * 0.64 * began(1 << 20, 64)),  # gradient of a small weight over many images
    ],
)
def test_tiles_and_waves(product, sms, share):
    assert product_share(product, sms) == pytest.approx(share, rel=1e-3)


def test_shares_are_shares():
    assert len(TILES) == len(TILE_SHARES) and max(TILE_SHARES) == 1 and min(TILE_SHARES) > 0


def test_a_tile_of_hoppers_tensor_cores_costs_a_time_and_of_others_steps():
    rate = 788e12
    steps = around_tile(rate, 132, (9, 0), True)
    assert steps * 2 * 256 * 128 * 132 / rate == pytest.approx(HOPPER_TILE_SECONDS)
    assert around_tile(rate, 132, (9, 0), False) == around_tile(rate, 108, (8, 0), True) == TILE_INNER
    short, long = (product_share((1, 8448, 16384, inner), 132, steps) for inner in (512, 8192))
    assert short < 0.75 * long
