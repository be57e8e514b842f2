"""A sum of bits is that of the numbers in memory, wherever they begin, and makes nothing of a tensor's size."""

import pytest
import torch

from snugfit.techniques.written_bits import sum_of_bits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("count", [0, 1, 3, 8, 13, 64])
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 5])
def test_one_changed_number_shows(dtype, count, offset):
    whole = torch.randn(count + offset + 3).to(dtype)
    part = whole[offset : offset + count]
    before = sum_of_bits(part)
    assert before.shape == () and before.dtype == torch.int64
    whole[offset + count :] = 7  # outside of it
    whole[:offset] = 7
    assert sum_of_bits(part) == before
    for place in range(count):
        kept = part[place].clone()
        part.data[place] = 3
        assert sum_of_bits(part) != before
        part.data[place] = kept
    assert sum_of_bits(part) == before


def test_other_orders_of_dimensions():
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert sum_of_bits(images) == sum_of_bits(images.permute(0, 2, 3, 1))
    row = torch.randn(1, 5)
    expanded = row.expand(4, 5)
    before = sum_of_bits(expanded)
    row[0, 2] += 1
    assert sum_of_bits(expanded) != before
