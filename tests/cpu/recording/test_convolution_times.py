"""Convolutions by the kernel that takes them: dense, packed groups, groups without one, depthwise, in both layouts."""

import pytest

from snugfit.recording import convolution_times as times
from snugfit.recording.convolution_times import Rates, convolution_seconds
from snugfit.recording.operator_run import Convolution
from snugfit.recording.product_times import product_share

CARD = Rates(computed=70e12, plain=25e12, moved=800e9, processors=82, on_tensor_cores=True)
IMAGES = 2 * 64 * 256 * 784 * 2
"""Bytes of input and output in 16 bits."""


def shape(inputs=256, outputs=256, groups=1, gradients=0, last=True):
    return Convolution(64, inputs, outputs, groups, 9, 28 * 28, 28 * 28, 1, gradients, last)


def seconds(card=CARD, item=2, **what):
    return sum(convolution_seconds(shape(**what), item, card))


def flops(one):
    return 2 * one.samples * one.positions * one.outputs * (one.inputs // one.groups) * one.taps


def test_a_dense_one_is_the_product_of_unfolded_images():
    product = (1, 64 * 784, 256, 256 * 9)
    assert seconds() == pytest.approx(flops(shape()) / (70e12 * product_share(product, 82)))
    assert len(convolution_seconds(shape(gradients=3), 2, CARD)) == 2
    assert seconds(gradients=3) == pytest.approx(seconds(gradients=1) + seconds(gradients=2))


def test_channels_first_are_turned_over_for_tensor_cores_only():
    assert seconds(last=False) - seconds() == pytest.approx(2 * IMAGES / 800e9)
    assert seconds(last=False, gradients=3) - seconds(gradients=3) == pytest.approx(4 * IMAGES / 800e9)
    plain = CARD._replace(on_tensor_cores=False, computed=25e12)
    assert seconds(plain, 4, last=False) == seconds(plain, 4)


def test_images_of_a_1_x_1_convolution_are_not_turned_over_but_for_the_gradient_of_weights():
    first, last = (shape(last=last)._replace(taps=1) for last in (False, True))
    for gradient in (0, 1):
        both = [sum(convolution_seconds(one._replace(gradients=gradient), 2, CARD)) for one in (first, last)]
        assert both[0] == pytest.approx(both[1] / times.AS_IT_LIES_SHARE)
    weights = [sum(convolution_seconds(one._replace(gradients=2), 2, CARD)) for one in (first, last)]
    assert weights[0] - weights[1] == pytest.approx(2 * IMAGES / 800e9)


def test_channels_that_are_no_multiple_of_8_are_padded_and_copied():
    wide, odd = seconds(inputs=256), seconds(inputs=252)
    images = (64 * 252 * 784 + 64 * 256 * 784) * 2
    assert odd - wide == pytest.approx(2 * images / 800e9)  # computed as 256, and turned over as with channels first


@pytest.mark.parametrize("groups", [64, 16, 2])
def test_groups_without_a_kernel_for_tensor_cores_are_slow_with_channels_last(groups):
    what = {"inputs": 512, "outputs": 512, "groups": groups}
    fast, slow = seconds(**what, last=False), seconds(**what)
    if groups == 64:  # 8 channels each: packed, as in ResNeXt
        assert slow < fast
    else:
        assert slow == pytest.approx(flops(shape(**what)) / (25e12 * times.DIRECT_SHARE))
        assert slow > 2 * fast


def test_groups_that_widen_have_no_such_kernel():
    assert seconds(inputs=256, outputs=512, groups=32) > 2 * seconds(inputs=512, outputs=512, groups=32)


def test_narrow_groups_are_packed_into_one_tile():
    narrow, packed = seconds(inputs=128, outputs=128, groups=32), seconds(inputs=128, outputs=128, groups=4)
    direct = flops(shape(inputs=128, outputs=128, groups=4)) / (25e12 * times.DIRECT_SHARE)
    assert packed == pytest.approx(direct)  # only four groups: no kernel
    assert narrow < packed


def test_a_depthwise_one_is_bound_by_its_bytes_or_by_the_ordinary_cores():
    small = seconds(groups=256, inputs=256)
    moved = (IMAGES + 256 * 9 * 2) / 800e9
    computed = flops(shape(groups=256)) / (25e12 * times.DIRECT_SHARE)
    assert small == pytest.approx(max(moved, computed))
    assert seconds(groups=256, last=False) == small
