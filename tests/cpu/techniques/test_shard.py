"""Several processes against one: the same losses and weights, whatever they share out, and refusals in words."""

import pytest
import safetensors.torch
import shard_tasks
import torch
from shard_tasks import STEPS, trained
from small_models import cross_entropy, make_batches

import snugfit
from snugfit.fake_device.personality import Personality
from snugfit.recording.replay import Player
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.simulator.given_training import simulate_training
from snugfit.techniques.batch_share import share_of
from snugfit.techniques.shard import alike

SAMPLES = 8
RECIPES = {
    "replicate": {},
    "full": {"shard": "full"},
    "gradients": {"shard": "gradients"},
    "units_by_size": {"shard": "full", "shard_unit": "size:500"},
    "offload_parameters": {"shard": "full", "offload_parameters": "all"},
    "microbatches": {"shard": "full", "microbatch_size": 1},
    "reduced_once": {"shard": "full", "microbatch_size": 1, "reduce_gradients": "batch"},
    "replicate_reduced_once": {"microbatch_size": 1, "reduce_gradients": "batch"},
    "checkpoint": {"shard": "full", "checkpoint": "all"},
    "selective": {"shard": "gradients", "checkpoint": "selective"},
    "step_in_backward": {"shard": "full", "step_in_backward": True},
    "offload_optimizer": {"shard": "full", "offload_optimizer": True},
    "offload_activations": {"shard": "full", "offload_activations": "all"},
    "for_loop": {"shard": "full", "optimizer_impl": "for-loop"},
    "compile": {"shard": "full", "compile": "aot_eager"},
    "lora": {"shard": "full", "adapter": "lora", "adapter_rank": 2},
}


def _check(ranks, name, fields, settings=None, *, samples=SAMPLES, last=SAMPLES, dtype=torch.float64, close=1e-9):
    """Losses and weights of every rank are those of one process by the same recipe, without what is shared out."""
    settings = {"batch_size": samples, **(settings or {})}
    found = ranks.do(shard_tasks.train, name, fields, settings, samples, last, dtype)
    batches = [*make_batches(name, samples, STEPS - 1, dtype), *make_batches(name, last, 1, dtype)]
    alone = {field: value for field, value in fields.items() if field not in snugfit.techniques.shard.TECHNIQUE.fields}
    losses, weights = trained(name, alone, settings, batches, dtype)
    for rank_losses, rank_weights in found:
        assert rank_losses == pytest.approx(losses, abs=close, rel=0)
        assert rank_weights.keys() == weights.keys()
        worst = max((rank_weights[key] - weight).abs().max().item() for key, weight in weights.items())
        assert worst < close, worst


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_processes_train_as_one(two, recipe):
    _check(two, "mlp", RECIPES[recipe], {"clip_norm": None if "backward" in recipe else 0.1})


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("mlp", {}),
        ("mlp", {"shard": "hybrid:2"}),
        ("tied", {"shard": "full"}),
        ("tied", {"shard": "hybrid:2"}),
        ("vit", {"shard": "full"}),
    ],
    ids=str,
)
def test_four_processes_train_as_one(four, name, fields):
    _check(four, name, fields, {"clip_norm": 0.1})


@pytest.mark.parametrize("fields", [{}, {"shard": "hybrid:2", "microbatch_size": 1}], ids=str)
def test_processes_without_a_sample_go_along(four, fields):
    _check(four, "mlp", fields, samples=9, last=2)
    _check(four, "mlp", fields, {"batch_size": 9}, samples=3, last=9)


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({}, {"optimizer": "muon"}),
        ({}, {"optimizer": "adafactor"}),
        ({"shard": "full"}, {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01}),
        ({"shard": "full"}, {"freeze": "stem*,blocks.0*"}),
        ({"shard": "full"}, {"no_decay": True, "lr_schedule": "cosine", "max_steps": 5, "warmup_steps": 2}),
    ],
    ids=str,
)
def test_settings_mean_the_same_among_several(two, fields, settings):
    _check(two, "mlp", fields, settings)


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "bf16-mixed"},
        {"precision": "16-mixed"},
        {"precision": "bf16-true", "reduce_dtype": "fp32"},
        {"precision": "bf16-true", "stochastic_rounding": True},
        {"adapter": "lora", "adapter_rank": 2, "quantize": "int8"},
        {"adapter": "lora", "adapter_rank": 2, "quantize": "nf4"},
        {"optimizer": "adamw8bit"},
        {"optimizer": "adamw4bit"},
    ],
    ids=str,
)
def test_rounding_recipes_stay_close_to_one_process(two, fields):
    # Three steps of 0.01 apart at most: Adam's first steps are signs of gradients, which rounding may turn.
    _check(two, "mlp", {"shard": "full", **fields}, dtype=torch.float32, close=0.07)


