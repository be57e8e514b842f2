"""Another recipe in the middle of a run: every field that may change does, forth and back.

The updates stay those of plain training, and what a technique put on the model is off again.
"""

import copy
import warnings

import pytest
import torch
from failing_allocations import failing, nothing_to_collect  # noqa: F401 - a fixture for all tests
from small_models import cross_entropy, make_batches, make_model
from text_models import LLAMA, build
from torch.utils._python_dispatch import TorchDispatchMode

import snugfit
from snugfit import Recipe, RecipeError, SnugfitWarning
from snugfit.fidelity import fidelity
from snugfit.techniques.base import WrappedForward
from snugfit.training.changeable import CHANGEABLE, problems_of_change
from snugfit.workload import Workload

CHANGES = {
    "microbatch_size": {"microbatch_size": 2},
    "inplace": {"inplace": True},
    "attention": {"attention": "eager"},
    "checkpoint": {"checkpoint": "all"},
    "selective": {"checkpoint": "selective"},
    "offload_activations": {"offload_activations": "all"},
    "optimizer_impl": {"optimizer_impl": "for-loop"},
    "offload_optimizer": {"offload_optimizer": True},
    "step_in_backward": {"step_in_backward": True},
}
"""Changes that a model of images can take; the loss over a vocabulary has a test of its own."""


