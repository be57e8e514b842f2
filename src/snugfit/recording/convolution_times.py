"""How long convolutions keep the card busy, by the kernels that cuDNN and PyTorch have for them.

- **Dense ones** are products of unfolded images (implicit GEMM) and as fast as such products: 8 x 8 windows over 256
  channels in float16 reach 51.9 of a linear layer's 53.4 TFLOP/s on RTX 2080 Ti, 76.4 of 77.4 on TITAN V
  (gist.github.com/ypwhs/a156353cb19e780e323be054821af015).
- **Channels.** Tensor cores want them last, and a multiple of 8. What comes as (N, C, H, W) cuDNN turns over, each operand
  and each result for itself (`nchwToNhwcKernel`), by tiles, which is as fast as a copy. What is no multiple of 8 it pads,
  and is then as fast as with channels first (release notes of cuDNN 7.6.3, "auto-padding"). 1 x 1 convolutions of stride 1
  are products of the images as they lie, and are not turned over, but for the gradient of their weights, which sums over
  images.
- **Groups.** For tensor cores cuDNN packs several narrow groups into one tile. With channels last it has such kernels for at
  least 32 groups of 4, 8, 16 or 32 channels that go in and come out alike (those of ResNeXt); others are left to
  `grouped_direct_kernel`, on the ordinary cores, straight from memory (github.com/pytorch/pytorch/issues/34977: tens of
  times as slow as channels first).
- **Depthwise ones** multiply on the ordinary cores too (cuDNN's `conv2d_c1_k1_kernel`, PyTorch's `DepthwiseConv2d.cu`).

What is known of channels first is from two public profiles of ten training steps of ResNet-50 on A100 (float16, 128 images,
cuDNN 8, PyTorch's profiler: kernels' names, calls and times), one for each layout: 869 and 558 ms, of these 343 and 208 in
convolutions, of which 107 and 0 in turning over (158 calls a step one way and 68 the other, where all would be 318 and 159),
and 334 and 161 in batch norm. A search for names of kernels finds them and does not tell their repository.

Limits: algorithms that save operations (Winograd, FFT), and what else `cudnn.benchmark` may find.
"""

from __future__ import annotations

from typing import NamedTuple

from snugfit.recording.operator_run import Convolution
from snugfit.recording.product_times import TILE_INNER, product_share

CHANNELS_TOGETHER = 8
"""Channels that one load of 16 bytes brings (NVIDIA, "Convolutional Layers User's Guide")."""
PACKED_CHANNELS = 32
"""Channels of a tile into which narrow groups are packed: the narrowest tile of tensor cores."""
GROUP_CHANNELS, LEAST_GROUPS = (4, 8, 16, 32), 32
"""Groups of so many channels, and at least so many of them, have kernels for tensor cores with channels last."""
DIRECT_SHARE = 1 / 8
"""Share of the ordinary cores' rate at which a kernel multiplies that loads both factors each time: an SM of GeForce cards
loads 32 words a clock and multiplies 128 (CUDA C++ Programming Guide, "Compute Capabilities"), two loads for a product."""
AS_IT_LIES_SHARE = 0.7
"""What products of the images of a 1 x 1 convolution, as they lie with channels first, reach of those with channels last:
23.6 ms a step in kernels of all of ResNet-50's convolutions with channels first, 20.8 with channels last (the profiles
above), and what differs are these."""


class Rates(NamedTuple):
    """What a card does in a second."""

    computed: float
    """Floating-point operations of large products, in the type of the operator."""
    plain: float
    """The same on the ordinary cores."""
    moved: float
    """Bytes between chip and memory."""
    processors: int | None
    """Streaming multiprocessors."""
    on_tensor_cores: bool
    """Whether they compute in the operator's type."""
    around: float = TILE_INNER
    """What beginning and ending a tile costs, in units of the inner side."""


def convolution_seconds(shape: Convolution, item: int, rates: Rates) -> list[float]:
    """Returns the seconds of a convolution, or of each gradient in its backward; `item`: bytes of an element."""
    passes = [bit for bit in (1, 2) if shape.gradients & bit] or [0]
    return [_pass_seconds(shape, which, item, rates) for which in passes]


def _pass_seconds(shape: Convolution, which: int, item: int, rates: Rates) -> float:
    """Seconds of the forward pass (0), the gradient of the input (1) or that of the weights (2)."""
    inputs, outputs = shape.inputs // shape.groups, shape.outputs // shape.groups
    source = shape.samples * shape.inputs * shape.pixels * item
    images = shape.samples * shape.outputs * shape.positions * item
    moving = (source + images + shape.outputs * inputs * shape.taps * item) / rates.moved
    flops = 2 * shape.samples * shape.positions * shape.outputs * inputs * shape.taps
    if shape.groups > 1 and inputs == 1:
        return max(moving, flops / (rates.plain * DIRECT_SHARE))
    alone = shape.groups < LEAST_GROUPS or inputs != outputs or inputs not in GROUP_CHANNELS
    if rates.on_tensor_cores and shape.groups > 1 and shape.channels_last and alone:
        return max(moving, flops / (rates.plain * DIRECT_SHARE))
    turned, groups = 0.0, shape.groups
    as_it_lies = rates.on_tensor_cores and shape.taps == shape.stride == 1 and which != 2 and not shape.channels_last
    if rates.on_tensor_cores:
        if not shape.channels_last or shape.inputs % CHANNELS_TOGETHER or shape.outputs % CHANNELS_TOGETHER:
            turned = 0.0 if as_it_lies else source + images
        packed = max(1, min(groups, PACKED_CHANNELS // max(inputs, outputs))) if groups > 1 else 1
        groups = -(-groups // packed)
        inputs, outputs = (-(-packed * side // CHANNELS_TOGETHER) * CHANNELS_TOGETHER for side in (inputs, outputs))
        flops = 2 * shape.samples * shape.positions * groups * outputs * inputs * shape.taps
    product = (
        (groups, shape.samples * shape.positions, outputs, inputs * shape.taps),
        (groups, shape.samples * shape.pixels, inputs, max(1, outputs * shape.taps // shape.stride)),
        (groups, outputs, inputs * shape.taps, shape.samples * shape.positions),
    )[which]
    share = 1.0 if rates.processors is None else product_share(product, rates.processors, rates.around)
    seconds = max(moving, flops / (rates.computed * share))
    return seconds / AS_IT_LIES_SHARE if as_it_lies else seconds + 2 * turned / rates.moved
