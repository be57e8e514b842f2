"""How long convolutions keep the card busy, by the kernels that cuDNN and PyTorch have for them.

- **Dense ones** are products of unfolded images (implicit GEMM) and as fast as such products: 8 x 8 windows over 256
  channels in float16 reach 51.9 of a linear layer's 53.4 TFLOP/s on RTX 2080 Ti, 76.4 of 77.4 on TITAN V
  (gist.github.com/ypwhs/a156353cb19e780e323be054821af015).
- **Channels.** Tensor cores want them last, and a multiple of 8: cuDNN pads what is not (release notes 7.6.3, "auto-padding"),
  and turns over what comes as (N, C, H, W), each operand and each result for itself (`nchwToNhwcKernel`).
- **Groups.** cuDNN has kernels for tensor cores that work several groups at once (NHWC, up to 32 channels a group), and for
  channels first turns each group over. Wider groups with channels last are left to `grouped_direct_kernel`, which multiplies
  on the ordinary cores, straight from memory (github.com/pytorch/pytorch/issues/34977: thirty times as slow).
- **Depthwise ones** multiply on the ordinary cores too (`conv2d_c1_k1_kernel`, PyTorch's `DepthwiseConv2d.cu`).
"""

from __future__ import annotations

from typing import NamedTuple

from snugfit.recording.product_times import product_share
from snugfit.recording.trace import Convolution

KERNEL_SECONDS = 2.5e-6
TURN_SHARE = 0.8
CHANNELS_TOGETHER = 8
GROUP_CHANNELS = (4, 8, 16, 32)
DIRECT_SHARE = 1 / 8
DEPTHWISE_SHARE = 1 / 8


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


def convolution_seconds(shape: Convolution, item: int, rates: Rates) -> float:
    """Returns the seconds of a convolution, or of the gradients that its backward pass makes."""
    passes = [bit for bit in (1, 2) if shape.gradients & bit] or [0]
    return sum(KERNEL_SECONDS + _pass_seconds(shape, which, item, rates) for which in passes)


def _pass_seconds(shape: Convolution, which: int, item: int, rates: Rates) -> float:
    inputs, outputs = shape.inputs // shape.groups, shape.outputs // shape.groups
    source = shape.samples * shape.inputs * shape.pixels * item
    images = shape.samples * shape.outputs * shape.positions * item
    moving = (source + images + shape.outputs * inputs * shape.taps * item) / rates.moved
    flops = 2 * shape.samples * shape.positions * shape.outputs * inputs * shape.taps
    if shape.groups > 1 and inputs == 1:
        return max(moving, flops / (rates.plain * DEPTHWISE_SHARE))
    together = inputs == outputs and inputs in GROUP_CHANNELS and shape.groups >= 32
    if rates.on_tensor_cores and shape.groups > 1 and shape.channels_last and not together:
        return max(moving, flops / (rates.plain * DIRECT_SHARE))
    turned = 0.0
    if rates.on_tensor_cores:
        padded = -(-inputs // CHANNELS_TOGETHER) * CHANNELS_TOGETHER, -(-outputs // CHANNELS_TOGETHER) * CHANNELS_TOGETHER
        if shape.channels_last:
            turned = source * (padded[0] != inputs) + images * (padded[1] != outputs)
        else:
            turned = source + images
        inputs, outputs = padded
        flops = 2 * shape.samples * shape.positions * shape.groups * outputs * inputs * shape.taps
    product = (
        (shape.groups, shape.samples * shape.positions, outputs, inputs * shape.taps),
        (shape.groups, shape.samples * shape.pixels, inputs, max(1, outputs * shape.taps // shape.stride)),
        (shape.groups, outputs, inputs * shape.taps, shape.samples * shape.positions),
    )[which]
    share = 1.0 if rates.processors is None else product_share(product, rates.processors)
    return max(moving, flops / (rates.computed * share)) + 2 * turned / (rates.moved * TURN_SHARE)
