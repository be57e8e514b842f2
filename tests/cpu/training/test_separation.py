"""Do microbatches add up to the batch? Found on a few samples, without a trace, before the first update."""

import copy
import itertools
import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from failing_allocations import MESSAGE
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import InputError, OutOfMemoryError, Recipe, SnugfitWarning

IGNORED = -100


def contrastive(output, batch):
    output = F.normalize(output, dim=1)
    return F.cross_entropy(output @ output.T / 0.07, torch.arange(len(output)))


def summed(output, batch):
    return F.cross_entropy(output, batch[1], reduction="sum")


def over_labels(output, batch):
    return F.cross_entropy(output, batch[1], ignore_index=IGNORED)


def ranked(output, batch):
    """Mean over neighbours in the batch."""
    return F.relu(1 + output[:-1, 0] - output[1:, 0]).mean()


def centred(output, batch):
    return F.cross_entropy(output - output.mean(0), batch[1])


def only_the_gradient(output, batch):
    """The value separates; its gradient divides by a quantity of the batch."""
    loss = F.cross_entropy(output, batch[1])
    return loss.detach() + (loss - loss.detach()) / output.detach().abs().sum()


def batch_of(samples=8):
    inputs, labels = make_batches("mlp", samples, 1, torch.float32)[0]
    labels[1::3] = IGNORED  # unequal numbers in most pieces, and none without any but of one sample
    return inputs, labels


class ByHand(nn.Module):
    """Normalises with statistics of the batch, without a layer that says so."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt())


class Masked(ByHand):
    """Draws masks in its forward."""

    always = False

    def forward(self, x):
        return self.head(F.dropout(self.stem(x), 0.2, training=self.always or self.training))


def counted(model):
    """Counts passes where nothing is put back: the next one says how many there were."""
    passes = itertools.count()

    def one_more(*_):
        next(passes)

    model.register_forward_hook(one_more)
    return passes


def made(build):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return build()


def trained(model, loss, *, size=4, batch=None, **arguments):
    trainer = snugfit.prepare(
        model, Recipe(microbatch_size=size), loss=loss, optimizer="sgd", lr=0.1, device="cpu", **arguments
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.step(batch_of() if batch is None else batch)
    return trainer, " ".join(str(warning.message) for warning in caught if warning.category is SnugfitWarning)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("loss", [contrastive, summed, over_labels, ranked, centred, only_the_gradient])
def test_what_does_not_add_up_is_different(loss, size):
    if size == 1 and loss in (over_labels, ranked, centred, only_the_gradient):
        pytest.skip("one sample alone has no loss that is a number: no neighbour, or a label that is ignored")
    trainer, told = trained(make_model("mlp", torch.float32), loss, size=size)
    assert str(trainer.fidelity) == "different (microbatch_size)"
    assert f"microbatch_size={size} changes the update" in told


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize(
    ("loss", "loss_weight"),
    [
        (lambda output, batch: output.square().mean(), "samples"),
        (summed, "sum"),
        (over_labels, "tokens"),
        (over_labels, lambda batch: (batch[1] != IGNORED).sum()),
    ],
)
def test_what_adds_up_is_exact(loss, loss_weight, size):
    for dtype in (torch.float32, torch.float64):
        model = make_model("mlp", dtype)
        batch = (batch_of()[0].to(dtype), batch_of()[1])
        trainer, told = trained(model, loss, size=size, batch=batch, loss_weight=loss_weight)
        assert (str(trainer.fidelity), told) == ("exact", "")


@pytest.mark.parametrize(("loss", "advice"), [(summed, "loss_weight='sum'"), (over_labels, "loss_weight='tokens'")])
def test_the_right_weight_is_suggested(loss, advice):
    _, told = trained(make_model("mlp", torch.float32), loss)
    assert f"With {advice} they agree" in told
    _, told = trained(make_model("mlp", torch.float32), contrastive)
    assert "they agree" not in told and "coupled_samples=True" in told


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
def test_in_16_bits(precision):
    def prepared(loss, **arguments):
        return snugfit.prepare(
            make_model("mlp", torch.float32),
            Recipe(precision=precision, microbatch_size=4, accumulate_dtype="fp32" if precision == "bf16-true" else "as-is"),
            loss=loss, optimizer="sgd", device="cpu", **arguments,
        )  # fmt: skip

    batch = make_batches("mlp", 16, 1, torch.float32)[0]
    fine = prepared(cross_entropy)
    fine.step(batch)
    assert "microbatch_size" not in str(fine.fidelity)
    coupled = prepared(contrastive)
    with pytest.warns(SnugfitWarning, match="changes the update"):
        coupled.step(batch)
    assert coupled.fidelity.level == "different"


def test_statistics_by_hand():
    trainer, told = trained(made(ByHand), cross_entropy, batch=make_batches("mlp", 8, 1, torch.float32)[0])
    assert trainer.fidelity.level == "different" and "changes the update" in told


@pytest.mark.parametrize("always", [False, True])
def test_masks_drawn_by_a_function(always):
    model = made(Masked)
    model.always = always
    trainer, told = trained(model, cross_entropy, batch=make_batches("mlp", 8, 1, torch.float32)[0])
    assert "random numbers are drawn" in told
    assert trainer.workload.dropout and trainer.fidelity.level == "different"
    assert trainer.workload.coupled_samples is (None if always else False)


@pytest.mark.parametrize("model", ["cnn", "vit"])
@pytest.mark.parametrize(("loss", "coupled"), [(cross_entropy, False), (contrastive, True)])
def test_a_coupled_loss_is_seen_behind_dropout_and_batch_norm(model, loss, coupled):
    trainer, told = trained(make_model(model, torch.float32), loss, batch=make_batches(model, 8, 1, torch.float32)[0])
    assert trainer.workload.coupled_samples is coupled
    assert ("changes the update" in told) is coupled


class Stateful(nn.Module):
    """Everything a pass can change: running statistics, power iteration, counters, caches, a buffer that is replaced."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(12, 16))
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 5)
        self.register_buffer("queue", torch.zeros(3))
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        self.queue = self.queue + x.detach().mean()
        self.seen = x.shape
        random.random()
        np.random.rand()
        return self.head(F.dropout(self.norm(self.stem(x)), 0.5, training=self.training))


