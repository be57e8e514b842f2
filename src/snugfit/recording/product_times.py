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


@functools.lru_cache(maxsize=2**14)
def product_share(product: tuple[int, int, int, int], sm_count: int) -> float:
    """Returns the share of what large products reach that a matrix product reaches.

    Args:
        product: Batch, rows, columns and inner size.
        sm_count: Streaming multiprocessors of the card.

    Returns:
        More than 0, at most 1.
    """
    batch, rows, columns, inner = product
    best = 0.0
    for (high, wide), share in zip(TILES, TILE_SHARES, strict=True):
        tiles = batch * -(-rows // high) * -(-columns // wide)
        for split in SPLITS:
            if split > 1 and (tiles * split > sm_count or inner // split < SPLIT_INNER):
                break
            waves = -(-tiles * split // sm_count)
            long = inner / (inner + split * TILE_INNER)
            best = max(best, share * long * batch * rows * columns * split / (waves * sm_count * high * wide))
    return best
