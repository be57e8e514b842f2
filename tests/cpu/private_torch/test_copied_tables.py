"""Tables that were copied from torch by hand say what the headers of this torch say."""

import re
from pathlib import Path

import pytest
import torch

from snugfit.fake_device import autocast
from snugfit.recording import allocator_sizes

HEADERS = Path(torch.__path__[0]) / "include"


def macro(text, name):
    """The operators that a macro of torch's headers lists."""
    body = re.search(rf"#define {name}\(_\)((?:.*\\\n)*.*)", text)
    assert body, f"{name} is not in the header any more"
    found = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body[1])
    return {operator + (f".{overload}" if overload else "") for operator, overload in found}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", "lower_precision"),
        ("AT_FORALL_FP32", "float32"),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", "float32_dtype"),
        ("AT_FORALL_PROMOTE", "promote"),
    ],
)
def test_autocast_casts_what_the_header_lists(name, policy):
    table = autocast.operators()[policy]
    listed = macro((HEADERS / "ATen" / "autocast_mode.h").read_text(encoding="utf-8"), name)
    # Overloads by names of dimensions are gone from torch 2.13 on, and no training code has named tensors.
    known = {one for one in listed if hasattr(torch.ops.aten, one.partition(".")[0]) and "imname" not in one}
    # An operator that only an older or a newer torch lists is harmless in the table: it is looked up before it is used.
    assert known - set(table) == set()
    here = {one for one in table if hasattr(torch.ops.aten, one.partition(".")[0])}
    assert len(here - listed) <= 3, sorted(here - listed)


def test_the_allocator_has_the_sizes_of_the_header():
    text = (HEADERS / "c10" / "core" / "AllocatorConfig.h").read_text(encoding="utf-8")
    sizes = {name: int(value) for name, value in re.findall(r"constexpr size_t (k\w+) = (\d+);", text)}
    assert sizes["kMinBlockSize"] == allocator_sizes.MIN_BLOCK_BYTES
    assert sizes["kSmallSize"] == allocator_sizes.SMALL_BYTES
    assert sizes["kSmallBuffer"] == allocator_sizes.SMALL_SEGMENT_BYTES
    assert sizes["kMinLargeAlloc"] == allocator_sizes.MIN_LARGE_BYTES
    assert sizes["kRoundLarge"] == allocator_sizes.ROUND_LARGE_BYTES