def test_nothing_is_left_of_the_check():
    """A run that checks takes the very steps of one that was told."""

    def run(**declared):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        model = made(Stateful)
        trainer = snugfit.prepare(
            model, Recipe(microbatch_size=4), loss=cross_entropy, optimizer="sgd", device="cpu", **declared
        )
        for batch in make_batches("mlp", 8, 2, torch.float32):
            trainer.step(batch)
        return model, torch.rand(1), random.random(), np.random.rand()

    with pytest.warns(SnugfitWarning, match="keeps from one forward pass to the next"):
        checked = run()
    told = run(coupled_samples=False)
    assert checked[1:] == told[1:] and checked[0].passes == told[0].passes == 4
    for (name, one), other in zip(checked[0].state_dict().items(), told[0].state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_modules_of_the_loss_are_left_alone_too():
    judge, frozen = nn.BatchNorm1d(5), made(ByHand)
    before = copy.deepcopy(judge.state_dict())
    model = make_model("mlp", torch.float32)
    trainer = snugfit.prepare(
        model,
        Recipe(microbatch_size=4),
        forward=lambda model, batch: F.cross_entropy(judge(model(batch[0])) + frozen(batch[0]), batch[1]),
        device="cpu",
    )
    with pytest.warns(SnugfitWarning, match="changes the update"):
        trainer._step.check.learn(make_batches("mlp", 8, 1, torch.float32)[0], trainer.recipe, trainer.workload)
    assert all(torch.equal(value, judge.state_dict()[name]) for name, value in before.items())
    assert all(weight.grad is None for one in (model, judge, frozen) for weight in one.parameters())


@pytest.mark.parametrize(("coupled", "verdict"), [(True, "different (microbatch_size)"), (False, "exact")])
def test_it_can_be_declared(coupled, verdict):
    model = make_model("mlp", torch.float32)
    passes = counted(model)
    trainer, told = trained(model, contrastive, coupled_samples=coupled)
    assert (str(trainer.fidelity), told, next(passes)) == (verdict, "", 2)


def test_it_costs_one_look():
    model = make_model("mlp", torch.float32)
    passes = counted(model)
    trainer, _ = trained(model, cross_entropy, batch=make_batches("mlp", 8, 1, torch.float32)[0])
    assert next(passes) == 10 + 2  # and the next one counts this look
    for batch in make_batches("mlp", 8, 3, torch.float32):
        trainer.step(batch)
    assert next(passes) == 10 + 2 + 1 + 3 * 2


def test_it_says_where_it_cannot_be_made():
    def triplets(output, batch):
        anchors, positives, negatives = output.chunk(3)
        return F.triplet_margin_loss(anchors, positives, negatives)

    batch = make_batches("mlp", 24, 1, torch.float32)[0]
    trainer, told = trained(make_model("mlp", torch.float32), triplets, size=12, batch=batch)
    assert "microbatch_size=12 could not be checked" in told and "a few samples cannot run (" in told
    assert "not checked" in str(trainer.fidelity)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(batch)


def test_what_a_plan_has_promised_is_kept_or_refused():
    class Plan:
        recipe = Recipe(microbatch_size=4)
        fidelity = snugfit.fidelity(recipe, snugfit.Workload(batch_size=8))

    model = make_model("mlp", torch.float32)
    before = copy.deepcopy(model.state_dict())
    trainer = snugfit.prepare(model, Plan(), loss=contrastive, device="cpu")
    with pytest.raises(InputError, match="was planned as changing nothing"):
        trainer.step(batch_of())
    assert trainer.steps_done == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("loss", "halved"), [(cross_entropy, True), (contrastive, False)])
