"""What share of the card's rate a matrix product reaches: whole tiles, whole waves, and the beginning and end of a tile.

A product is worked off in tiles, one to a streaming multiprocessor (SM), wave after wave; a last wave that is partly empty
takes as long as a full one. cuBLAS has tiles of several sizes: large ones reuse more of what they load, small ones waste
less at the edges. Products with few tiles are split along the inner side. A tile also has to be begun (nothing to multiply
until its first operands have arrived) and ended (its results are written): with a short inner side that takes longer than
the multiplying.
"""

from __future__ import annotations

import functools

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128))
"""Rows and columns of the tiles of a matrix product (NVIDIA, "Matrix Multiplication Background User's Guide"), and narrow
ones, known from names of kernels such as `sgemm_128x32`."""
TILE_SHARES = (1.0, 1.0, *[0.9] * 6, 0.8, 0.8)
"""What tiles of each size reach of that, fitted to products on A100 and A40 (benchmarks/results/clock_fit.json); the
narrow ones, which were not among them, load more for what they multiply."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
SPLIT_INNER = 256
"""Products with fewer tiles than SMs are split along the inner side, into pieces of at least so many."""
TILE_INNER = 40
"""What beginning and ending a tile costs, in units of the inner side, fitted to batched products
(benchmarks/results/clock_fit.json)."""


LARGE_INNER = 8192
"""Inner side of the large products whose share of the peak is known with this cost in it."""
HOPPER = 9
HOPPER_TILE_SECONDS = 2.3e-6
"""The same on Hopper's tensor cores, as a time: their steps are so short that what stands around them does not shrink with
them. cuBLAS on H200 in float16 takes 31.0 microseconds for 8 products of 1024 x 1024 x 1024 and 12.0 for 16 of 512 x 512 x
512, of which an empty one is 3.2 (github.com/tile-ai/TileOPs/pull/2148): 2.2 and 2.5 for each tile."""


@functools.lru_cache(maxsize=2**14)
def product_share(product: tuple[int, int, int, int], sm_count: int, around: float = TILE_INNER) -> float:
    """Returns a matrix product's share (more than 0, at most 1) of what large products reach.

    `around`: what beginning and ending a tile costs, in units of the inner side.
    """
    batch, rows, columns, inner = product
    best = 0.0
    for (high, wide), share in zip(TILES, TILE_SHARES, strict=True):
        tiles = batch * -(-rows // high) * -(-columns // wide)
        for split in SPLITS:
            if split > 1 and (tiles * split > sm_count or inner // split < SPLIT_INNER):
                break
            waves = -(-tiles * split // sm_count)
            long = min(1.0, inner * (1 + (around - TILE_INNER) / LARGE_INNER) / (inner + split * around))
            best = max(best, share * long * batch * rows * columns * split / (waves * sm_count * high * wide))
    return best


def around_tile(rate: float, sm_count: int, capability: tuple[int, int] | None, on_tensor_cores: bool) -> float:
    """Returns what starting and ending a tile costs on a card, in units of the inner side.

    `rate`: floating-point operations a second of large products in the type.
    """
    if not on_tensor_cores or capability is None or capability[0] != HOPPER:
        return TILE_INNER
    high, wide = TILES[0]
    return HOPPER_TILE_SECONDS * rate / (sm_count * 2 * high * wide)
