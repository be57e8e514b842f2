"""Code that reads values: what is answered, by which rule, and how the result names it."""

import numpy
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import snugfit
from snugfit import CannotSimulateError, InputError
from snugfit.values import read_values
from snugfit.values.assumptions import Assumptions, assumptions_from


def entropy(output, batch):
    return F.cross_entropy(output, batch[1])


def logged(output, batch):
    loss = entropy(output, batch)
    print(f"{loss.item():.3f} {float(loss)} {loss:.2f}", end="")
    return loss


def to_numpy(output, batch):
    assert numpy.isfinite(output.detach().cpu().numpy()).all() and output.detach().cpu().numpy().shape == (16, 3)
    return entropy(output, batch)


def to_list(output, batch):
    assert len(output.detach().tolist()) == 16
    return entropy(output, batch)


def by_lengths(output, batch):
    """Numbers of equal lengths in a row, as code has it that runs inputs of one size together."""
    counts = torch.unique_consecutive(torch.tensor([4, 4, 2, 2, 2]), return_counts=True)[1]
    assert torch.cumsum(counts, 0).tolist() == [2, 5] and len(torch.tensor([0, 3, 0]).nonzero()) == 1
    return entropy(output, batch)


def test_sizes_that_small_numbers_of_the_host_decide_are_known(estimate):
    assert not any("unique" in text or "nonzero" in text for text in estimate(by_lengths).answered)


@pytest.mark.parametrize("loss", [logged, to_numpy, to_list])
def test_a_number_that_is_logged_is_answered_and_named(estimate, loss):
    found = estimate(loss)
    assert any("loss_finite: a number read at" in text and "test_read_values.py" in text for text in found.answered)
    with pytest.raises(CannotSimulateError, match="loss_finite"):
        estimate(loss, assume={"loss_finite": False})


@pytest.mark.parametrize(
    "question",
    [
        lambda x: not torch.isnan(x).any(),
        lambda x: torch.isfinite(x).all(),
        lambda x: x.isfinite().all().item(),
        lambda x: not (x.isnan() | x.isinf()).any(),
        lambda x: torch.isnan(x).sum().item() == 0,
        lambda x: (x == x).all(),
        lambda x: not (x != x).any(),
        lambda x: len(x[torch.isfinite(x)]) == x.numel(),
        lambda x: len(torch.isnan(x).nonzero()) == 0,
    ],
)
def test_finite_numbers_answer_questions_about_them(estimate, question):
    def loss(output, batch):
        if not question(output):
            raise AssertionError("taken for not finite")
        return entropy(output, batch)

    assert estimate(loss).peak_allocated_bytes > 0


def made_in_forward(length, device):
    return torch.triu(torch.full((length, length), float("-inf"), device=device), diagonal=1)


def written_by_data(tensor, values):
    tensor.data.copy_(values[: len(tensor)])  # autograd counts no write of `tensor`
    return tensor


