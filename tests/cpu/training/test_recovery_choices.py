"""What is tried when memory runs out, for how long it stays, what is said, and what a retried step leaves alone."""

import copy
import gc
import types
import warnings

import pytest
import torch
from failing_allocations import MESSAGE, failing, nothing_to_collect  # noqa: F401 - a fixture for all tests
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import InputError, OutOfMemoryError, Recipe, RecipeError, SnugfitWarning
from snugfit.techniques.checkpoint.checkpointed import Checkpointed


def trainer_of(name="mlp", recipe=None, model=None, **arguments):
    return snugfit.prepare(
        model or make_model(name), recipe, **{"loss": cross_entropy, "device": "cpu", "lr": 0.01, **arguments}
    )


def more_than(samples):
    """Lets every operator fail that reads more samples than this; the sizes of the model's weights are no samples."""

    def too_large(args):
        sizes = {one.shape[0] for one in args[:2] if isinstance(one, torch.Tensor) and one.dim()}
        return any(size > samples for size in sizes - {5, 12, 24, 72})

    return too_large


def weights_of(trainer):
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def assert_same(one, other, tolerance=1e-9):
    for got, want in zip(weights_of(one), weights_of(other), strict=True):
        assert (got - want).abs().max() <= tolerance * want.abs().max()


def test_the_microbatch_is_halved_until_it_fits():
    plain, trainer = trainer_of(), trainer_of()
    batches = make_batches("mlp", 13, 3)
    with pytest.warns(SnugfitWarning) as said, failing("forward", too_large=more_than(4)):
        for batch in batches:
            trainer.step(batch)
    for batch in batches:
        plain.step(batch)
    assert len(said) == 1  # the run goes on with what was found
    message = str(said[0].message)
    assert message.startswith(
        "step 1 ran out of memory (the whole batch of 13 in forward; microbatch_size=6 in forward)"
    )
    assert "has run with microbatch_size=3. The update is the same. The run goes on with this recipe." in message
    assert trainer.recipe == Recipe(microbatch_size=3) and trainer.steps_done == 3
    assert_same(trainer, plain)


def test_nothing_fits():
    trainer = trainer_of("cnn")
    batch = make_batches("cnn", 4, 1)[0]
    trainer.step(batch)
    before, random_state = copy.deepcopy(trainer.state_dict()), torch.get_rng_state()
    with pytest.raises(OutOfMemoryError) as error, failing("backward", at=range(1, 10_000)):
        trainer.step(batch)
    message = str(error.value)
    assert "step 2 ran out of memory on cpu, and no smaller way is left" in message and error.value.undone
    assert "the whole batch of 4 in backward; microbatch_size=2 in backward; microbatch_size=1 in backward" in message
    assert "the weights are those of step 1" in message and error.value.exit_code == 3
    after = trainer.state_dict()
    assert trainer.steps_done == 1 and torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(after["model"][name], value) for name, value in before["model"].items())
    assert all(weight.grad is None for weight in trainer.model.parameters())
    trainer.step(batch)  # and where there is memory again, it goes on
    assert trainer.steps_done == 2 and trainer.recipe == Recipe()


@pytest.mark.parametrize("name", ["cnn", "vit"])
def test_running_statistics_and_masks_are_those_of_one_step(name):
    """A fallback with the whole batch draws the same masks and moves the statistics once, in spite of the first attempt."""
    model, plain = make_model(name), make_model(name)
    trainer, reference = trainer_of(model=model, fallbacks=[Recipe(checkpoint="all")]), trainer_of(model=plain)
    batches = make_batches(name, 6, 3)
    torch.manual_seed(1)
    for batch in batches:
        reference.step(batch)
    torch.manual_seed(1)
    for step, batch in enumerate(batches):
        with warnings.catch_warnings(), failing("backward", at=(9,) if step == 1 else ()):
            warnings.simplefilter("ignore", SnugfitWarning)
            trainer.step(batch)
    assert trainer.recipe.checkpoint == "all"
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-9, atol=1e-11)


