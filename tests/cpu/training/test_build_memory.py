"""Building a model takes no more than the model: cast before it moves, one tensor at a time, tied tensors once."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit.fake_device.personality import Personality
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.recipe import Recipe
from snugfit.recording.replay import replay
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.recording.trace import ALLOC, FREE, MARK, RESIZE
from snugfit.simulator.given_training import simulate_training
from snugfit.techniques.init.apply import build, settle

pytestmark = pytest.mark.filterwarnings("ignore:precision='16-true' overflows")
WIDTH, LAYERS, WORDS = 256, 8, 4000
CARD = "a100-40gb"


class Language(nn.Module):
    """Embedding and head share a weight, and two modules share a table."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        table = torch.zeros(WORDS, WIDTH)
        self.first, self.second = nn.Module(), nn.Module()
        self.first.register_buffer("table", table)
        self.second.register_buffer("table", table)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens)))


def loss(output, batch):
    return F.cross_entropy(output.flatten(0, 1).float(), batch[1].flatten())


def tokens():
    return torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, 8, dtype=torch.int64)


def bytes_of(model):
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in model.state_dict().values()}
    return sum(storages.values())


def most_on_the_card_while_building(trace):
    """Bytes on the device, at most, before the first step."""
    now = most = 0
    size: dict[int, int] = {}
    for kind, subject, value in zip(trace.kinds, trace.subjects, trace.values, strict=True):
        if kind == MARK and trace.phases[subject] == "forward":
            return most
        if kind in (ALLOC, FREE, RESIZE) and trace.storages[subject].place == "device":
            new = trace.storages[subject].nbytes if kind == ALLOC else 0 if kind == FREE else value
            now += new - size.get(subject, 0)
            size[subject] = new
            most = max(most, now)
    raise AssertionError("no step was recorded")


def recorded(recipe, kind="cuda", make=Language, **arguments):
    personality = Personality(kind=kind, threads=1) if kind == "cpu" else Personality()
    return simulate_training(
        make, recipe, tokens(), personality=personality, evaluate=False, arguments={"loss": loss, **arguments}
    )


PARAMETERS = WORDS * WIDTH + LAYERS * (WIDTH * WIDTH + WIDTH)
TABLE = WORDS * WIDTH


@pytest.mark.parametrize("init", ["host", "device"])
@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_the_card_never_holds_weights_in_two_dtypes(init, precision):
    """It held all of them in fp32 first: twice what training takes."""
    recording = recorded(Recipe(precision=precision, init=init), optimizer="sgd")
    assert most_on_the_card_while_building(recording.trace) == pytest.approx(2 * (PARAMETERS + TABLE), rel=0.01)


def test_a_model_in_fp32_is_moved_as_it_is():
    recording = recorded(Recipe(), optimizer="sgd")
    assert most_on_the_card_while_building(recording.trace) == pytest.approx(4 * (PARAMETERS + TABLE), rel=0.01)


@pytest.mark.parametrize("init", ["host", "device"])
def test_adapters_on_16_bit_weights_build_within_what_training_takes(init):
    pytest.importorskip("peft")
    recipe = Recipe(precision="bf16-true", adapter="lora", init=init)
    recording = recorded(recipe)
    building = most_on_the_card_while_building(recording.trace)
    assert building < replay(recording.trace).peak_allocated_bytes
    assert building < 1.1 * 2 * (PARAMETERS + TABLE)


@pytest.mark.parametrize("method", ["int8", "nf4"])
def test_quantised_weights_go_to_the_card_packed(method):
    pytest.importorskip("peft")
    if method == "nf4":
        pytest.importorskip("bitsandbytes")
    recipe = Recipe(precision="bf16-true", adapter="lora", quantize=method)
    building = most_on_the_card_while_building(recorded(recipe).trace)
    body = LAYERS * WIDTH * WIDTH
    packed = {"int8": 1.02, "nf4": 0.57}[method] * body
    one_layer_unpacked = 3 * 4 * WIDTH * WIDTH
    # Embedding and table in 16 bits, adapters of rank 16 beside each layer in fp32, and one layer on its way.
    adapters = LAYERS * 2 * 16 * WIDTH * 4
    assert building < 2 * (WORDS * WIDTH + TABLE) + packed + adapters + one_layer_unpacked


