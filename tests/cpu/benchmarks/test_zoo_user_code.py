"""The user code of the zoo: trains as a plain loop does, and every piece is estimated on cpu and on a card."""

import importlib
from pathlib import Path

import pytest
import torch

import snugfit

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cases():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield importlib.import_module("benchmarks.zoo_user_code").CASES


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.nn.utils.weight_norm is the case
def test_every_piece_trains_as_a_plain_loop_does(cases):
    for make in cases:
        torch.manual_seed(0)
        case = make()
        model, batch = case.build(), case.batch()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        wanted = []
        for _ in range(2):
            loss = case.plain_loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            wanted.append(loss.item())
        torch.manual_seed(0)
        case = make()
        model, batch = case.build(), case.batch()
        trainer = snugfit.prepare(model, device="cpu", lr=1e-3, **case.arguments())
        assert [trainer.step(batch).item() for _ in range(2)] == pytest.approx(wanted, rel=1e-4), case.name


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore:on CUDA, cuDNN runs recurrent layers", "ignore:evaluation is left out"
)
def test_every_piece_is_estimated(cases, pool):
    """On one of two devices each; all of them on both are in the results of `benchmarks.zoo`."""
    assert len({make().name for make in cases}) == len(cases) >= 20
    for number, make in enumerate(cases):
        case, device = make(), ("cpu", "rtx-4090")[number % 2]
        arguments = {**case.arguments(), "assume": case.assume}
        found = snugfit.estimate(case.build(), case.batch(), device=device, pool=pool, **arguments)
        held = sum(weight.numel() * weight.element_size() for weight in case.build().parameters())
        assert found.anatomy_bytes["weights"] >= held, case.name