def test_pieces_of_a_model_that_looks_across_the_batch_are_said():
    trainer = trainer_of("cnn")
    match = "batch norm takes its statistics from each microbatch"
    with pytest.warns(SnugfitWarning, match=match) as said, failing("forward", at=(3,)):
        trainer.step(make_batches("cnn", 4, 1)[0])
    assert "The update is the same" not in str(said[0].message)


def test_fallbacks_come_first_and_switch_in_place():
    fallbacks = [
        Recipe(checkpoint="all"),
        Recipe(checkpoint="all", offload_optimizer=True),
        Recipe(checkpoint="blocks:1", microbatch_size=4, optimizer_impl="for-loop"),
    ]
    trainer, plain = trainer_of(fallbacks=fallbacks), trainer_of()
    batches = make_batches("mlp", 8, 5)
    used = []
    for step, batch in enumerate(batches):
        faults = ("forward", (2,)) if step in (1, 2, 3, 4) else (None, ())
        with warnings.catch_warnings(), failing(*faults):
            warnings.simplefilter("ignore", SnugfitWarning)
            trainer.step(batch)
        plain.step(batch)
        used.append(trainer.recipe)
    assert used == [Recipe(), *fallbacks, fallbacks[2].replace(microbatch_size=2)]
    forwards = {name: vars(one).get("forward") for name, one in trainer.model.named_modules()}
    wrapped = [name for name, forward in forwards.items() if isinstance(getattr(forward, "around", None), Checkpointed)]
    assert wrapped == ["blocks.0"]
    assert_same(trainer, plain)
    states = [one.state_dict()["optimizer"]["state"] for one in (trainer, plain)]
    assert all(float(states[0][at]["step"]) == float(states[1][at]["step"]) == 5 for at in states[1])


def test_in_the_update_only_what_changes_it_is_tried():
    fallbacks = [Recipe(checkpoint="all"), Recipe(checkpoint="all", offload_optimizer=True)]
    trainer, plain = trainer_of(fallbacks=fallbacks), trainer_of()
    batch = make_batches("mlp", 8, 1)[0]
    with pytest.warns(SnugfitWarning, match="the whole batch of 8 in optimizer"), failing("optimizer", at=(0,)):
        trainer.step(batch)  # the norm of the gradients, before the update begins
    plain.step(batch)
    assert trainer.recipe == fallbacks[1] and trainer.host_bytes > 0
    assert_same(trainer, plain)


def test_state_leaves_the_device_when_it_moves_to_the_host():
    trainer = trainer_of(fallbacks=[Recipe(offload_optimizer=True)])
    batches = make_batches("mlp", 8, 2)
    trainer.step(batches[0])
    held = [torch.utils.weak.TensorWeakRef(state["exp_avg"]) for state in trainer.update.optimizer.state.values()]
    with warnings.catch_warnings(), failing("forward", at=(0,)):
        warnings.simplefilter("ignore", SnugfitWarning)
        trainer.step(batches[1])
    gc.collect()
    assert held and all(reference() is None for reference in held)


def test_a_rare_large_batch_keeps_the_recipe_of_the_others():
    small, large = make_batches("mlp", 4, 2), make_batches("mlp", 10, 2)
    trainer, plain = trainer_of(), trainer_of()
    match = "larger than every batch before, so the others keep"
    with pytest.warns(SnugfitWarning, match=match) as said, failing("forward", too_large=more_than(6)) as faults:
        for batch in (small[0], large[0], small[1], large[1]):
            trainer.step(batch)
            assert trainer.recipe == Recipe()
    for batch in (small[0], large[0], small[1], large[1]):
        plain.step(batch)
    assert len(said) == 1 and faults.failed == 1  # the second large batch began with what the first one needed
    assert_same(trainer, plain)