@pytest.mark.parametrize(
    "question",
    [
        lambda x: (made_in_forward(5, x.device) == made_in_forward(5, x.device)).all().item(),
        lambda x: not (made_in_forward(5, x.device) == made_in_forward(5, x.device).T).all(),
        lambda x: torch.arange(7, device=x.device).max().item() == 6,
        lambda x: torch.zeros_like(x).sum().item() == 0.0,
        lambda x: torch.ones(3, device=x.device).mul_(4).tolist() == [4.0, 4.0, 4.0],
        lambda x: (torch.eye(3, device=x.device) > 0).nonzero().shape == (3, 2),
        lambda x: torch.tensor([3, 4]).to(x.device).sum().item() == 7,
        lambda x: written_by_data(torch.zeros(3, device=x.device), x[0]).fill_(2).sum().item() == 6,
        lambda x: (
            torch.arange(6, device=x.device).repeat_interleave(torch.full((6,), 2, device=x.device)).shape == (12,)
        ),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_follows_from_the_code_is_worked_out(estimate, question, inference):
    def loss(output, batch):
        with torch.inference_mode(inference):
            assert question(output)
        return entropy(output, batch)

    assert not any("assumed" in text for text in estimate(loss).answered)


@pytest.mark.parametrize(
    "question",
    [
        lambda x: (torch.rand(3, device=x.device) > x[0].mean()).any(),
        lambda x: torch.multinomial(torch.ones(3, device=x.device), 1).item() > 1,
        lambda x: (torch.zeros(3, device=x.device).copy_(x[0]) > 2).any(),
        lambda x: (torch.zeros(3, device=x.device)[:].add_(x[0]) > 2).any(),
        lambda x: (torch.empty(3, device=x.device) > 2).any(),
        lambda x: (written_by_data(torch.zeros(3, device=x.device), x[0]) > 2).any(),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_depends_on_data_is_not(estimate, question, inference):
    def loss(output, batch):
        with torch.inference_mode(inference):
            found = bool(question(output))
        return entropy(output, batch) if found else output.sum()

    with pytest.raises(CannotSimulateError, match=r"--assume (branch|integer)"):
        estimate(loss)


def half_of(tensor):
    """A mask of real numbers, as detectors write it for the queries that are no object."""
    tensor[:, len(tensor[0]) // 2 :] = 1
    return 1 - tensor.tile([1, 2]).squeeze(-1)


def test_a_part_that_is_written_to_is_worked_out(estimate):
    def loss(output, batch):
        assert half_of(torch.zeros(4, 6, device=output.device)).nonzero().shape == (24, 2)
        return entropy(output, batch)

    assert not any("assumed" in text or "nonzero" in text for text in estimate(loss).answered)


@pytest.mark.parametrize("inference", [False, True])
def test_a_view_of_what_was_written_to_is_not_known_any_more(estimate, inference):
    def loss(output, batch):
        with torch.inference_mode(inference):
            base = torch.zeros(4, device=output.device)
            view = base[1:]
            base.add_(1)
            found = bool((view > 0).any())
        return entropy(output, batch) if found else output.sum()

    with pytest.raises(CannotSimulateError, match="--assume branch"):
        estimate(loss)


CASES = [
    (lambda x, y: x.repeat(1, 1024)[y > 0].sum(), "nonzero=0.5"),
    (lambda x, y: x[torch.where(y > 0)[0]].sum(), "nonzero=0.5"),
    (lambda x, y: x.repeat(1, 1024).masked_select((y > 0).unsqueeze(1)).sum(), "nonzero=0.5"),
    (lambda x, y: x[(y > 0).nonzero()[:, 0]].sum(), "nonzero=0.5"),
    (lambda x, y: x.sum() / len(y.unique()), "unique=0.25"),
    (lambda x, y: x.sum() / len(torch.unique_consecutive(y)), "unique=0.25"),
    (lambda x, y: x[: y.max().item()].sum(), "integer=4"),
    (lambda x, y: x[: max(y.tolist())].sum(), "integer=4"),
    (lambda x, y: x.sum() if (x > 0).any() else x.mean(), "branch=true"),
    (lambda x, y: x.sum() if torch.equal(x, x + 1) else x.mean(), "branch=false"),
    (lambda x, y: x.sum() if torch.allclose(x, x + 1) else x.mean(), "branch=false"),
]


@pytest.mark.parametrize("loss, word", CASES)
def test_what_decides_on_sizes_needs_an_assumption_that_the_message_names(estimate, loss, word):
    name = word.partition("=")[0]
    with pytest.raises(CannotSimulateError, match=f"--assume {name}") as caught:
        estimate(lambda output, batch: loss(output, batch[1]))
    assert caught.value.exit_code == 5 and "test_read_values.py" in str(caught.value)
    found = estimate(lambda output, batch: loss(output, batch[1]), assume=[word])
    assert any(f"assumed {word}" in text for text in found.answered)


def test_a_larger_share_takes_more_memory(pool):
    def peak(share):
        loss = lambda output, batch: (output[batch[1] > 0].repeat(1, 50) ** 2).sum()  # noqa: E731
        batch = torch.randn(4096, 8), torch.arange(4096) % 3
        model = nn.Sequential(nn.Linear(8, 3))
        found = snugfit.estimate(model, batch, device="cpu", pool=pool, loss=loss, assume={"nonzero": share})
        return found.peak_allocated_bytes

    assert peak(0.0) < peak(0.25) < peak(1.0)


def test_the_memory_of_a_selection_is_the_measured_one(pool):
    from snugfit.measure.allocator_events import AllocatorEvents

    batch = torch.randn(4096, 8), (torch.arange(4096) % 4 == 0).long()
    loss = lambda output, batch: (output[batch[1] > 0].repeat(1, 50) ** 2).sum()  # noqa: E731

    def real():
        events = AllocatorEvents()
        events.start()
        trainer = snugfit.prepare(nn.Sequential(nn.Linear(8, 3)), device="cpu", loss=loss)
        given = tuple(part.clone() for part in batch)
        trainer.step(given)
        trainer.step(given)
        events.stop()
        return events.peak_bytes

    real()
    found = snugfit.estimate(
        nn.Sequential(nn.Linear(8, 3)), batch, device="cpu", pool=pool, loss=loss, assume={"nonzero": 0.25}
    )
    assert found.peak_allocated_bytes == pytest.approx(real(), rel=0.01)


def test_the_answer_does_not_depend_on_where_the_asking_file_lies(estimate, tmp_path):
    code = "def ask(x):\n    return (x > 0).any().item()\n"
    for folder in ("plain", "snugfit/training", "site-packages/some"):
        path = tmp_path / folder / "asking.py"
        path.parent.mkdir(parents=True)
        path.write_text(code)
        space: dict = {}
        exec(compile(code, str(path), "exec"), space)
        ask = space["ask"]
        with pytest.raises(CannotSimulateError, match="--assume branch"):
            estimate(lambda output, batch, ask=ask: entropy(output, batch) if ask(output) else output.sum())


def test_assumptions_are_read():
    assert assumptions_from(None) == Assumptions()
    wanted = Assumptions(nonzero=0.25, integer=3, branch=True)
    assert assumptions_from({"nonzero": 0.25, "integer": 3, "branch": True}) == wanted
    assert assumptions_from(["nonzero=0.25", "integer=3", "branch"]) == wanted
    assert assumptions_from("loss-finite=false").loss_finite is False


@pytest.mark.parametrize(
    "given, message",
    [
        ("nonzro=1", "did you mean 'nonzero'"),
        ({"nonzro": 1}, "did you mean 'nonzero'"),
        ("nonzero=2", "from 0 to 1"),
        ("nonzero", "needs a value"),
        ("integer=-1", "at least 0"),
        ("branch=perhaps", "branch=true or branch=false"),
        ({"unique": "many"}, "unique is 'many'"),
    ],
)
def test_wrong_assumptions_are_said(given, message):
    with pytest.raises(InputError, match=message):
        assumptions_from(given)


def test_random_numbers_that_decide_on_sizes_are_drawn(estimate):
    def loss(output, batch):
        labels, others = (torch.randint(10, (64,), device=output.device) for _ in range(2))
        same = labels[:, None] == labels[None]
        same.fill_diagonal_(False)  # written through a view of it
        assert 200 < same.nonzero().shape[0] < 600 and len(labels.unique()) == 10
        assert 0 < (labels == others).nonzero().shape[0] < 32
        masked = torch.rand(1000, device=output.device) < 0.15
        assert 100 < masked.nonzero().shape[0] < 200
        return entropy(output, batch)

    assert any("drawn once" in text for text in estimate(loss).answered)


def test_assertions_hold(estimate):
    def loss(output, batch):
        assert (output.abs() < 1).all()
        assert not output.isinf().any() and output.shape[0] == 16
        assert (
            output.dim() == 2
            and output.max() < 4
        ), "said"  # fmt: skip
        sums = output.sum(); assert sums > 0  # noqa: E702 # fmt: skip
        return entropy(output, batch)

    assert any("assert" in text for text in estimate(loss).answered)


def test_of_boxes_that_overlap_all_are_kept(estimate):
    def loss(output, batch):
        kept = torchvision.ops.nms(output.detach()[:, [0, 0, 1, 1]], output.detach()[:, 0], 0.5)
        assert kept.shape == output.shape[:1]
        return entropy(output, batch)

    assert any("nms" in text for text in estimate(loss).answered)


def test_of_small_tensors_masks_select_all(estimate):
    """As trl writes down where sentences end: it has no bytes to speak of, whatever the mask is."""

    def loss(output, batch):
        ends = torch.full((16,), 8, device=output.device)
        ends[(batch[1] > 0)] = batch[1][batch[1] > 0]
        return entropy(output, batch) + 0 * output[batch[1] > 0].sum() + 0 * ends.sum()

    assert any("what masks select of small tensors" in text for text in estimate(loss).answered)
    assert not any("masks select" in text for text in estimate(loss, assume={"nonzero": 0.5}).answered)


@pytest.mark.parametrize("one", [1, 1.0, torch.tensor(1.0)])
def test_steps_that_lists_count_up_are_known(estimate, one):
    """timm's optimizers divide by what follows from them; torch counts no writes to lists of simulated tensors."""

    def loss(output, batch):
        for make in (lambda: torch.tensor(0.0), lambda: torch.zeros(())):
            steps = [make(), make()]
            torch._foreach_add_(steps, one)
            torch._foreach_add_(steps, one, **({"alpha": 1.0} if isinstance(one, torch.Tensor) else {}))
            assert [step.item() for step in steps] == [2.0, 2.0]
        return entropy(output, batch)

    assert not any("loss_finite: a number read" in text for text in estimate(loss).answered)


def test_what_else_is_written_to_lists_is_not_known_any_more(estimate):
    def loss(output, batch):
        masks = [torch.zeros(4, dtype=torch.int64, device=output.device)]
        torch._foreach_maximum_(masks, [batch[1][:4]])
        return entropy(output, batch) if masks[0].any() else output.sum()

    with pytest.raises(CannotSimulateError, match="--assume branch"):
        estimate(loss)


def test_real_numbers_are_not_zero(estimate):
    """torchmetrics looks for predictions that differ from their neighbours."""

    def loss(output, batch):
        assert (output[1:, 0] - output[:-1, 0]).nonzero().shape == (15, 1)
        return entropy(output, batch)

    assert any("not to be zero" in text for text in estimate(loss).answered)


def test_a_loop_that_waits_for_a_number_ends(monkeypatch):
    monkeypatch.setattr(read_values, "_MOST_READS", 50)
    monkeypatch.setattr(read_values, "_MOST_SECONDS", 0)
    values = read_values.ReadValues(Assumptions(loss_finite=True), None, set())
    with pytest.raises(CannotSimulateError, match="a loop that waits for a smaller one does not end"):
        while values.assumed(torch.float32, "a solver's error", "") > 0.1:
            pass
