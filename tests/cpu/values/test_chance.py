"""Random numbers that decide what a step does: the answer that takes most memory is found, named, and never too low."""

import random

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.values.chance import SOURCES, Chance, stand_in

BATCH = torch.randn(256, 32), torch.arange(256) % 3


class Net(nn.Module):
    """Six layers, each passed by `way`, a function of (network, layer, x)."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6))
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        for layer in self.layers:
            x = self.way(self, layer, x)
        return self.head(x)


def kept(_, layer, x):
    return x + layer(x)


def on_the_host(_, layer, x):
    return x if torch.rand(1) < 0.1 else x + layer(x)


def on_the_device(_, layer, x):
    return x if torch.rand(1, device=x.device) < 0.1 else x + layer(x)


def as_a_number(_, layer, x):
    return x if torch.rand(()).item() < 0.1 else x + layer(x)


def by_layerdrop(self, layer, x):
    dropped = torch.rand([])
    skip = bool(self.training and dropped < 0.1)
    return x if skip else x + layer(x)


def more_often_than_not(_, layer, x):
    return x if torch.rand(()) < 0.9 else x + layer(x)


def by_another_generator(_, layer, x):
    return x + layer(x) if torch.rand(1, generator=torch.Generator().manual_seed(0)) > 0.1 else x


def by_bernoulli(_, layer, x):
    return x + layer(x) if torch.bernoulli(torch.tensor(0.9)) else x


def in_place(_, layer, x):
    return x + layer(x) if torch.empty(1, device=x.device).bernoulli_(0.9) else x


def by_distribution(_, layer, x):
    return x + layer(x) if torch.distributions.Uniform(0.0, 1.0).sample() > 0.1 else x


def by_choice(_, layer, x):
    return x + layer(x) if torch.randint(0, 2, (1,)).item() else x


def by_list(_, layer, x):
    return x + layer(x) if torch.randn(3).tolist()[1] > -2 else x


WAYS = [
    on_the_host, on_the_device, as_a_number, by_layerdrop, more_often_than_not, by_another_generator, by_bernoulli,
    in_place, by_distribution, by_choice, by_list,
]  # fmt: skip


def entropy(output, batch):
    return F.cross_entropy(output, batch[1])


def estimate(pool, way, device="cpu", **settings):
    return snugfit.estimate(Net(way), BATCH, loss=entropy, device=device, pool=pool, **settings)


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize("way", WAYS)
def test_a_random_branch_keeps_its_layer_and_is_named(pool, way, device):
    found = estimate(pool, way, device)
    least = estimate(pool, kept, device).peak_allocated_bytes
    assert least <= found.peak_allocated_bytes <= least + 4096  # numbers drawn on the device
    (named,) = [text for text in found.answered if text.startswith("assumed")]
    assert named.startswith("assumed random" if way is by_list else "assumed a random")
    assert "test_chance.py:" in named


@pytest.mark.parametrize("way", [on_the_host, by_layerdrop, more_often_than_not])
def test_no_real_step_takes_more(pool, way):
    for measured in (False, True):  # warm: the first run takes what torch keeps
        events = AllocatorEvents()
        events.start()
        torch.manual_seed(0)
        trainer = snugfit.prepare(Net(way), device="cpu", loss=entropy)
        for _ in range(60 if measured else 1):
            trainer.step((torch.randn(256, 32), torch.arange(256) % 3))
        events.stop()
        del trainer
    assert estimate(pool, way).peak_allocated_bytes >= 0.98 * events.peak_bytes


def test_a_rare_branch_that_costs_more_is_found(pool):
    def penalised(output, batch):
        loss = entropy(output, batch)
        if torch.rand(()) < 0.05:
            wide = torch.cat([output] * 400, 1)
            loss = loss + (wide.exp() * wide).mean()
        return loss

    def never(output, batch):
        return penalised(output, batch) if torch.rand(()) < 0.0 else entropy(output, batch)

    plain, rare, without = (
        snugfit.estimate(Net(kept), BATCH, loss=loss, device="cpu", pool=pool) for loss in (entropy, penalised, never)
    )
    assert rare.peak_allocated_bytes > plain.peak_allocated_bytes + 256 * 3 * 400 * 4
    assert any("is True: of the answers" in text for text in rare.answered)
    assert without.peak_allocated_bytes <= plain.peak_allocated_bytes + 64
    assert not any("random" in text for text in without.answered)


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize("where", ["cpu", None])
def test_a_random_size_is_the_largest(pool, where, device):
    def longer(times):
        def way(_, layer, x):
            return kept(None, layer, x.repeat(times(x), 1))[: len(x)]

        return way

    found = estimate(pool, longer(lambda x: int(torch.randint(1, 4, (), device=where or x.device))), device)
    largest = estimate(pool, longer(lambda x: 3), device)
    assert found.peak_allocated_bytes == pytest.approx(largest.peak_allocated_bytes, abs=4096)
    assert any("a random number" in text and "is 3, drawn from 1 to 3" in text for text in found.answered)


def test_an_answer_that_breaks_the_step_is_left_out(pool):
    def way(_, layer, x):
        assert torch.randint(0, 3, ()).item() < 2
        return x + layer(x)

    (named,) = [text for text in estimate(pool, way).answered if text.startswith("assumed")]
    assert "is 2" not in named and "drawn from 0 to 2" in named


def test_what_is_said_goes_first(pool):
    least = estimate(pool, on_the_host, assume={"branch": True})
    assert least.peak_allocated_bytes < 0.8 * estimate(pool, kept).peak_allocated_bytes
    assert any("assumed branch=true" in text for text in least.answered)
    number = estimate(pool, by_choice, assume={"integer": 0})
    assert number.peak_allocated_bytes < 0.8 * estimate(pool, kept).peak_allocated_bytes


def test_orders_are_orders_and_questions_about_finite_numbers_are_as_before(pool):
    def way(_, layer, x):
        order = torch.randperm(len(x), device=x.device)
        assert sorted(order.tolist()) == list(range(len(x)))
        assert not torch.rand(3).isnan().any()
        return x + layer(x[order])

    assert not any("random" in text for text in estimate(pool, way).answered)


def test_a_plan_and_microbatches_know_it_too(pool):
    recipe = snugfit.Recipe(microbatch_size=32, checkpoint=tuple(f"layers.{number}" for number in range(6)))
    found, plain = estimate(pool, by_layerdrop, recipe=recipe), estimate(pool, kept, recipe=recipe)
    assert found.peak_allocated_bytes == pytest.approx(plain.peak_allocated_bytes, abs=4096)


def test_a_hand_written_step_knows_it_too(pool):
    def step(model, optimizer, batch):
        entropy(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    peaks = [
        snugfit.estimate(
            Net(way), BATCH, step=step, optimizer=lambda weights: torch.optim.SGD(weights), device="cpu", pool=pool
        ).peak_allocated_bytes
        for way in (more_often_than_not, kept)
    ]
    assert peaks[0] == pytest.approx(peaks[1], abs=4096)


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand, lambda: numpy.random.default_rng().random()])
def test_python_and_numpy_draw_as_in_a_run(pool, draw):
    def way(_, layer, x):
        x = x + layer(x)
        for _ in range(int(draw() * 1e6) % 7):
            x = x + 1
        return x

    found = estimate(pool, way)
    assert not any("assumed" in text for text in found.answered)

    def seeded(output, batch):
        random.seed(3)
        numpy.random.seed(3)
        assert random.random() == random.Random(3).random()
        assert numpy.random.rand() == numpy.random.RandomState(3).rand()
        return entropy(output, batch)

    assert snugfit.estimate(Net(kept), BATCH, loss=seeded, device="cpu", pool=pool).peak_allocated_bytes > 0


def test_what_stands_in_lies_in_what_a_real_operator_draws():
    torch.manual_seed(0)
    aten = torch.ops.aten
    blank = torch.zeros(1000)
    calls = {
        aten.rand.default: ([1000],),
        aten.rand_like.default: (blank,),
        aten.uniform_.default: (blank, 2.0, 5.0),
        aten.randint.default: (7, [1000]),
        aten.randint.low: (3, 9, [1000]),
        aten.randint_like.default: (blank, 4),
        aten.randint_like.low_dtype: (blank, 2, 4),
        aten.random_.to: (blank, 5),
        getattr(aten.random_, "from"): (blank, 2, 5),
        aten.bernoulli.default: (torch.full((1000,), 0.3),),
        aten.bernoulli.p: (blank, 0.3),
        aten.bernoulli_.float: (blank, 0.7),
        aten.bernoulli_.Tensor: (blank, torch.full((1000,), 0.7)),
        aten.randn.default: ([1000],),
        aten.normal_.default: (blank, 1.0, 2.0),
        aten.normal.float_float: (1.0, 2.0, [1000]),
        aten.randperm.default: (1000,),
    }
    assert calls.keys() <= SOURCES
    # torch leaves defaults at the end of a call out: uniform_(0.4, 1.0) and normal_(3.0, 1.0) come with one number
    short = [(aten.uniform_.default, (blank, 0.4)), (aten.normal_.default, (blank, 3.0))]
    for func, args in [*calls.items(), *short]:
        real = func(*args).clone()
        least, middle, most, drawn = (
            stand_in(func, args, tuple(real.shape), real.dtype, 0, stance)
            for stance in ("least", "middle", "most", "drawn")
        )
        assert (
            drawn.dtype == real.dtype
            and abs(drawn.double().mean() - real.double().mean()) <= 0.1 * (most - least).max()
        )
        assert drawn.unique().numel() == pytest.approx(real.unique().numel(), rel=0.1)
        assert least.dtype == most.dtype == real.dtype and least.shape == real.shape
        assert func is aten.randperm.default or ((least <= real).all() and (real <= most).all()), func
        assert (least <= middle).all() and (middle <= most).all()
        if "rand" in str(func) and real.dtype == torch.int64:
            assert real.min() == least.min() and real.max() == most.max()


def test_places_are_answered_one_by_one():
    chance = Chance()
    values = {"middle": torch.tensor(False), "least": torch.tensor(True), "most": torch.tensor(False)}
    assert not chance.answer(values.__getitem__, "a.py:1")
    assert chance.answer(lambda _: torch.tensor(0.5), "a.py:2") == 0.5
    assert chance.alternatives() == [("a.py:1", "least")]
    other = chance.otherwise("a.py:1", "least")
    assert other.answer(values.__getitem__, "a.py:1") and not other.answer(values.__getitem__, "a.py:3")
    assert len(other.in_words()) == 2


def test_what_drawn_numbers_size_fits_whatever_other_numbers_are_tried(pool):
    """Places of numbers that are not 0 go on as indices: with other numbers there would be fewer."""

    def curve(output, batch):
        scores = torch.rand(64, device=output.device).sort()[0]
        places = torch.where(scores[1:] - scores[:-1])[0]
        whole = (scores[places] - torch.arange(63, device=output.device)).sum() < 0
        return entropy(output, batch) * (2 if whole else 1)

    assert snugfit.estimate(Net(kept), BATCH, loss=curve, device="cpu", pool=pool).peak_allocated_bytes > 0
