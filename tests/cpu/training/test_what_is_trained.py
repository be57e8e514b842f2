"""What is trained may change between two steps, and may lie outside of the model: as in a plain loop, or refused in words.

Every exact technique, alone and in pairs of those that update, against a loop as anyone would write it: losses and weights
in float64 to 1e-9.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from exact_recipes import EXACT, allowed
from small_models import MLP, cross_entropy, make_batches, make_model
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW

import snugfit
from snugfit import InputError, Recipe, SnugfitWarning
from snugfit.machine import torch_release
from snugfit.techniques import TECHNIQUES

SAMPLES, STEPS = 8, 4
BATCHES = make_batches("mlp", SAMPLES, STEPS)
UPDATES = ["step_in_backward", "offload_optimizer", "microbatch", "checkpoint_all", "for_loop"]
RECIPES = {
    **EXACT,
    **{
        f"{one}+{other}": EXACT[one] | EXACT[other]
        for one, other in itertools.combinations(UPDATES, 2)
        if allowed("mlp", EXACT[one] | EXACT[other], SAMPLES)
    },
}
pytestmark = pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")


class Scaled(nn.Module):
    """A loss with weights of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 5, dtype=torch.float64))

    def forward(self, output, batch):
        return cross_entropy(output * self.scale, batch)


def unfrozen(number, model, optimizer, loss):
    if number in (0, 2):
        model.blocks.requires_grad_(number == 2)
        model.stem.requires_grad_(number == 2)


def frozen(number, model, optimizer, loss):
    if number == 1:
        model.blocks[1].requires_grad_(False)
        model.head.bias.requires_grad_(False)


def frozen_and_back(number, model, optimizer, loss):
    model.stem.requires_grad_(number != 1)
    model.blocks[0].requires_grad_(number in (0, 3))


def new_group(number, model, optimizer, loss):
    if number == 0:
        model.stem.requires_grad_(False)
    if number == 1:
        model.stem.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.stem.parameters()), "lr": 0.3, "weight_decay": 0.2})


def moved_to_another_group(number, model, optimizer, loss):
    if number == 1:
        moved = optimizer.param_groups[0]["params"].pop()
        optimizer.state.pop(moved, None)
        optimizer.add_param_group({"params": [moved], "lr": 0.001})
    if number == 2:
        optimizer.param_groups[1]["params"].append(optimizer.param_groups[0]["params"].pop(0))


def loss_weights(number, model, optimizer, loss):
    pass


def loss_weights_later(number, model, optimizer, loss):
    if number in (0, 2):
        loss.scale.requires_grad_(number == 2)


def loss_weights_in_a_new_group(number, model, optimizer, loss):
    if number == 1:
        optimizer.add_param_group({"params": list(loss.parameters()), "lr": 0.1})


EVENTS = {
    one.__name__: one
    for one in (
        unfrozen, frozen, frozen_and_back, new_group, moved_to_another_group, loss_weights, loss_weights_later,
        loss_weights_in_a_new_group,
    )
}  # fmt: skip
OPTIMIZERS = {"adamw": AdamW, "sgd": lambda groups, lr: SGD(groups, lr, momentum=0.9)}


def start(event, make):
    """Model, loss, and what the optimizer has at first."""
    model, loss = make_model("mlp"), Scaled() if "loss" in event else cross_entropy
    beside = [] if event == "loss_weights_in_a_new_group" or loss is cross_entropy else list(loss.parameters())
    if event == "loss_weights_in_a_new_group":
        loss.requires_grad_(True)
    at_first = [weight for name, weight in model.named_parameters() if event != "new_group" or "stem" not in name]
    EVENTS[event](0, model, None, loss)
    return model, loss, make([*at_first, *beside], lr=0.02)


def plain(event, make):
    model, loss, optimizer = start(event, make)
    losses = []
    for number, batch in enumerate(BATCHES):
        if number:
            EVENTS[event](number, model, optimizer, loss)
        optimizer.zero_grad()
        found = loss(model(batch[0]), batch)
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return losses, everything(model, loss), optimizer