def test_an_ordinary_batch_that_fails_changes_the_run():
    trainer = trainer_of()
    batches = make_batches("mlp", 8, 3)
    trainer.step(batches[0])
    with pytest.warns(SnugfitWarning, match="The run goes on with this recipe"), failing("forward", at=(0,)):
        trainer.step(batches[1])
    assert trainer.recipe == Recipe(microbatch_size=4)


def test_an_interrupted_update_is_finished_and_the_next_needs_less():
    recipe = Recipe(optimizer_impl="foreach")
    trainer, plain = trainer_of(recipe=recipe), trainer_of(recipe=recipe)
    batches = make_batches("mlp", 8, 3)
    trainer.step(batches[0])
    plain.step(batches[0])
    with failing("optimizer") as allocations:
        plain.step(batches[1])
    last = allocations.count - 1  # the square roots of all second moments
    with (
        pytest.warns(SnugfitWarning, match="step 2 ran out of memory inside the update"),
        failing("optimizer", at=(last,)),
    ):
        trainer.step(batches[1])
    trainer.step(batches[2])
    plain.step(batches[2])
    assert trainer.recipe == Recipe(optimizer_impl="for-loop")
    assert_same(trainer, plain)


def test_step_in_backward_is_retried_until_a_parameter_has_changed():
    recipe = Recipe(step_in_backward=True)
    fallbacks = [Recipe(step_in_backward=True, checkpoint="all")]
    batch = make_batches("mlp", 8, 1)[0]
    plain = trainer_of(recipe=recipe)
    plain.step(batch)
    outcomes = set()
    for number in range(60):
        trainer = trainer_of(recipe=recipe, fallbacks=fallbacks)
        before = weights_of(trainer)
        try:
            with warnings.catch_warnings(), failing("backward", at=(number,)) as faults:
                warnings.simplefilter("ignore", SnugfitWarning)
                trainer.step(batch)
        except OutOfMemoryError as error:
            assert not error.undone and "after some parameters were updated" in str(error)
            changed = [not torch.equal(*pair) for pair in zip(before, weights_of(trainer), strict=True)]
            assert any(changed)
            outcomes.add("half way")
        else:
            assert_same(trainer, plain)
            outcomes.add("retried" if trainer.recipe.checkpoint == "all" else "finished" if faults.failed else "none")
    assert outcomes >= {"half way", "retried", "finished"}


def test_forward_of_step_in_backward():
    recipe = Recipe(step_in_backward=True)
    trainer = trainer_of(recipe=recipe)
    match = "Tried: the whole batch of 8 in forward; the whole batch of 8 in forward. "
    with pytest.raises(OutOfMemoryError, match=match) as error, failing("forward", at=(0, 1)):
        trainer.step(make_batches("mlp", 8, 1)[0])
    assert error.value.undone  # pieces would have to add up their gradients


def test_plans_and_fallbacks():
    plan = types.SimpleNamespace(recipe=Recipe(microbatch_size=4), fallbacks=(Recipe(checkpoint="all"),))
    trainer = trainer_of(recipe=plan)
    assert trainer.recipe == plan.recipe
    with warnings.catch_warnings(), failing("forward", at=(0,)):
        warnings.simplefilter("ignore", SnugfitWarning)
        trainer.step(make_batches("mlp", 8, 1)[0])
    assert trainer.recipe == Recipe(checkpoint="all")
    assert trainer_of(recipe=types.SimpleNamespace(recipe=Recipe(checkpoint="all"))).recipe.checkpoint == "all"
    with pytest.raises(RecipeError, match="fallback 1: precision stays for the whole run; a fallback may change"):
        trainer_of(fallbacks=[Recipe(precision="bf16-mixed")])
    with pytest.raises(RecipeError, match="fallback 1: microbatch_size 9 is larger than the batch of 4"):
        trainer_of(fallbacks=[Recipe(microbatch_size=9)], batch_size=4)
    with pytest.raises(InputError, match="fallbacks has a dict; give recipes"):
        trainer_of(fallbacks=[{"checkpoint": "all"}])
    with pytest.raises(InputError, match="or a plan that has one"):
        trainer_of(recipe={"checkpoint": "all"})


