"""Muon for matrices and AdamW for the rest: one optimizer that does what torch's two do apart."""

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import Recipe, TrainingError, Workload
from snugfit.runs.checkpoint import load_checkpoint, save_checkpoint
from snugfit.techniques.linear_layers import embedding_weights, head_weights
from snugfit.techniques.muon.apply import ALGORITHM, MuonWithAdamW, muon_weights
from snugfit.training.optimizers import optimizer_groups, parameter_groups

FLOAT32 = torch.float32


def trainer_for(name="mlp", recipe=None, **settings):
    settings = {"optimizer": "muon", "lr": 2e-3, **settings}
    return snugfit.prepare(
        make_model(name, FLOAT32), Recipe(**(recipe or {})), loss=cross_entropy, device="cpu", **settings
    )


def names_of(model, weights):
    return {name for name, weight in model.named_parameters() if any(weight is one for one in weights)}


@pytest.mark.parametrize(
    ("name", "muon"),
    [
        ("mlp", {"stem.weight", *(f"blocks.{i}.layers.{j}.weight" for i in range(3) for j in (0, 2))}),
        ("cnn", set()),  # convolutions have four dimensions, and the head is the only matrix
        ("tied", {f"blocks.{i}.layers.{j}.weight" for i in range(2) for j in (0, 2)}),
    ],
)
def test_which_parameters_are_matrices(name, muon):
    model = make_model(name)
    assert names_of(model, muon_weights(model)) == muon
    workload = Workload(optimizer="muon", no_decay=True)
    named = dict(model.named_parameters())
    groups = optimizer_groups(model, named, parameter_groups(model.parameters(), workload), Recipe(), workload)
    assert {n for g in groups if g[ALGORITHM] == "muon" for n in names_of(model, g["params"])} == muon
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_roles_of_parameters():
    tied, plain = make_model("tied"), make_model("mlp")
    assert embedding_weights(tied) == {tied.embedding.weight} == head_weights(tied)
    assert embedding_weights(plain) == set() and head_weights(plain) == {plain.head.weight, plain.head.bias}

    class Named(nn.Module):
        """Says which layer is its head, as models of transformers do; the last linear layer is another."""

        def __init__(self):
            super().__init__()
            self.head, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)

        def get_output_embeddings(self):
            return self.head

    named = Named()
    assert head_weights(named) == {named.head.weight, named.head.bias}
    assert head_weights(nn.Conv2d(1, 1, 1)) == set()


def test_it_is_torch_muon_and_torch_adamw():
    settings = {"lr": 5e-3, "weight_decay": 0.05, "betas": (0.8, 0.9)}
    trainer, reference = trainer_for(**settings), make_model("mlp", FLOAT32)
    matrices = muon_weights(reference)
    parts = [
        torch.optim.Muon(
            [w for w in reference.parameters() if w in matrices],
            lr=5e-3, weight_decay=0.05, adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW([w for w in reference.parameters() if w not in matrices], fused=True, **settings),
    ]  # fmt: skip
    for batch in make_batches("mlp", 8, 4, FLOAT32):
        loss = cross_entropy(reference(batch[0]), batch)
        assert torch.equal(trainer.step(batch), loss.detach())
        loss.backward()
        for part in parts:
            part.step()
            part.zero_grad()
    for ours, theirs in zip(trainer.model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_defaults_are_those_of_torch():
    groups = {group[ALGORITHM]: group for group in trainer_for(lr=None).update.optimizer.param_groups}
    weights = [nn.Parameter(torch.zeros(2, 2))]
    for name, plain in (("muon", torch.optim.Muon(weights)), ("adamw", torch.optim.AdamW(weights))):
        theirs = plain.param_groups[0]
        for key in {"lr", "weight_decay", "momentum", "nesterov", "eps", "ns_steps", "betas"} & theirs.keys():
            assert groups[name][key] == theirs[key], (name, key)
    assert groups["muon"]["adjust_lr_fn"] == "match_rms_adamw" and groups["adamw"]["fused"]


def test_update_of_a_matrix_is_as_large_as_that_of_adamw():
    """One learning rate serves both: the root mean square of an update is about 0.2 times it, as with AdamW in practice."""
    weight = nn.Parameter(torch.zeros(64, 192))
    weight.grad = torch.randn(64, 192, generator=torch.Generator().manual_seed(0))
    MuonWithAdamW([weight], lr=0.1, weight_decay=0.0).step()
    assert 0.1 * 0.15 < weight.detach().square().mean().sqrt() < 0.1 * 0.25


def test_groups_are_parted_by_dimension_where_nobody_says_more():
    weights = [nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3))]
    optimizer = MuonWithAdamW(weights)
    assert [(g[ALGORITHM], len(g["params"])) for g in optimizer.param_groups] == [("muon", 1), ("adamw", 1)]
    optimizer = MuonWithAdamW([{"params": weights[1:], "lr": 0.5}])
    assert [(g[ALGORITHM], g["lr"]) for g in optimizer.param_groups] == [("adamw", 0.5)]


