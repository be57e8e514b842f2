"""Low-bit optimizers and Muon are simulated by running their own code: bytes of state, temporaries and places are theirs."""

import functools
import warnings

import pytest
import torch
from torch import nn

import snugfit
from snugfit import Recipe, SnugfitWarning

pytest.importorskip("torchao", reason="torchao is not installed (pip install 'snugfit[lowbit]')")
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (pip install 'snugfit[lowbit]')")

NAMES = ["adamw8bit", "adamw4bit", "adamwfp8", "muon"]


WIDTHS = {"adamw4bit": 1152, "adamwfp8": 1152}
"""Where the update goes over slices, one matrix is larger than a slice."""


class Text(nn.Module):
    """An embedding and matrices."""

    def __init__(self, width=384):
        super().__init__()
        self.embedding = nn.Embedding(128, 256)
        self.inner = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width))
        self.head = nn.Linear(width, 8)

    def forward(self, ids):
        return self.head(self.inner(self.embedding(ids).mean(1)))


def model_for(name):
    return functools.partial(Text, WIDTHS.get(name, 384))


def tokens():
    return (torch.zeros(4, 16, dtype=torch.long), torch.zeros(4, dtype=torch.long))


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output, batch[1])


def state_bytes(optimizer, recipe=None):
    """Bytes of the moments in a real run, scales included; tables of values, which are shared, and step counts left out."""
    trainer = snugfit.prepare(
        model_for(optimizer)(), recipe or Recipe(), loss=cross_entropy, optimizer=optimizer, device="cpu"
    )
    trainer.step(tokens())
    found = {}
    for state in trainer.update.optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() and "qmap" not in name:
                found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sum(found.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"precision": "bf16-true", "stochastic_rounding": True, "step_in_backward": True},
    ],
    ids=str,
)
def test_peak_of_a_cpu_run_is_the_measured_one(truth, pool, name, recipe):
    case = truth.Case(model_for(name), tokens, cross_entropy, False)
    recipe = Recipe(optimizer=name, **recipe)
    measured, predicted = truth.measured(case, recipe)[0], truth.predicted(case, recipe, pool)[0]
    assert abs(predicted / measured - 1) < 0.001, (predicted, measured)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_bytes_of_state_are_those_of_a_real_run(pool, name, device):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        estimate = snugfit.estimate(
            model_for(name), tokens(), loss=cross_entropy, optimizer=name, device=device, pool=pool
        )
    real, tables = state_bytes(name), 2 * 1024 + 9 * 4  # tables of values, and a step count a parameter
    state = sum(s.nbytes for s in estimate.trace.storages if s.category == "optimizer_state" and s.place == "device")
    assert real <= state <= real + tables, (real, state)


@pytest.mark.parametrize("name", NAMES)
def test_state_made_in_backward_is_state(pool, name):
    recipe = Recipe(step_in_backward=True, precision="bf16-true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        estimate = snugfit.estimate(
            model_for(name), tokens(), loss=cross_entropy, optimizer=name, recipe=recipe, device="rtx-4090", pool=pool
        )
    state = sum(s.nbytes for s in estimate.trace.storages if s.category == "optimizer_state")
    assert state_bytes(name, recipe) <= state <= state_bytes(name, recipe) + 9 * (2 * 1024 + 4)


def test_eight_bits_take_no_temporaries_on_cuda(pool):
    """One kernel a parameter; with step in backward nothing as large as a matrix is made beside gradient and state."""
    recipe = Recipe(step_in_backward=True)
    estimate = snugfit.estimate(
        Text, tokens(), loss=cross_entropy, optimizer="adamw8bit", recipe=recipe, device="rtx-4090", pool=pool
    )
    update = [run for run in estimate.trace.runs if run.operator.startswith("bitsandbytes.optimizer_update")]
    assert len(update) == 2 * len(list(Text().parameters()))
    largest = 384 * 384 * 4
    made = [s for s in estimate.trace.storages if s.category == "temporaries" and s.nbytes >= largest]
    assert all("cublas" in storage.operator for storage in made), made


def test_paged_state_is_in_host_memory(pool):
    arguments = {"loss": cross_entropy, "device": "rtx-4090", "pool": pool}
    plain = snugfit.estimate(Text, tokens(), optimizer="adamw8bit", **arguments)
    with pytest.warns(SnugfitWarning, match="paged optimizer state is counted as host memory"):
        paged = snugfit.estimate(Text, tokens(), optimizer="paged-adamw8bit", **arguments)

    def state(estimate, place):
        rows = estimate.trace.storages
        return sum(s.nbytes for s in rows if s.category == "optimizer_state" and s.place == place)

    matrices = [
        weight.numel() for weight in Text().inner.parameters() if weight.numel() >= 100_000
    ]  # the library's bound
    assert state(paged, "host") == 2 * sum(matrices) and state(plain, "host") == 0
    assert state(paged, "device") == state(plain, "device") - 2 * sum(matrices)


def test_compiled_update_is_an_approximation_and_that_is_said(pool):
    with pytest.warns(SnugfitWarning, match="compiled on CUDA, and predicted as one kernel for each slice"):
        estimate = snugfit.estimate(
            model_for("adamw4bit"), tokens(), loss=cross_entropy, optimizer="adamw4bit", device="rtx-4090", pool=pool
        )
    kernels = [run for run in estimate.trace.runs if run.operator == "snugfit.compiled_adamw.default"]
    assert len(kernels) == 2 * len(list(Text().parameters())), "no matrix here is larger than a compiled slice"
    kept = max(s.nbytes for s in estimate.trace.storages if s.phase == "optimizer" and s.category == "temporaries")
    assert kept == 26 * 1152 * 1152


@pytest.mark.parametrize("name", ["adamw8bit", "adamw4bit", "muon"])
def test_hand_written_step_takes_them_by_name(pool, name):
    def step(model, optimizer, batch):
        optimizer.zero_grad()
        batch = [tensor.cuda() for tensor in batch]
        cross_entropy(model(batch[0]), batch).backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        written = snugfit.estimate(model_for(name), tokens(), step=step, optimizer=name, device="rtx-4090", pool=pool)
        ours = snugfit.estimate(
            model_for(name), tokens(), loss=cross_entropy, optimizer=name, device="rtx-4090", pool=pool
        )
    # The library makes a tensor of each learning rate that it is given, a block of 512 bytes each.
    difference = written.anatomy_bytes["optimizer_state"] - ours.anatomy_bytes["optimizer_state"]
    assert abs(difference) <= (1024 if name == "adamw4bit" else 0) and ours.anatomy_bytes["optimizer_state"] > 0


def test_name_gives_the_recipe(pool):
    estimate = snugfit.estimate(Text, tokens(), loss=cross_entropy, optimizer="adamw8bit", device="cpu", pool=pool)
    assert estimate.recipe.optimizer == "adamw8bit" and estimate.fidelity.level == "rounding"
    with pytest.raises(snugfit.InputError, match="did you mean 'adamw8bit'"):
        snugfit.estimate(Text, tokens(), loss=cross_entropy, optimizer="adamw8bits", device="cpu", pool=pool)
