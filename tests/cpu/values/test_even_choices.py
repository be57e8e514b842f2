"""What routers choose: each expert gets as many tokens as the others, however code finds out."""

import pytest
import torch
import torch.nn.functional as F
from own_scripts import TRAINS, estimated, measured_bytes, written

from snugfit import CannotSimulateError


def scores(output):
    return output.repeat(1024, 3)[:, :8]


@pytest.mark.parametrize(
    ("mask_of", "share"),
    [
        (lambda scores: scores.topk(2).indices == 3, 1 / 8),
        (lambda scores: scores.topk(2, dim=-1)[1].view(-1).int() == 3, 1 / 8),
        (lambda scores: scores.t().topk(2, dim=0).indices == 3, 1 / 8),
        (lambda scores: (scores.topk(2).indices == 3).any(-1), 2 / 8),
        (lambda scores: scores.max(-1).indices == 3, 1 / 8),
        (lambda scores: scores.argmax(-1) == 3, 1 / 8),
        (lambda scores: F.one_hot(scores.topk(2).indices, 8).permute(2, 1, 0)[3], 1 / 8),
        (lambda scores: scores.topk(2).indices.unsqueeze(-1) == torch.arange(8, device=scores.device), 1 / 8),
    ],
)
def test_experts_get_as_many_tokens_each(estimate, mask_of, share):
    def loss_of(share):
        def loss(output, batch):
            mask = mask_of(scores(output))
            found = torch.where(mask)[0]
            assert len(found) == share * mask.numel(), (len(found), mask.shape)
            return F.cross_entropy(output, batch[1])

        return loss

    assert any("chooses (an expert" in text for text in estimate(loss_of(share)).answered)
    said = estimate(loss_of(0.5), assume={"nonzero": 0.5}).answered
    assert not any("chooses (an expert" in text for text in said)


@pytest.mark.parametrize(
    "counts_of",
    [
        lambda chosen: torch.bincount(chosen, minlength=8),
        lambda chosen: torch.histc(chosen.float(), bins=8, min=0, max=7).long(),
        lambda chosen: F.one_hot(chosen, 8).sum(0),
        lambda chosen: chosen.new_zeros(8).scatter_add_(0, chosen, torch.ones_like(chosen)),
        lambda chosen: torch.unique(chosen, return_counts=True)[1],
        lambda chosen: F.one_hot(chosen, 8).cumsum(0)[-1].cpu(),
    ],
)
def test_counts_of_tokens_are_read(estimate, counts_of):
    def loss(output, batch):
        counts = counts_of(scores(output)[:1003].topk(2).indices.flatten()).tolist()
        assert sum(counts) == 2006 and set(counts) == {250, 251}, counts
        return F.cross_entropy(output, batch[1])

    assert any("chooses (an expert" in text for text in estimate(loss).answered)


def doubled(chosen):
    for _ in range(60):
        chosen = chosen + chosen
    return chosen


@pytest.mark.parametrize(
    "asks",
    [
        lambda output, labels: int(output.mean(0).topk(1).indices),
        lambda output, labels: int(doubled(output.mean(0).topk(1).indices)),
        lambda output, labels: int((output.argmax(1) == labels).sum()),
    ],
    ids=["which", "by many ways", "whether it is right"],
)
def test_which_was_chosen_is_not_known_nor_whether_that_was_right(estimate, asks):
    def loss(output, batch):
        return F.cross_entropy(output[: 1 + asks(output, batch[1])], batch[1][: 1 + asks(output, batch[1])])

    with pytest.raises(CannotSimulateError, match="--assume integer="):
        estimate(loss)


ROUTES = """
router, experts = nn.Linear(32, 4).to(device), nn.ModuleList(nn.Linear(32, width) for _ in range(4)).to(device)
optimizer = torch.optim.SGD([*router.parameters(), *experts.parameters()])
for step in range(4):
    x = torch.randn(512, 32, device=device)
    weights, chosen = router(x).softmax(-1).topk(2)
    order = chosen.flatten().argsort()
    counts = torch.bincount(chosen.flatten(), minlength=4).tolist()
    parts = [expert(rows) for expert, rows in zip(experts, x[order // 2].split(counts))]
    (torch.cat(parts) * weights.flatten()[order, None]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_that_sorts_tokens_by_expert_is_estimated(tmp_path, capsys):
    path = written(tmp_path, TRAINS + ROUTES)
    code, found, err = estimated(capsys, path, "--width", "4096", device="cpu")
    assert code == 0, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, "--width", "4096"), rel=0.001)
    code, _, err = estimated(capsys, path)
    assert code == 0, err