@pytest.mark.parametrize("name", ["mlp", "cnn", "vit", "tied"])
def test_in_backward_it_is_the_same_run(name):
    whole, backward = trainer_for(name), trainer_for(name, {"step_in_backward": True})
    for batch in make_batches(name, 6, 3, FLOAT32):
        for trainer in (whole, backward):
            torch.manual_seed(0)
            trainer.step(batch)
    for one, two in zip(whole.model.parameters(), backward.model.parameters(), strict=True):
        assert torch.equal(one, two)
    again = trainer_for(name)
    again.load_state_dict(backward.state_dict())
    batch = make_batches(name, 6, 1, FLOAT32)[0]
    for trainer in (whole, again):
        torch.manual_seed(1)
        trainer.step(batch)
    for one, two in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"step_in_backward": True},
        {"precision": "bf16-true", "stochastic_rounding": True},
        {"precision": "16-mixed"},
    ],
    ids=str,
)
def test_resumes_bit_for_bit(recipe, tmp_path):
    settings = {"lr_schedule": "cosine", "max_steps": 8, "no_decay": True}
    straight, other = trainer_for(recipe=recipe, **settings), trainer_for(recipe=recipe, **settings)
    batches = make_batches("mlp", 8, 6, FLOAT32)
    for batch in batches[:3]:
        straight.step(batch)
    save_checkpoint(tmp_path / "state", straight.state_dict())
    other.step(batches[5])
    other.load_state_dict(load_checkpoint(tmp_path / "state"))
    for batch in batches[3:]:
        assert torch.equal(straight.step(batch), other.step(batch))
    for one, two in zip(straight.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert len(straight.state_dict()["optimizer"]["param_groups"]) == 3  # the mlp's biases and norms are no matrices


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
def test_bytes_of_state(precision):
    trainer = trainer_for(recipe={"precision": precision})
    trainer.step(make_batches("mlp", 4, 1, FLOAT32)[0])
    matrices = muon_weights(trainer.model)
    item = 4 if precision == "fp32" else 2
    for weight, state in trainer.update.optimizer.state.items():
        held = sum(value.nbytes for value in state.values() if value.dim())
        assert held == weight.numel() * item * (1 if weight in matrices else 2)


def test_flag_of_a_bad_step_leaves_everything():
    from snugfit.techniques.parameter_update import ParameterUpdate

    for shape in ((8, 8), (8,)):
        weight = nn.Parameter(torch.ones(shape))
        update = ParameterUpdate(MuonWithAdamW([weight], lr=0.1), [weight])
        weight.grad = torch.full_like(weight, torch.nan)
        update.step(torch.ones(()))
        assert torch.equal(weight, torch.ones(shape))
        weight.grad = torch.ones_like(weight)
        update.step(torch.zeros(()))
        assert bool(torch.isfinite(weight).all()) and not torch.equal(weight, torch.ones(shape))


def test_gradients_that_are_not_finite_change_nothing():
    trainer = trainer_for()
    batches = make_batches("mlp", 8, 2, FLOAT32)
    trainer.step(batches[0])
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.model.stem.weight.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(TrainingError, match=r"stem\.weight"):
        trainer.step(batches[1])
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_it_learns_and_is_labelled_different():
    trainer = trainer_for(recipe={"optimizer": "muon"}, optimizer="adamw", lr=5e-3)
    batch = make_batches("mlp", 32, 1, FLOAT32)[0]
    losses = [float(trainer.step(batch)) for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]
    assert trainer.fidelity.level == "different"