@pytest.mark.parametrize(
    "fields",
    [{}, {"shard": "full"}, {"shard": "gradients", "microbatch_size": 1}, {"shard": "full", "checkpoint": "all"}],
    ids=str,
)
def test_gradients_in_fp32_are_those_of_one_process(two, fields):
    (batch,) = make_batches("vit", SAMPLES, 1, torch.float32)
    expected = shard_tasks.gradients_of("vit", {}, batch)
    norm = torch.stack([one.double().norm() for one in expected.values()]).norm()
    for found in two.do(shard_tasks.gradients, "vit", fields):
        assert found.keys() == expected.keys()
        off = torch.stack([(found[name] - one).double().norm() for name, one in expected.items()]).norm()
        assert off / norm < 1e-5


@pytest.mark.parametrize(("fails_in", "taken"), [(None, {"checkpoint": "all"}), (1, {"microbatch_size": 2})], ids=str)
def test_one_that_is_over_its_budget_takes_all_to_another_recipe(two, fails_in, taken):
    _, expected = trained("mlp", {}, {"batch_size": SAMPLES}, make_batches("mlp", SAMPLES, 3), torch.float64)
    for recipe, over, weights in two.do(shard_tasks.over_budget, fails_in):
        assert recipe == {"shard": "full", **taken} and over == [50]
        assert max((weights[key] - weight).abs().max().item() for key, weight in expected.items()) < 1e-9


def test_what_the_first_process_cannot_make_is_raised_in_all(two):
    assert two.do(shard_tasks.first_fails) == ["nothing fits, exit code 3"] * 2


def test_cards_are_not_connected_by_gloo(two):
    assert all("cards need nccl" in said for said in two.do(shard_tasks.message_about_cards))


def test_what_cannot_be_shared_is_refused_in_words(two):
    for fields, settings, words in (
        ({"shard": "full"}, {"optimizer": "adafactor"}, "looks at whole matrices"),
        ({"shard": "hybrid:3"}, {}, "give a divisor of 2"),
        ({}, {"batch_size": 1}, "each needs at least one sample"),
        ({}, {"gpus": 4}, "torch.distributed has 2"),
        ({"microbatch_size": 5}, {"batch_size": 8}, "share of the batch, 4 of 8"),
    ):
        assert all(words in said for said in two.do(shard_tasks.message, fields, settings)), words
    assert all("no sample in any" in said for said in two.do(shard_tasks.message, {}, {}, 0))


def test_alone_a_recipe_for_several_is_the_plain_one():
    batches = make_batches("mlp", SAMPLES, 2)
    settings = {"batch_size": SAMPLES}
    losses, _ = trained("mlp", {"shard": "full"}, settings, batches, torch.float64)
    assert losses == trained("mlp", {}, settings, batches, torch.float64)[0]
    with pytest.raises(snugfit.InputError, match=r"torch\.distributed has 1"):
        trained("mlp", {}, {"gpus": 2, **settings}, batches, torch.float64)


@pytest.mark.parametrize("words", ["zero3", "hybrid", "foo", "hybrid:0", "hybrid:1"])
def test_other_words_are_answered_once(words):
    with pytest.raises(snugfit.RecipeError) as error:
        snugfit.Recipe(shard=words)
    assert len(error.value.problems) == 1


