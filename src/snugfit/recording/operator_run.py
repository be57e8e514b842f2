"""One operator as the clock sees it."""

from __future__ import annotations

from typing import NamedTuple

from snugfit.recording.multi_tensor import TensorLists

SPARSE_PRODUCT = "sparse_product"
"""Name of the operator that multiplies a sparse matrix with a dense one."""


class Convolution(NamedTuple):
    """The shape of a convolution for the clock; a transposed one is an ordinary one the other way round."""

    samples: int
    """Images of the batch."""
    inputs: int
    """Channels of the input."""
    outputs: int
    """Channels of the output."""
    groups: int
    """Groups that channels are divided into."""
    taps: int
    """Elements of the kernel's window, such as 9 for 3 x 3."""
    pixels: int
    """Positions of an input image."""
    positions: int
    """Positions of an output image."""
    stride: int
    """Product of the strides."""
    gradients: int
    """0: the forward pass. 1: the gradient of the input. 2: that of the weights. 3: both."""
    channels_last: bool
    """Whether the channels of a pixel lie side by side."""


class Collective(NamedTuple):
    """What ranks send each other in one operator, for the clock."""

    kind: str
    """`all_gather`, `reduce_scatter`, `all_reduce`, `broadcast`, `reduce`, `all_to_all`, `gather`, `scatter` or `send`."""
    nbytes: int
    """Bytes of the whole tensor: what is gathered, what is there before it is scattered, a rank's own otherwise."""
    ranks: int
    """Ranks of the group."""
    machines: int
    """Machines that they are in."""


class OperatorRun(NamedTuple):
    """One operator as the clock sees it."""

    operator: str
    """Its name, such as `aten.mm.default`."""
    module: str
    """Dotted path of the module in which it ran."""
    phase: str
    """The phase in which it ran."""
    flops: int
    """Floating-point operations; 0 for data movement."""
    read_bytes: int
    """Bytes read from memory (or sent, for `link`)."""
    written_bytes: int
    """Bytes written to memory."""
    dtype: str
    """What it computes in: `float32`, `tf32`, `float16`, `bfloat16`, `float64`, `int64` and so on."""
    kernels: int
    """Kernels launched; 0 for one that only makes a view."""
    device: str
    """`device`, `host` (computed by the CPU), `link` (a copy between the two) or `ranks` (a collective)."""
    stream: int = 0
    """The stream it runs on."""
    product: tuple[int, int, int, int] | tuple[()] = ()
    """For a matrix product: batch, rows, columns and inner size; empty for everything else."""
    after: tuple[int, ...] = ()
    """Indices of earlier runs that must have ended first (waits for events of other streams)."""
    blocking: bool = False
    """Whether the host waits for its end (`.item()`, a size that values decide, a copy from or to pageable memory)."""
    at: int = 0
    """How many events of the trace came before it."""
    convolution: Convolution | tuple[()] = ()
    """For a convolution: its shape; empty for everything else."""
    again_bytes: int = 0
    """Bytes that a card's kernels move more than once, or for nothing."""
    blocks: int = 0
    """Blocks of threads, where they may be fewer than the card's SMs; 0: enough."""
    rows: int = 0
    """Rows that a layer norm works off one by one; each row of a backward pass counts three times."""
    uneven: tuple[int, ...] = ()
    """Lengths of those rows of a matrix product's factors that do not begin at multiples of 16 bytes, in elements."""
    seconds: float | None = None
    """What it takes on the processor that was asked, called from Python; None where none was."""
    collective: Collective | tuple[()] = ()
    """For a collective: what is sent; empty for everything else."""
    line: str = ""
    """For one that the host waits for: `file:line` of a person's code that asked for it; empty where snugfit's own did."""
    lists: TensorLists | tuple[()] = ()
    """For an operator on lists of tensors: how many there are; empty for everything else."""
    hooks: int = 0
    """Calls of Python that autograd made since the operator before, to pack or unpack a tensor that it saves."""

    @property
    def aligned(self) -> bool:
        """Whether the rows of a matrix product's factors start at multiples of 16 bytes."""
        return not self.uneven