def everything(model, loss):
    return [*model.parameters(), *(loss.parameters() if isinstance(loss, nn.Module) else ())]


def prepared(model, fields, loss=None, optimizer=None, **settings):
    return snugfit.prepare(
        model, Recipe(**fields), loss=loss, optimizer=optimizer, device="cpu", coupled_samples=False, **settings
    )


def agree(ours, theirs):
    for got, want in zip(ours, theirs, strict=True):
        assert torch.allclose(torch.as_tensor(got), torch.as_tensor(want), rtol=1e-9, atol=1e-11)


# Each recipe and each event meets both optimizers, one of them where the two meet.
@pytest.mark.parametrize(("number", "event"), list(enumerate(EVENTS)), ids=EVENTS)
@pytest.mark.parametrize("name", RECIPES)
def test_as_a_plain_loop_with_the_same_optimizer(name, number, event):
    fields, make = RECIPES[name], list(OPTIMIZERS.values())[(list(RECIPES).index(name) + number) % 2]
    model, loss, optimizer = start(event, make)
    trainer = prepared(model, fields, loss, optimizer)
    losses = []
    for number, batch in enumerate(BATCHES):
        if number:
            EVENTS[event](number, model, optimizer, loss)
        losses.append(trainer.step(batch).item())
        left = [one for one in everything(model, loss) if one.grad is not None]
        assert not left or (event == "loss_weights_in_a_new_group" and number == 0)
    expected, weights, theirs = plain(event, make)
    agree(losses, expected)
    agree(everything(model, loss), weights)
    saved, wanted = trainer.state_dict()["optimizer"], theirs.state_dict()
    assert [group["params"] for group in saved["param_groups"]] == [group["params"] for group in wanted["param_groups"]]
    assert saved["state"].keys() == wanted["state"].keys()


def chosen():
    """What plans may choose and what people may ask for, one technique at a time, as far as one process on cpu has it."""
    found = {str(fields): fields for fields in ({"microbatch_size": 3, "accumulate_dtype": "fp32", **BF16}, BF16)}
    for row in TECHNIQUES:
        choices = [one.changes for one in (*row.planning.choices, *row.planning.lean)]
        choices += [{"optimizer": one.name} for one in row.optimizers]
        found |= {str(dict(changes)): dict(changes) for changes in choices if _is_a_recipe(changes)}
    return found


BF16 = {"precision": "bf16-true", "optimizer": "sgd"}


def _is_a_recipe(changes):
    try:
        snugfit.fidelity(Recipe(**changes), snugfit.Workload(batch_size=SAMPLES))
    except snugfit.RecipeError:
        return False
    return True