def test_shares_cover_a_batch_once_and_the_first_is_the_largest():
    for samples in range(1, 40):
        for ranks in range(1, 9):
            shares = [share_of(samples, ranks, number) for number in range(ranks)]
            assert [at for start, end in shares for at in range(start, end)] == list(range(samples))
            sizes = [end - start for start, end in shares]
            assert sizes[0] == max(sizes) == -(-samples // ranks)
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("ranks", "group"), [(4, 4), (8, 4), (6, 6)])
def test_alike_processes_hold_equal_shares(ranks, group):
    lengths, samples = (10, 7, 4, 1), 13

    def held(number):
        pieces = [
            len(torch.zeros(length)[-(-length // group) * (number % group) :][: -(-length // group)])
            for length in lengths
        ]
        start, end = share_of(samples, ranks, number)
        return (*pieces, end - start)

    groups = alike(samples, lengths, ranks, group)
    assert sorted(number for numbers in groups for number in numbers) == list(range(ranks))
    assert all(len({held(number) for number in numbers}) == 1 for numbers in groups)
    assert all(held(groups[0][0])[at] >= held(number)[at] for number in range(ranks) for at in range(len(lengths) + 1))


@pytest.mark.parametrize("fields", [{}, {"shard": "full"}, {"shard": "hybrid:2"}], ids=lambda fields: str(fields))
@pytest.mark.parametrize("name", ["wide", "reads values"])
def test_all_start_from_the_weights_that_one_process_builds(four, name, fields):
    torch.manual_seed(3)
    model = shard_tasks.MODELS[name]()
    wanted = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for weights, _ in four.do(shard_tasks.built, name, fields):
        assert weights.keys() == wanted.keys()
        assert all(torch.equal(weights[key], wanted[key]) for key in wanted)


UNITS = {"shard": "full", "shard_unit": "size:1000000"}


def _predicted(pool, rank):
    """The most bytes in tensors while a process of four builds its share."""
    recording = simulate_training(
        shard_tasks.MODELS["wide"],
        snugfit.Recipe(**UNITS),
        (torch.empty(8, 1024, device="meta"), torch.empty(8, dtype=torch.long, device="meta")),
        personality=Personality(kind="cpu"),
        arguments={"loss": cross_entropy, "gpus": 4},
        rank=rank,
        evaluate=False,
        pool=pool,
    )
    trace = recording.trace
    assert recording.one_builds
    marks = [mark for mark in trace.marks() if mark.phase == "build" and not mark.entered]
    player = Player(trace, TensorBytes())
    player.play(through=marks[-1].event)
    return player.allocator.peak_allocated_bytes


def test_who_does_not_build_the_model_never_holds_it(four, pool):
    whole = sum(weight.numel() * 4 for weight in shard_tasks.MODELS["wide"]().parameters())
    first, *others = [held for _, held in four.do(shard_tasks.built, "wide", UNITS)]
    assert first > whole
    assert max(others) < 0.5 * whole  # a quarter of everything, and what sharing out a unit takes
    assert first == pytest.approx(_predicted(pool, 0), rel=0.02)
    assert others == pytest.approx([_predicted(pool, 1)] * 3, rel=0.02)


def test_nobody_holds_what_a_file_has(four, tmp_path):
    model = shard_tasks.MODELS["wide"]()
    bytes_ = sum(weight.numel() * 4 for weight in model.parameters())
    safetensors.torch.save_model(model, str(tmp_path / "wide.safetensors"))
    for weights, held in four.do(shard_tasks.mapped, str(tmp_path / "wide.safetensors"), UNITS):
        assert all(torch.equal(weights[key], weight) for key, weight in model.named_parameters())
        assert held < 0.5 * bytes_


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
def test_the_host_holds_the_model_once(pool, precision):
    model = shard_tasks.MODELS["wide"]()
    weights = sum(weight.numel() * 4 for weight in model.parameters())
    asked = {"loss": cross_entropy, "device": "a100-80gb", "gpus": 4, "evaluate": False, "pool": pool}
    batch = (torch.empty(6, 1024, device="meta"), torch.empty(6, dtype=torch.long, device="meta"))
    asked["recipe"] = snugfit.Recipe(precision=precision, **UNITS)
    found = snugfit.estimate(shard_tasks.MODELS["wide"], batch, **asked)
    (first, first_host), *others = [(row.ranks, row.host_bytes) for row in found.ranks]
    assert first == "0" and weights < first_host < 1.1 * weights
    assert len(others) == 2 and all(host < 0.1 * weights for _, host in others)  # one more process has as many samples
    assert weights < found.host_bytes < 1.1 * weights
    assert snugfit.estimate(model, batch, **asked).host_bytes > 4 * weights  # one that stands is there in each process


OF_LIBRARIES = {("bigbird-imdb", "16-mixed")}
"""Rungs that transformers 5.23 breaks under any autocast: BigBird scatters fp32 probabilities into 16-bit zeros."""


@pytest.mark.parametrize("name", ["vit-h-14-fsdp", "distilbert-imdb", "bigbird-imdb"])
def test_each_rung_of_the_guides_ladders_trains_in_two_processes(two, name):
    first, *others = two.do(shard_tasks.climbed, name)
    assert len(first) == 6
    for rung, found in first.items():
        if isinstance(found, str):
            assert (name, rung) in OF_LIBRARIES and "scatter" in found
            continue
        losses, moved = found
        assert moved and losses[-1] < losses[0], (rung, losses)
        assert all(one[rung][0] == losses for one in others)