@pytest.mark.parametrize("precision", ["fp32", "bf16-true", "16-true", "bf16-mixed"])
@pytest.mark.parametrize("init", ["host", "device"])
@pytest.mark.parametrize("device", [CARD, "cpu"])
def test_tied_weights_count_once(precision, init, device):
    recipe = Recipe(precision=precision, init=init)
    found = snugfit.estimate(Language, tokens(), loss=loss, recipe=recipe, device=device, evaluate=False)
    size = 2 if precision in ("bf16-true", "16-true") else 4
    held = found.trace.storages
    alive = [row for row in held if row.category == "weights" and row.place == "device" and row.phase == "build"]
    final = [row for row in alive if row.nbytes == size * WORDS * WIDTH]
    # The weight of embedding and head, and the table of two modules; on cpu fp32 ones were cast.
    assert len(final) == 2
    assert found.anatomy_bytes["gradients"] <= 1.05 * size * PARAMETERS
    assert found.anatomy_bytes["optimizer_state"] <= 1.05 * 2 * size * PARAMETERS


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
@pytest.mark.parametrize("init", ["host", "device"])
def test_real_models_stay_tied_through_the_cast(precision, init):
    dtype = {"bf16-true": torch.bfloat16, "16-true": torch.float16}[precision]
    model = build(Language, init=init, device=torch.device("cpu"), dtype=dtype)
    snugfit.prepare(model, Recipe(precision=precision, init=init), loss=loss, device="cpu")
    assert model.head.weight is model.words.weight
    assert model.first.table is model.second.table
    assert bytes_of(model) == 2 * (PARAMETERS + TABLE)


def test_tied_weights_stay_tied_beside_packed_ones_and_adapters():
    pytest.importorskip("peft")
    model = Language()
    snugfit.prepare(model, Recipe(precision="bf16-true", adapter="lora", quantize="int8"), loss=loss, device="cpu")
    assert model.head.weight is model.words.weight
    assert model.first.table is model.second.table
    assert model.words.weight.dtype == torch.bfloat16


def test_settle_keeps_parameters_the_same_objects_and_other_dtypes_as_they_are():
    model = Language()
    model.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
    model.register_buffer("waves", torch.zeros(3, dtype=torch.complex64))
    before = dict(model.named_parameters())
    settle(model, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert all(before[name] is parameter for name, parameter in model.named_parameters())
    assert (model.steps.dtype, model.waves.dtype) == (torch.int64, torch.complex64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_settle_lets_modules_keep_what_they_hold_beside_parameters():
    """Recurrent layers hold a list of their weights, which must be those that were moved."""
    model = nn.LSTM(8, 8)
    settle(model, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert all(held is parameter for held, parameter in zip(model._flat_weights, model.parameters(), strict=True))


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "bf16-true"},
        {"precision": "bf16-true", "adapter": "lora"},
        {"precision": "bf16-true", "adapter": "lora", "quantize": "int8"},
        {"adapter": "lora", "quantize": "int8"},
    ],
    ids=lambda fields: ",".join(map(str, fields.values())),
)
def test_what_a_build_takes_on_cpu_is_predicted(fields):
    if "adapter" in fields:
        pytest.importorskip("peft")
    recipe = Recipe(**fields)
    warm_up()
    gc.collect()
    events = AllocatorEvents()
    events.start()
    model = Language()
    trainer = snugfit.prepare(model, recipe, loss=loss, device="cpu")
    events.stop()
    assert trainer.recipe == recipe
    building = most_on_the_card_while_building(recorded(recipe, "cpu").trace)
    assert building == pytest.approx(events.peak_bytes, rel=0.02)
    # The model as its constructor makes it, and one tensor more on its way.
    assert events.peak_bytes < 4 * (PARAMETERS + TABLE) + 4 * WORDS * WIDTH + 100_000


def test_a_function_is_built_as_the_recipe_says():
    warm_up()
    peaks = {}
    for init in ("host", "device"):
        events = AllocatorEvents()
        events.start()
        trainer = snugfit.prepare(Language, Recipe(precision="bf16-true", init=init), loss=loss, device="cpu")
        events.stop()
        peaks[init] = events.peak_bytes
        assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.bfloat16}
        del trainer
    assert peaks["host"] > 4 * (PARAMETERS + TABLE)
    assert peaks["device"] < 2 * (PARAMETERS + TABLE) + 4 * WORDS * WIDTH


@pytest.mark.parametrize(
    ("model", "recipe", "message"),
    [
        (3, Recipe(), "model is a int"),
        (dict, Recipe(), "returned a dict"),
        (Language, Recipe(init="meta"), "no file to read"),
    ],
)
def test_what_is_no_model_is_said_so(model, recipe, message):
    with pytest.raises(snugfit.InputError, match=message):
        snugfit.prepare(model, recipe, loss=loss, device="cpu")


def test_the_whole_run_is_predicted_with_tied_weights():
    recipe = Recipe(precision="bf16-true")
    warm_up()
    events = AllocatorEvents()
    events.start()
    trainer = snugfit.prepare(Language(), recipe, loss=loss, device="cpu")
    for _ in range(2):
        trainer.step(tokens())
    events.stop()
    assert replay(recorded(recipe, "cpu").trace, TensorBytes()).peak_allocated_bytes == pytest.approx(
        events.peak_bytes, rel=0.01
    )
