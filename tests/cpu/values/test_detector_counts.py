"""Detectors of torchvision: the numbers of boxes that a simulation states, and that a real run takes as many."""

import pytest
import torch

from snugfit.attributes import replaced
from snugfit.values.detector_counts import stated_counts

pytest.importorskip("torchvision")


def test_a_sample_has_the_numbers_that_are_stated():
    from torchvision.models.detection import roi_heads
    from torchvision.models.detection._utils import BalancedPositiveNegativeSampler
    from torchvision.ops import boxes, poolers

    sampler = BalancedPositiveNegativeSampler(16, 0.25)
    nowhere = torch.zeros(100)
    before = (roi_heads.torch, poolers.torch, boxes.batched_nms)
    with replaced(stated_counts(lambda _: None)):
        positive, negative = sampler([nowhere, nowhere[:10]])
        assert [int(mask.sum()) for mask in positive] == [4, 4]
        assert [int(mask.sum()) for mask in negative] == [12, 6]
        assert len(boxes.batched_nms(torch.zeros(7, 4), torch.zeros(7), torch.zeros(7), 0.5)) == 7
        assert roi_heads.torch.where(torch.zeros(10, dtype=torch.bool))[0].shape == (4,)  # of the sample drawn last
        assert torch.equal(roi_heads.torch.where(nowhere > 0, 1, 2), torch.full((100,), 2))
    assert (roi_heads.torch, poolers.torch, boxes.batched_nms) == before
    assert int(sampler([nowhere])[0][0].sum()) == 0


def test_all_proposals_are_read_from_the_finest_level():
    from torchvision.ops import MultiScaleRoIAlign

    pool = MultiScaleRoIAlign(["a", "b"], output_size=2, sampling_ratio=1)
    features = {"a": torch.ones(1, 1, 32, 32), "b": torch.full((1, 1, 8, 8), 2.0)}
    proposals = [torch.tensor([[0.0, 0.0, 200.0, 200.0], [0.0, 0.0, 8.0, 8.0]])]
    with replaced(stated_counts(lambda _: None)):
        assert pool(features, proposals, [(256, 256)]).unique().tolist() == [1.0]


@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn"])
def test_a_detector_takes_what_was_predicted(name, pool):
    from benchmarks.zoo_row import SUBJECTS, compared

    row = compared(SUBJECTS[f"torchvision:{name}"](), pool)
    assert abs(row["ratio"] - 1) <= 0.01, row
    assert any("32 sampled proposals, 8 of them on objects" in text for text in row["answered"])