def test_a_fallback_the_model_cannot_carry_out_is_passed_over():
    trainer = trainer_of(model=torch.nn.Linear(12, 5).double(), fallbacks=[Recipe(checkpoint="all")])
    with warnings.catch_warnings(), failing("forward", at=(0,)):
        warnings.simplefilter("ignore", SnugfitWarning)
        trainer.step(make_batches("mlp", 8, 1)[0])
    assert trainer.recipe == Recipe(microbatch_size=4)


def test_other_errors_are_not_retried():
    calls = []

    def loss(output, batch):
        calls.append(1)
        raise RuntimeError("a shape is wrong")

    with pytest.raises(RuntimeError, match="a shape is wrong"):
        trainer_of(loss=loss).step(make_batches("mlp", 8, 1)[0])
    assert len(calls) == 1


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(12, "Cannot allocate memory"), torch.OutOfMemoryError("CUDA")]
)
def test_kinds_of_errors(error):
    failures = [error]

    def loss(output, batch):
        if failures:
            raise failures.pop()
        return cross_entropy(output, batch)

    trainer = trainer_of(loss=loss)
    with pytest.warns(SnugfitWarning, match="step 1 ran out of memory"):
        trainer.step(make_batches("mlp", 8, 1)[0])


def test_a_failed_attempt_is_freed_before_the_next():
    """The error's frames hold the first attempt's activations; they must be gone when the second one starts."""
    kept = []

    def forward(model, batch):
        alive = [reference for reference in kept if reference() is not None]
        assert not alive
        hidden = model.stem(batch[0])
        kept.append(torch.utils.weak.TensorWeakRef(hidden))
        if len(kept) == 1:
            raise RuntimeError(MESSAGE)
        return model.head(hidden)

    trainer = trainer_of(forward=forward, coupled_samples=False)  # said, so that no check runs the model in between
    with pytest.warns(SnugfitWarning):
        trainer.step(make_batches("mlp", 2, 1)[0])
    assert len(kept) == 3


def test_evaluation_goes_on_in_smaller_pieces():
    trainer = trainer_of()
    trainer.model.eval()
    batch = make_batches("mlp", 13, 1)[0]
    want = trainer.model(batch[0]).detach()
    match = "evaluation ran out of memory with 13 samples at once"
    with pytest.warns(SnugfitWarning, match=match) as said, failing(too_large=more_than(7)):
        got = [trainer.evaluate_batch(batch) for _ in range(2)]
    assert len(said) == 1 and "It goes on with 6; training is not touched" in str(said[0].message)
    assert all(torch.allclose(one, want, rtol=1e-12) for one in got) and trainer.recipe == Recipe()
    with warnings.catch_warnings(), failing(at=range(10_000)):
        warnings.simplefilter("ignore", SnugfitWarning)
        with pytest.raises(
            OutOfMemoryError, match="evaluation ran out of memory on cpu with the smallest piece"
        ) as error:
            trainer.evaluate_batch(batch)
    assert error.value.undone and trainer.steps_done == 0


def test_outputs_of_pieces_are_joined():
    def forward(model, batch):
        logits = model(batch[0])
        return {"loss": cross_entropy(logits, batch), "logits": logits, "parts": (logits, None)}

    trainer = trainer_of(forward=forward, loss=lambda output, batch: output["loss"])
    batch = make_batches("mlp", 7, 1)[0]
    want = trainer.evaluate_batch(batch)
    with pytest.warns(SnugfitWarning), failing(too_large=more_than(3)):
        got = trainer.evaluate_batch(batch)
    torch.testing.assert_close(got["loss"], want["loss"], rtol=1e-12, atol=0)
    torch.testing.assert_close(got["parts"][0], want["logits"], rtol=1e-12, atol=0)
    assert got["parts"][1] is None