class Words(nn.Module):
    """Tokens [samples, 6] to logits; large enough that low-bit optimizers pack some of it, with a head to cut in chunks."""

    def __init__(self):
        super().__init__()
        self.embedding, self.stem = nn.Embedding(96, 64), nn.Linear(64, 64)
        self.blocks, self.head = MLP(64).blocks, nn.Linear(64, 96)

    def forward(self, x):
        x = self.stem(self.embedding(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def word_loss(output, batch):
    return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def word_batches():
    random = torch.Generator().manual_seed(4)
    return [tuple(torch.randint(0, 96, (SAMPLES, 6), generator=random) for _ in range(2)) for _ in range(STEPS)]


def layer(model):
    """A layer as techniques left it: an adapter stands around its own weights."""
    return list(getattr(model.stem, "base_layer", model.stem).parameters())


def steps(fields, by_name, event):
    """Steps of a recipe; in the middle a layer is unfrozen or joins as a new group."""
    torch.manual_seed(3)
    model, batches = Words(), word_batches()
    settings = {"lr": 0.02, "weight_decay": 0.1}
    name = fields.get("optimizer")
    own = {"adam": Adam, "sgd": SGD, "adafactor": Adafactor}.get(name)  # algorithms that an instance has by itself
    cls = own or AdamW
    fields = {field: value for field, value in fields.items() if field != "optimizer" or own is None}
    optimizer = name if own else "adamw"
    model.stem.requires_grad_(False)
    if not by_name:
        known = [weight for name, weight in model.named_parameters() if event == "unfrozen" or "stem" not in name]
        # torch's fused SGD of before 2.15 leaves 16-bit weights on a processor as they are
        old = torch_release() < (2, 15)
        unfused = cls is Adafactor or (old and cls is SGD and fields.get("precision") == "bf16-true")
        kernels = {} if unfused else {"foreach": False} if "optimizer_impl" in fields else {"fused": True}
        optimizer, settings = cls(known, **settings, **kernels), {}
    trainer = snugfit.prepare(
        model, Recipe(**fields), loss=word_loss, device="cpu", coupled_samples=False, optimizer=optimizer, **settings
    )
    weights = [[weight.detach().clone() for weight in layer(model)]]
    losses = []
    for number, batch in enumerate(batches):
        if number == 1 and event == "new_group":
            trainer.optimizer.add_param_group({"params": layer(model), "lr": 0.01, "weight_decay": 0.1})
        if number == 1:
            for weight in layer(model):
                weight.requires_grad_(True)
        losses.append(trainer.step(batch).item())
        weights.append([weight.detach().clone() for weight in layer(model)])
        assert all(weight.grad is None for weight in model.parameters())
    return model, trainer, losses, weights


@pytest.mark.parametrize("event", ["unfrozen", "new_group"])
@pytest.mark.parametrize("fields", chosen().values(), ids=str)
def test_by_name_as_by_an_instance(fields, event):
    """Whatever a plan chooses: a layer rests while it is frozen, trains from there on, and nothing is left behind."""
    model, trainer, losses, weights = steps(fields, True, event)
    other, _, expected, _ = steps(fields, False, event)
    assert losses == pytest.approx(expected, rel=1e-6)
    for got, want in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(got.float(), want.float(), rtol=0, atol=1e-6)
    moved = [any(not torch.equal(*pair) for pair in zip(*pair, strict=True)) for pair in itertools.pairwise(weights)]
    assert moved == [False] + [True] * (STEPS - 1)
    again = steps(fields, True, event)[1]
    again.load_state_dict(trainer.state_dict())
    batch = word_batches()[0]
    assert again.step(batch).item() == trainer.step(batch).item()


class Holder:
    """Code that holds a network beside the model, in one of the ways that people have."""

    def __init__(self, network):
        self.network = network

    def loss(self, output, batch):
        return cross_entropy(self.network(output), batch)


def by_module(network):
    return {"loss": Scaled()}


def by_method(network):
    return {"loss": Holder(network).loss}


def by_closure(network):
    return {"loss": lambda output, batch: cross_entropy(network(output), batch)}


def by_forward(network):
    return {"forward": lambda model, batch: network(model(batch[0])), "loss": cross_entropy}


def by_parameter(network):
    return {"loss": lambda output, batch: cross_entropy(output * network.weight[0], batch)}


WAYS = [by_module, by_method, by_closure, by_forward, by_parameter]


def network():
    return nn.Linear(5, 5, dtype=torch.float64)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fields", RECIPES.values(), ids=RECIPES)
def test_by_name_weights_that_nobody_has_are_refused_before_anything_moves(fields, way):
    if "compile" in fields and way is not by_module:
        pytest.skip("one of them is enough to compile")
    model = make_model("mlp")
    before = [weight.clone() for weight in model.parameters()]
    trainer = prepared(model, fields, optimizer="sgd", **way(network()))
    with pytest.raises(InputError, match=r"never move.*requires_grad_") as error:
        trainer.step(BATCHES[0])
    assert ("Scaled.scale" if way is by_module else "Linear.") in str(error.value) or way is by_parameter
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert trainer.steps_done == 0 and all(weight.grad is None for weight in model.parameters())


def test_a_loss_that_begins_to_need_weights_later_is_found():
    held, used = network(), []

    def loss(output, batch):
        return cross_entropy(held(output) if len(used) > 4 else output, batch)

    trainer = prepared(make_model("mlp"), {}, loss, "sgd")
    with pytest.raises(InputError, match="never move"):
        for _ in range(9):
            trainer.step(BATCHES[0])
            used.append(1)
    assert trainer.steps_done == 7


@pytest.mark.parametrize("way", [*WAYS[1:4]])
def test_what_gets_no_gradient_or_has_an_owner_is_left_alone(way):
    """A teacher under no_grad, frozen weights, a network of another trainer, and whatever a given optimizer leaves out."""

    class Quiet(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                return super().forward(x) * 0 + x.detach()

    held = network()
    with_gradient = way(held)
    quiet = Quiet(5, 5, dtype=torch.float64)
    prepared(make_model("mlp"), {}, lambda output, batch: cross_entropy(output + quiet(output), batch), "sgd").step(
        BATCHES[0]
    )
    held.requires_grad_(False)
    prepared(make_model("mlp"), {}, optimizer="sgd", **with_gradient).step(BATCHES[0])
    held.requires_grad_(True)
    model = make_model("mlp")
    prepared(model, {}, optimizer=SGD(model.parameters(), 0.1), **with_gradient).step(BATCHES[0])
    owner = snugfit.prepare(held, loss=cross_entropy, optimizer="sgd", device="cpu")
    prepared(make_model("mlp"), {}, optimizer="sgd", **with_gradient).step(BATCHES[0])
    assert owner.steps_done == 0


def test_an_estimate_says_the_same(pool):
    with pytest.raises(InputError, match=r"Scaled\.scale would get a gradient"):
        snugfit.estimate(make_model("mlp"), BATCHES[0], loss=Scaled(), optimizer="sgd", device="cpu", pool=pool)


def test_what_a_function_made_of_the_trained_parameters_is_told_when_others_are_unfrozen():
    model = make_model("mlp")
    model.stem.requires_grad_(False)
    trainer = prepared(model, {"microbatch_size": 4}, cross_entropy, lambda weights: SGD(weights, 0.1))
    trainer.step(BATCHES[0])
    model.stem.requires_grad_(True)
    with pytest.raises(InputError, match=r"stem.weight, stem.bias requires a gradient now.*add_param_group"):
        trainer.step(BATCHES[1])
    trainer.optimizer.add_param_group({"params": list(model.stem.parameters())})
    before = model.stem.weight.clone()
    trainer.step(BATCHES[1])
    assert not torch.equal(before, model.stem.weight)


def test_an_instance_is_gone_by_and_what_it_leaves_out_is_told():
    model = make_model("mlp")
    model.stem.requires_grad_(False)
    trainer = prepared(model, {}, cross_entropy, SGD(model.head.parameters(), 0.1))
    model.stem.requires_grad_(True)
    before = model.stem.weight.clone()
    with pytest.warns(SnugfitWarning, match=r"stem.weight, stem.bias requires a gradient now, and no group"):
        trainer.step(BATCHES[0])
    assert torch.equal(before, model.stem.weight)


def test_by_name_a_saved_state_fits_a_run_that_begins_unfrozen():
    def run(names, state=None):
        model = make_model("mlp")
        for name in names:
            model.get_submodule(name).requires_grad_(False)
        trainer = prepared(model, {}, cross_entropy, "adamw", lr=0.02, no_decay=True)
        if state:
            trainer.load_state_dict(state)
        return model, trainer

    model, trainer = run(["stem", "blocks.1"])
    trainer.step(BATCHES[0])
    model.requires_grad_(True)
    trainer.step(BATCHES[1])
    other, again = run([], copy.deepcopy(trainer.state_dict()))
    for one in (trainer, again):
        one.step(BATCHES[2])
    agree(model.parameters(), other.parameters())


def test_a_parameter_that_is_frozen_before_the_first_step_and_watched_later():
    """What looks at gradients by itself (microbatches that are tried, updates that are lost) passes over it."""
    model = make_model("mlp", torch.float32)
    fields = {"precision": "bf16-true", "microbatch_size": 2}
    trainer = snugfit.prepare(model, Recipe(**fields), loss=cross_entropy, optimizer="sgd", device="cpu")
    model.blocks.requires_grad_(False)
    for batch in make_batches("mlp", SAMPLES, STEPS, torch.float32):
        trainer.step(batch)
