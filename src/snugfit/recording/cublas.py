"""What torch gives cuBLAS and cuBLASLt to work in, which depends on torch's version and on the card.

Until torch 2.14 each thread keeps a workspace for each stream, from its first product on. cuBLASLt, which multiplies where
a bias is added, has one of its own in 2.11, since one half of torch's code took it for shared and the other did not (seen on
an H100); from 2.12 on it works in cuBLAS's. From 2.15 on each product takes what it needs and gives it back.

Source: `ATen/cuda/CublasHandlePool.cpp` of torch, parseChosenWorkspaceSize and getCUDABlasLtWorkspace; pull requests 175344,
175879 and 194311. The sizes are also in the machine code of 2.11.0, 2.12.1, 2.14.1 and 2.15.0. Imports no torch.
"""

from __future__ import annotations

from snugfit.machine import torch_release

CUBLAS, CUBLASLT = "cublas workspace", "cublaslt workspace"
"""What made the storage of such a workspace that stays."""
LT_BYTES = 2**20
"""What cuBLASLt has where it does not work in cuBLAS's."""
_LT_SHARES_SINCE, _GIVEN_BACK_SINCE = (2, 12), (2, 15)


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Returns how much cuBLAS has on a card: 32 MiB on Hopper, since torch 2.12 on Blackwell too, elsewhere 8.125 MiB."""
    large = capability[0] >= 9 if torch_release() >= _LT_SHARES_SINCE else capability == (9, 0)
    return 32 * 2**20 if large else 2 * 4096 * 1024 + 8 * 16 * 1024


def stays() -> bool:
    """Returns whether a workspace is kept from the first product on, and not given back after each."""
    return torch_release() < _GIVEN_BACK_SINCE


def lt_has_its_own() -> bool:
    """Returns whether cuBLASLt keeps a workspace beside cuBLAS's."""
    return torch_release() < _LT_SHARES_SINCE
