"""The step of early 2022 by hand: its softmax is softmax, and keeps one tensor more."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def then():
    pytest.importorskip("transformers")
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import guides_then
    finally:
        sys.path.remove(str(ROOT))
    return guides_then


def gradient_and_kept(then, kept):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 4, 4, generator=generator, requires_grad=True)
    saved = set()

    def pack(tensor):
        saved.add(tensor.untyped_storage().data_ptr())
        return tensor

    with then.earlier_softmax(kept), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        shares = torch.nn.functional.softmax(scores * 2.0, dim=-1)
    shares.square().sum().backward()
    return shares.detach(), scores.grad, len(saved)


def test_the_same_values_and_one_tensor_more(then):
    shares, gradient, kept = gradient_and_kept(then, True)
    now, now_gradient, now_kept = gradient_and_kept(then, False)
    assert torch.equal(shares, now)
    torch.testing.assert_close(gradient, now_gradient)
    assert kept == now_kept + 1
    assert torch.nn.functional.softmax.__module__ == "torch.nn.functional"


def test_every_published_row_has_its_figure(then):
    import json

    rows = json.loads((ROOT / "benchmarks" / "results" / "guides.json").read_text(encoding="utf-8"))["rows"]
    published = [row for row in rows if "published_bytes" in row]
    assert len(published) == 9
    for row in published:
        expected = 100 * (row["then"]["total_bytes"] / row["published_bytes"] - 1)
        assert row["then"]["difference_percent"] == pytest.approx(expected, abs=0.06)
