"""Paged AdamW: plain AdamW's update, state in fp32 that is paged on a card, saved bit for bit, under every update."""

import sys
import warnings

import pytest
import torch
from run_code import run_code
from torch import nn

import snugfit
from snugfit import InputError, Recipe, RecipeError, SnugfitWarning, Workload, fidelity
from snugfit.runs.checkpoint import load_checkpoint, save_checkpoint
from snugfit.techniques.own_optimizer import own_optimizer
from snugfit.techniques.paged_adamw import apply as paged

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (pip install 'snugfit[lowbit]')")

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing is paged:snugfit.SnugfitWarning")
CPU = torch.device("cpu")
PAGED = "paged-adamw"


class Net(nn.Module):
    """Two matrices with state that a card pages, and parameters whose state it does not."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256))
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.layers(x))


def net():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Net()


def batches(count=6):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 256, generator=generator), torch.randint(0, 10, (8,), generator=generator))
        for _ in range(count)
    ]


def batch():
    return batches(1)[0]


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output, batch[1])


def trainer_for(optimizer, recipe=None, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        recipe = Recipe(**{"optimizer": optimizer, **(recipe or {})})
        return snugfit.prepare(net(), recipe, loss=cross_entropy, device="cpu", **{"lr": 1e-3, **settings})


def weights(trainer):
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def tensors(value):
    """Every tensor in nested containers."""
    parts = value.values() if isinstance(value, dict) else ()
    return [value] if isinstance(value, torch.Tensor) else [tensor for part in parts for tensor in tensors(part)]


def test_matches_plain_training():
    """60 steps with all that AdamW takes: about as near to torch's fused kernels as torch's own for-loop is."""
    settings = {"weight_decay": 0.3, "betas": (0.8, 0.95), "no_decay": True, "clip_norm": 0.5, "batch_size": 8}
    settings |= {"lr_schedule": "cosine", "warmup_steps": 2, "max_steps": 60}
    runs = [trainer_for(PAGED, **settings), trainer_for(None, **settings)]
    runs.append(trainer_for(None, {"optimizer_impl": "for-loop"}, **settings))
    start = weights(runs[0])
    for one in batches(6) * 10:
        paged, plain, other = [run.step(one) for run in runs]
        torch.testing.assert_close(paged, plain, atol=1e-6, rtol=1e-5)
    paged, plain, other = map(weights, runs)
    way, spread = (plain - start).norm(), (other - plain).norm()
    assert 0 < (paged - plain).norm() < max(10 * spread, 1e-5 * way)


def test_it_is_the_update_of_bitsandbytes():
    from bitsandbytes.optim import AdamW32bit

    ours, theirs = [[nn.Parameter(torch.ones(64, 80)), nn.Parameter(torch.ones(7))] for _ in range(2)]
    mine = own_optimizer(PAGED).make([{"params": ours}], CPU, {"lr": 0.1, "weight_decay": 0.2}, {})
    reference = AdamW32bit(theirs, lr=0.1, weight_decay=0.2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            two.grad = one.grad.clone()
        mine.step(), reference.step()
    assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))


UPDATES = {
    "whole": {},
    "step in backward": {"step_in_backward": True},
    "microbatches": {"microbatch_size": 4},
    "bf16": {"precision": "bf16-true"},
    "stochastic rounding": {"precision": "bf16-true", "stochastic_rounding": True},
    "loss scaling": {"precision": "16-mixed", "microbatch_size": 4},
}


@pytest.mark.parametrize("recipe", UPDATES.values(), ids=UPDATES)
def test_resumes_bit_for_bit(recipe, tmp_path):
    straight = trainer_for(PAGED, recipe)
    for one in batches()[:3]:
        straight.step(one)
    save_checkpoint(tmp_path / "state", straight.state_dict())
    other = trainer_for(PAGED, recipe)
    other.step(batches()[5])
    other.load_state_dict(load_checkpoint(tmp_path / "state"))
    for one in batches()[3:]:
        assert torch.equal(straight.step(one), other.step(one))
    assert torch.equal(weights(straight), weights(other))
    moments = [value for value in tensors(other.state_dict()["optimizer"]["state"]) if value.dim()]
    assert len(moments) == 2 * len(list(Net().parameters())) and {one.dtype for one in moments} == {torch.float32}


def test_whole_and_in_backward_are_one_run():
    whole, backward = trainer_for(PAGED), trainer_for(PAGED, {"step_in_backward": True})
    for one in batches():
        assert torch.equal(whole.step(one), backward.step(one))


def test_state_of_another_optimizer_is_refused():
    plain, paged = trainer_for(None), trainer_for(PAGED)
    plain.step(batch()), paged.step(batch())
    with pytest.raises(InputError, match="as full precision, and this recipe as paged-adamw"):
        paged.load_state_dict(plain.state_dict())


def test_fidelity_is_to_adamw():
    assert str(fidelity(Recipe(optimizer=PAGED), Workload())) == "exact"
    assert str(fidelity(Recipe(optimizer=PAGED), Workload(optimizer="sgd"))) == "different (optimizer)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"offload_optimizer": True}, "moves its own state"), ({"optimizer_impl": "fused"}, "has its own")],
)
def test_contradictions(fields, message):
    with pytest.raises(RecipeError, match=message):
        Recipe(optimizer=PAGED, **fields)


@pytest.mark.parametrize(("given", "meant"), [("paged_adamw", PAGED), ("paged_adamw_32bit", PAGED), ("paged", PAGED)])
def test_other_spellings(given, meant):
    with pytest.raises(RecipeError, match=f"did you mean '{meant}'"):
        Workload(optimizer=given)


def test_float64_is_refused():
    with pytest.raises(InputError, match="computes in fp32, and the model's weights are float64"):
        snugfit.prepare(net().double(), Recipe(optimizer=PAGED), loss=cross_entropy, device="cpu")


def test_nothing_is_paged_on_cpu_and_that_is_said():
    with pytest.warns(SnugfitWarning, match="on cpu the state is in host memory already, and nothing is paged"):
        trainer = snugfit.prepare(net(), optimizer=PAGED, loss=cross_entropy, device="cpu")
    assert trainer.workload.optimizer == "adamw" and trainer.recipe.optimizer == PAGED
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the library's own warning would come at the first step
        trainer.step(batch())


def test_the_library_is_imported_only_when_asked_for():
    code = "import sys, snugfit.training.optimizers; assert not {'bitsandbytes'} & set(sys.modules)"
    done = run_code(code)
    assert done.returncode == 0, done.stderr


def test_library_that_is_missing(monkeypatch):
    paged._adamw.cache_clear()
    for module in [module for module in sys.modules if module == "bitsandbytes" or module.startswith("bitsandbytes.")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"needs the library bitsandbytes, which does not import .*pip install"):
        trainer_for(PAGED)


@pytest.mark.parametrize(
    "recipe",
    [{}, {"step_in_backward": True}, {"precision": "bf16-true", "stochastic_rounding": True}],
    ids=str,
)
def test_peak_of_a_cpu_run_is_the_measured_one(truth, pool, recipe):
    case = truth.Case(Net, batch, cross_entropy, False)
    recipe = Recipe(optimizer=PAGED, **recipe)
    measured, predicted = truth.measured(case, recipe)[0], truth.predicted(case, recipe, pool)[0]
    assert abs(predicted / measured - 1) < 0.001, (predicted, measured)


def test_paged_state_is_in_host_memory(pool):
    """On a card: 8 bytes of the large matrices leave it, and nothing else does."""
    arguments = {"loss": cross_entropy, "device": "rtx-4090", "pool": pool}
    plain = snugfit.estimate(Net, batch(), optimizer="adamw", **arguments)
    with pytest.warns(SnugfitWarning, match="paged optimizer state is counted as host memory"):
        paged = snugfit.estimate(Net, batch(), optimizer=PAGED, **arguments)

    def state(estimate, place):
        rows = estimate.trace.storages
        return sum(s.nbytes for s in rows if s.category == "optimizer_state" and s.place == place)

    large = [weight.numel() for weight in Net().parameters() if weight.numel() >= 100_000]  # the library's bound
    counts = 8 * len(list(Net().parameters()))  # step counts and flags, of torch's AdamW alone
    assert state(paged, "host") == 8 * sum(large) > 0 and state(plain, "host") <= counts
    assert 0 <= state(plain, "device") - state(paged, "device") - 8 * sum(large) <= counts
    assert paged.host_bytes >= 8 * sum(large) > plain.host_bytes  # of plain training: the model, before it moves
