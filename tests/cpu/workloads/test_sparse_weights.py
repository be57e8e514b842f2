"""Sparse gradients in real training: equal to plain torch where it takes them, one clear message where it does not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import InputError, Recipe


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 3))


def batches():
    torch.manual_seed(1)
    return [(torch.randint(0, 50, (12, 4)), torch.arange(12) % 3) for _ in range(3)]


def entropy(output, batch):
    return F.cross_entropy(output, batch[1])


@pytest.mark.parametrize("momentum", [None, 0.9])
@pytest.mark.parametrize("size", [None, 4])
def test_sgd_is_that_of_torch(momentum, size):
    plain, given = model(), model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5, momentum=momentum or 0.0)
    settings = {} if momentum is None else {"momentum": momentum}
    trainer = snugfit.prepare(
        given, Recipe(microbatch_size=size), loss=entropy, optimizer="sgd", lr=0.5, device="cpu", **settings
    )
    for batch in batches():
        loss = entropy(plain(batch[0]), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert trainer.step(batch).item() == pytest.approx(loss.item(), rel=1e-5)
    for one, other in zip(plain.parameters(), given.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_still_found():
    given = model()
    trainer = snugfit.prepare(given, loss=entropy, optimizer="sgd", lr=0.5, device="cpu")
    with torch.no_grad():
        given[1].weight[0, 0] = float("nan")
    with pytest.raises(snugfit.TrainingError, match="loss is nan"):
        trainer.step(batches()[0])
        trainer.finish()


@pytest.mark.parametrize(
    "recipe, settings, message",
    [
        ({}, {"optimizer": "adamw"}, "adamw takes dense gradients only"),
        ({}, {"optimizer": "muon"}, "muon takes dense gradients only"),
        ({}, {"optimizer": "sgd", "weight_decay": 0.1}, "weight_decay"),
        ({}, {"optimizer": "sgd", "clip_norm": 1.0}, "clip_norm"),
        ({"optimizer_impl": "fused"}, {"optimizer": "sgd"}, "optimizer_impl=fused"),
        ({"step_in_backward": True}, {"optimizer": "sgd"}, "step_in_backward"),
        ({"offload_optimizer": True}, {"optimizer": "sgd"}, "offload_optimizer"),
    ],
)
def test_what_does_not_go_with_them_is_said(recipe, settings, message):
    with pytest.raises(InputError, match=rf"the gradients of 0 are sparse.*{message}"):
        snugfit.prepare(model(), Recipe(**recipe), loss=entropy, device="cpu", **settings)


def test_frozen_embeddings_do_not_count():
    given = model()
    given[0].weight.requires_grad_(False)
    trainer = snugfit.prepare(given, loss=entropy, device="cpu")
    assert torch.isfinite(trainer.step(batches()[0]))


def test_an_optimizer_with_a_closure_is_refused():
    with pytest.raises(InputError, match=r"LBFGS computes the loss several times.*step="):
        snugfit.prepare(
            nn.Linear(8, 3), loss=entropy, optimizer=lambda weights: torch.optim.LBFGS(weights), device="cpu"
        )


def test_an_optimizer_whose_closure_is_optional_is_taken():
    made = snugfit.prepare(nn.Linear(8, 3), loss=entropy, optimizer=torch.optim.Rprop, device="cpu")
    assert torch.isfinite(made.step((torch.randn(12, 8), torch.arange(12) % 3)))