def test_memory_that_runs_out_does_not_change_a_loss_that_couples_samples(loss, halved):
    def forward(model, batch):
        if len(batch[0]) > 4:
            raise RuntimeError(MESSAGE)
        return model(batch[0])

    trainer = snugfit.prepare(make_model("mlp", torch.float32), loss=loss, forward=forward, device="cpu")
    batch = make_batches("mlp", 8, 1, torch.float32)[0]
    if halved:
        with pytest.warns(SnugfitWarning, match="The update is the same"):
            trainer.step(batch)
        assert trainer.recipe.microbatch_size == 4 and str(trainer.fidelity) == "exact"
    else:
        with pytest.raises(OutOfMemoryError, match="samples are coupled"):
            trainer.step(batch)


def test_a_description_is_planned_by_random_values():
    def build():
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    given = {"batch": ((512, 64), torch.float32), "budget": "64MiB", "device": "cpu", "optimizer": "sgd"}
    with pytest.warns(SnugfitWarning, match="microbatches are left out of the plan"):
        plan = snugfit.plan(build, loss=contrastive, **given)
    assert plan.recipe.microbatch_size is None and plan.traits == {"coupled_samples": True}
    with torch.device("meta"):
        described = build()
    plan = snugfit.plan(
        described, loss=lambda output, batch: output.square().mean(), pin={"microbatch_size": 64}, **given
    )
    assert str(plan.fidelity) == str(plan.estimate.fidelity) == "exact"
    assert plan.traits == {}  # random values promise nothing about the real ones: the first step looks again
    assert described[0].weight.is_meta


class Scaled(nn.Module):
    """Takes its scale from the first batch that it sees, as activation norms of flows do."""

    def __init__(self):
        super().__init__()
        self.net = make_model("mlp", torch.float32)
        self.scale = None

    def forward(self, x):
        if self.scale is None:
            self.scale = x.detach().std()
        return self.net(x / self.scale)


def test_what_the_first_pass_sets_is_set_by_the_whole_batch():
    trainer, told = trained(Scaled(), cross_entropy, size=2)
    assert str(trainer.fidelity) == "different (microbatch_size)" and "changes the update" in told


@pytest.mark.parametrize("samples", [2, 3, 9])
@pytest.mark.parametrize(("loss", "coupled"), [(contrastive, True), (cross_entropy, False)])
def test_a_plan_tries_small_batches_too(samples, loss, coupled):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        plan = snugfit.plan(
            make_model("mlp", torch.float32), make_batches("mlp", samples, 1, torch.float32)[0], loss=loss,
            budget="64MiB", device="cpu",
        )  # fmt: skip
    assert plan.traits == {"coupled_samples": coupled}


def weighted(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], weight=batch[2])


def test_a_tensor_that_must_not_be_cut_is_said_in_words():
    """Weights of as many classes as the batch has samples."""
    inputs, labels = make_batches("mlp", 5, 1, torch.float32)[0]
    batch = (inputs, labels, torch.ones(5))
    model = make_model("mlp", torch.float32)
    trainer = snugfit.prepare(model, Recipe(microbatch_size=2), forward=weighted, optimizer="sgd", device="cpu")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        InputError, match=r"cuts this batch into pieces.*weight tensor should be defined.*split=fn"
    ) as told:
        trainer.step(batch)
    assert isinstance(told.value.__cause__, RuntimeError)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    def split(batch, size):
        return [(*one, batch[2]) for one in zip(batch[0].split(size), batch[1].split(size), strict=True)]

    snugfit.prepare(
        model, Recipe(microbatch_size=2), forward=weighted, split=split, optimizer="sgd", device="cpu"
    ).step(batch)