def prepared(model, recipe=None, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        given = {"loss": cross_entropy, "device": "cpu", "lr": 0.01, **arguments}
        return snugfit.prepare(model, recipe, **given)


def wrapped(model):
    return [name for name, one in model.named_modules() if isinstance(vars(one).get("forward"), WrappedForward)]


def assert_same(one, other, tolerance=1e-9):
    for got, want in zip(one.parameters(), other.parameters(), strict=True):
        assert (got - want).abs().max() <= tolerance * want.abs().max()


def pairs():
    found = []
    for first, one in CHANGES.items():
        for second, other in CHANGES.items():
            if first != second and not ({"microbatch_size", "step_in_backward"} <= {first, second}):
                found.append(pytest.param(Recipe(**one), Recipe(**other), id=f"{first}, then {second}"))
    return found


@pytest.mark.parametrize(("first", "second"), pairs())
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_updates_stay_those_of_plain_training(name, first, second):
    """Plain, one recipe, another one, plain again: four steps."""
    if name == "cnn" and "different" in {fidelity(one, Workload(batch_norm=True)).level for one in (first, second)}:
        first, second = (one.replace(microbatch_size=None) for one in (first, second))
    model, plain = make_model(name), make_model(name)
    own = [getattr(module, "inplace", None) for module in model.modules()]
    trainer, reference = prepared(model), prepared(plain)
    for batch, recipe in zip(make_batches(name, 6, 4), (Recipe(), first, second, Recipe()), strict=True):
        trainer.change_recipe(recipe)
        trainer.step(batch)
        reference.step(batch)
        assert trainer.recipe == recipe
    assert_same(model, plain)
    assert wrapped(model) == [] and [getattr(module, "inplace", None) for module in model.modules()] == own


class Part(torch.nn.Module):
    def __init__(self, inplace):
        super().__init__()
        self.linear, self.relu = torch.nn.Linear(12, 12), torch.nn.ReLU(inplace)

    def forward(self, x):
        return self.relu(self.linear(x))


class Activations(torch.nn.Module):
    """One activation of its own choice in place, and two that may be."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Part(inplace) for inplace in (True, False, False))
        self.head = torch.nn.Linear(12, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Activated(TorchDispatchMode):
    """Takes down whether each activation of a pass overwrites its input; nothing on the model shows that it looks."""

    def __init__(self):
        super().__init__()
        self.in_place = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.relu.default, torch.ops.aten.relu_.default):
            self.in_place.append(func is torch.ops.aten.relu_.default)
        return func(*args, **(kwargs or {}))


def in_place(model):
    """Which activations overwrite their input in a step, before anything is computed again."""
    x = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    model(x)  # blocks that are computed again are tried before their first pass
    with Activated() as seen:
        model(x)
    return seen.in_place


def test_activations_are_in_place_exactly_as_long_as_the_recipe_says():
    model = Activations()
    trainer = prepared(model)
    for recipe, wanted in [
        (Recipe(inplace=True), [True, True, True]),
        (Recipe(checkpoint="selective"), [False, False, False]),
        (Recipe(checkpoint="all"), [True, False, False]),
        (Recipe(checkpoint="all", inplace=True), [True, True, True]),
        (Recipe(), [True, False, False]),
    ]:
        trainer.change_recipe(recipe)
        assert in_place(model) == wanted, recipe
    prepared(model, Recipe(inplace=True))
    prepared(model, Recipe())
    assert in_place(model) == [True, False, False]  # also where the model is prepared again


@pytest.mark.parametrize("fields", [{}, {"checkpoint": "all"}, {"adapter": "lora"}], ids=str)
def test_the_loss_over_a_vocabulary_and_attention(fields):
    ids = torch.randint(3, 250, (4, 24), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "labels": ids.clone()}
    model, plain = (build(LLAMA).double() for _ in range(2))
    given = {"loss": None, "loss_weight": "tokens", "optimizer": "sgd", "lr": 0.5}
    torch.manual_seed(0)
    trainer = prepared(model, Recipe(**fields), **given)
    torch.manual_seed(0)
    reference = prepared(plain, Recipe(**fields), **given)
    reference.model.load_state_dict(model.state_dict())
    for changes in (
        {},
        {"loss_impl": "chunked"},
        {"loss_impl": "chunked", "attention": "eager", "microbatch_size": 2},
        {"attention": "sdpa"},
        {},
    ):
        trainer.change_recipe(Recipe(**{**fields, **changes}))
        assert float(trainer.step(batch)) == pytest.approx(
            float(reference.step(batch)), rel=1e-5
        )  # transformers takes the loss in float32
        assert model.config._attn_implementation == changes.get("attention", "sdpa")
        assert ("lm_head" in wrapped(model)) == ("loss_impl" in changes)
    assert_same(model, plain, 1e-5)


def test_a_fallback_with_another_loss_is_taken_where_memory_runs_out():
    ids = torch.randint(3, 250, (4, 24), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "labels": ids.clone()}
    fallbacks = [Recipe(loss_impl="chunked"), Recipe(loss_impl="chunked", attention="eager", checkpoint="all")]
    model, plain = (build(LLAMA).double() for _ in range(2))
    given = {"loss": None, "loss_weight": "tokens", "optimizer": "sgd", "lr": 0.5}
    trainer, reference = prepared(model, fallbacks=fallbacks, **given), prepared(plain, **given)
    for number in range(3):
        with warnings.catch_warnings(), failing("forward", at=(5,) if number else ()):
            warnings.simplefilter("ignore", SnugfitWarning)
            trainer.step(batch)
        reference.step(batch)
        assert trainer.recipe == [Recipe(), *fallbacks][number]
    assert_same(model, plain, 1e-5)


def test_a_recipe_that_cannot_be_put_in_place_leaves_the_old_one():
    model, plain = make_model("mlp"), make_model("mlp")
    trainer, reference = prepared(model, Recipe(checkpoint="all", inplace=True)), prepared(plain)
    before = wrapped(model)
    with pytest.raises(snugfit.InputError, match="found no head over a vocabulary"):
        trainer.change_recipe(Recipe(loss_impl="chunked"))
    with pytest.raises(RecipeError, match="recipe to go on with: precision stays for the whole run"):
        trainer.change_recipe(Recipe(precision="bf16-mixed"))
    assert trainer.recipe == Recipe(checkpoint="all", inplace=True) and wrapped(model) == before != []
    for batch in make_batches("mlp", 6, 2):
        trainer.step(batch)
        reference.step(batch)
    assert trainer.recipe == Recipe(checkpoint="all", inplace=True)
    assert_same(model, plain)


def test_fallbacks_are_taken_in_order_at_the_same_fidelity():
    fallbacks = [Recipe(checkpoint="blocks:1"), Recipe(microbatch_size=2), Recipe(checkpoint="all")]
    for name, wanted in (("mlp", fallbacks), ("cnn", [fallbacks[0], fallbacks[2]])):  # batch norm sees the microbatch
        trainer = prepared(make_model(name), fallbacks=fallbacks)
        taken = []
        while trainer.take_next_fallback():
            taken.append(trainer.recipe)
            trainer.step(make_batches(name, 8, 1)[0])
            assert trainer.recipe == taken[-1]
        assert taken == wanted


@pytest.mark.filterwarnings("ignore::snugfit.SnugfitWarning")
def test_fidelity_is_that_of_the_steps_that_were_taken():
    trainer = prepared(make_model("cnn"))
    trainer.change_recipe(Recipe(microbatch_size=4))  # batch norm sees the microbatch
    trainer.change_recipe(Recipe(checkpoint="all"))
    assert trainer.fidelity.level == "exact"  # no step was taken by it
    trainer.change_recipe(Recipe(microbatch_size=4))
    trainer.step(make_batches("cnn", 8, 1)[0])
    trainer.change_recipe(Recipe())
    trainer.step(make_batches("cnn", 8, 1)[0])
    assert str(trainer.fidelity) == "different (microbatch_size)"


def test_the_rule_names_every_field_that_stays():
    given = {"init": "device", "precision": "bf16-true", "stochastic_rounding": True, "adapter": "lora"}
    (problem,) = problems_of_change(Recipe(), Recipe(**given), Workload())
    assert problem.startswith(
        "precision, stochastic_rounding, init, adapter stay for the whole run; a fallback may change"
    )
    assert not set(given) & set(CHANGEABLE)
    assert copy.copy(CHANGEABLE) == tuple(dict.fromkeys(CHANGEABLE))
