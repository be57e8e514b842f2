"""`snugfit.estimate`: what it takes, what it says, and how it refuses. Small models; one warm worker."""

import json
import pickle

import pytest
import torch
import torch.nn.functional as F
from small_models import CNN, MLP, ViT, cross_entropy

import snugfit
from snugfit import CannotSimulateError, InputError, Recipe, RecipeError, SnugfitWarning
from snugfit.contexts import measured
from snugfit.devices import DEVICES, Device
from snugfit.recording.trace import CATEGORIES
from snugfit.workers.pool import Pool

NAMES = {device.name for device in DEVICES if device.memory_bytes is not None}


@pytest.fixture(scope="module")
def estimate(pool):
    def run(model, *batch, **arguments):
        arguments.setdefault("device", "a100-80gb")
        if "step" not in arguments:
            arguments.setdefault("loss", cross_entropy)
        return snugfit.estimate(model, *batch, pool=pool, **arguments)

    return run


def mlp_batch(samples):
    return ((samples, 12), torch.float32), ((samples,), torch.int64)


def test_attributes_are_the_json_keys_and_add_up(estimate):
    found = estimate(MLP(), mlp_batch(64))
    plain = json.loads(found.to_json())
    wanted = {
        "peak_allocated_bytes", "peak_reserved_bytes", "context_bytes", "total_bytes", "host_bytes", "anatomy_bytes",
        "peak_phase", "peak_operator", "step_seconds", "flops", "recipe", "fidelity", "torch_version", "devices",
        "context_source", "context_range_bytes",
    }  # fmt: skip
    assert wanted <= set(plain) and all(hasattr(found, name) for name in wanted)
    assert set(plain["anatomy_bytes"]) == set(CATEGORIES)
    assert sum(plain["anatomy_bytes"].values()) == plain["peak_allocated_bytes"]
    assert plain["peak_reserved_bytes"] >= plain["peak_allocated_bytes"]
    assert plain["total_bytes"] == plain["peak_reserved_bytes"] + plain["context_bytes"]
    assert plain["recipe"] == Recipe().to_mapping()
    assert plain["fidelity"]["level"] == "exact" and plain["step_seconds"] > 0 and plain["flops"] > 0
    assert plain["devices"] == [
        {"name": "a100-80gb", "fits": True, "headroom_bytes": plain["devices"][0]["headroom_bytes"],
         "step_seconds": plain["step_seconds"]}
    ]  # fmt: skip
    assert plain["parameters"] == sum(weight.numel() for weight in MLP().parameters())


@pytest.mark.parametrize(
    "device, source, words",
    [
        ("v100-16gb", "published", "(read on such cards, "),
        ("rtx-3060", "assumed", "(typical of its generation, "),
        (
            Device(name="own", vendor_name="", memory_source="", memory_bytes=2**33),
            "assumed",
            "(typical of its generation, ",
        ),
    ],
)
def test_the_context_says_where_it_is_from(estimate, device, source, words):
    found = estimate(MLP(), mlp_batch(8), device=device)
    least, most = found.context_range_bytes
    assert 0 < least <= found.context_bytes <= most and found.context_source == source
    assert found.total_bytes == found.peak_reserved_bytes + found.context_bytes
    assert words in found.card()


def test_the_context_is_taken_off_every_card(estimate):
    found = estimate(MLP(), mlp_batch(8), device="all")
    assert found.context_bytes is None and found.context_source is None
    room = {row.name: row.headroom_bytes for row in found.devices}
    for card in DEVICES:
        if card.compute_capability == (8, 0):  # whose recording the numbers of all cards are of
            assert room[card.name] == card.memory_bytes - card.context_bytes - found.smallest_bytes()


def test_cpu_counts_tensors_without_rounding(estimate):
    model = MLP()
    found = estimate(model, mlp_batch(3), device="cpu", optimizer="sgd")
    weights = sum(weight.numel() * 4 for weight in model.parameters())
    assert found.peak_reserved_bytes is None and found.step_seconds is None
    assert found.total_bytes == found.peak_allocated_bytes == sum(found.anatomy_bytes.values())
    assert found.anatomy_bytes["weights"] == weights
    assert found.rounding_bytes == found.fragmentation_bytes == 0
    assert found.devices[0].fits and found.devices[0].headroom_bytes is None


def test_all_cards_each_by_its_generation(estimate):
    found = estimate(ViT(), (torch.zeros(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)), device=None)
    assert {device.name for device in found.devices} == NAMES and found.step_seconds is None
    seconds = {device.name: device.step_seconds for device in found.devices}
    assert seconds["mi300x-192gb"] is None and seconds["t4-16gb"] > 0
    alone = estimate(ViT(), (torch.zeros(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)), device="h100-80gb")
    row = next(device for device in found.devices if device.name == "h100-80gb")
    assert row == alone.devices[0]
    assert alone.peak_allocated_bytes > found.peak_allocated_bytes  # its cuBLAS takes 32 MiB


def test_fits_is_a_replay_at_the_size(estimate):
    found = estimate(MLP(width=1024), mlp_batch(4096), device="t4")
    smallest = found.smallest_bytes()
    card = next(device for device in DEVICES if device.name == "t4-16gb")
    assert found.devices[0].headroom_bytes == card.memory_bytes - card.context_bytes - smallest
    assert found.fits("t4") and not found.fits(_sized(card, smallest - 2**22)) and found.fits(_sized(card, smallest))


def _sized(card, size):
    import dataclasses

    return dataclasses.replace(card, memory_bytes=size, context=measured(0))


def test_the_model_stays_as_it_was(estimate):
    model = CNN()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    estimate(model, (torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(type(weight) is torch.nn.Parameter and weight.device.type == "cpu" for weight in model.parameters())


def test_models_and_batches_in_every_form(estimate):
    """A module, one on meta, and a closure that builds one; tensors, meta tensors and pairs: all the same."""
    width = 40

    def build():
        return MLP(width=width)

    with torch.device("meta"):
        on_meta = MLP(width=width)
    real = torch.zeros(16, 12), torch.zeros(16, dtype=torch.long)
    peaks = {
        estimate(model, batch).peak_allocated_bytes
        for model, batch in (
            (build(), real), (on_meta, mlp_batch(16)), (build, tuple(part.to("meta") for part in real)),
            (lambda: MLP(width=width), [*real]),
        )
    }  # fmt: skip
    assert len(peaks) == 1


def test_functions_may_be_lambdas_and_closures(estimate):
    scale = 0.5
    found = estimate(
        torch.nn.Linear(12, 5),
        {"x": torch.zeros(6, 12), "y": torch.zeros(6, dtype=torch.long)},
        forward=lambda model, batch: model(batch["x"]) * scale,
        loss=lambda output, batch: F.cross_entropy(output, batch["y"]),
        optimizer=lambda parameters: torch.optim.RMSprop(parameters),
    )
    assert found.anatomy_bytes["optimizer_state"] > 0 and found.fidelity.level == "exact"


def test_a_list_of_batches_is_as_large_as_its_largest(estimate):
    many = estimate(MLP(), batches=[mlp_batch(size) for size in (16, 512, 64)])
    largest = estimate(MLP(), mlp_batch(512))
    assert many.anatomy_bytes["activations"] == largest.anatomy_bytes["activations"]
    assert many.peak_step == 1 and many.peak_reserved_bytes >= largest.peak_allocated_bytes
    assert largest.flops / 4 < many.flops < largest.flops


def hand_written(model, optimizer, batch):
    inputs, labels = batch[0].cuda(), batch[1].to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    assert inputs.is_cuda
    optimizer.step()
    torch.cuda.synchronize()


def test_a_hand_written_step_is_taken_as_it_is(estimate):
    batch = torch.zeros(32, 12), torch.zeros(32, dtype=torch.long)
    found = estimate(MLP(), batch, step=hand_written, optimizer="adam")
    assert found.recipe is None and found.fidelity is None and found.step_seconds > 0
    assert found.anatomy_bytes["optimizer_state"] > 0 and found.host_bytes >= 32 * 12 * 4
    lists = estimate(MLP(), batches=[batch, batch], step=hand_written, optimizer="adam")
    assert lists.peak_allocated_bytes == found.peak_allocated_bytes
    model = MLP()
    own = estimate(model, batch, step=hand_written, optimizer=torch.optim.SGD(model.parameters()))
    assert own.anatomy_bytes["optimizer_state"] == 0
    with pytest.raises(RecipeError, match="belongs to the loop"):
        estimate(MLP(), batch, step=hand_written, recipe=Recipe(microbatch_size=8))
    with pytest.raises(InputError, match="leave loss="):
        estimate(MLP(), batch, step=hand_written, loss=cross_entropy)


def test_evaluation_and_build_count_too(estimate):
    """A model whose evaluation takes more than its training step: the peak falls there."""

    class Greedy(MLP):
        def forward(self, x):
            if not self.training:
                x = x.repeat(4096, 1)[: len(x)] + x.new_zeros(64, len(x), 12 * 4096).sum()
            return super().forward(x)

    found = estimate(Greedy(), mlp_batch(16))
    assert (found.peak_phase, found.peak_step) == ("evaluation", 0)


def test_timeline_and_snapshot(estimate, tmp_path):
    found = estimate(MLP(), mlp_batch(256))
    assert max(found.timeline().total_bytes) == found.peak_allocated_bytes
    found.write_snapshot(tmp_path / "snapshot.pickle")
    with (tmp_path / "snapshot.pickle").open("rb") as file:
        assert {"segments", "device_traces"} <= set(pickle.load(file))


def test_blocks_say_what_they_hold(estimate):
    found = estimate(MLP(), mlp_batch(256))
    blocks = {block.name: block for block in found.blocks}
    assert list(blocks)[1:] == ["stem", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert sum(block.weight_bytes for block in found.blocks) == sum(4 * w.numel() for w in MLP().parameters())
    held = sum(size for block in found.blocks for size in block.bytes_by_category.values())
    assert held == found.peak_allocated_bytes
    assert blocks["blocks.0"].flops == blocks["blocks.1"].flops > 0 and blocks["head"].device_seconds > 0
    assert 0 < sum(block.flops for block in found.blocks) <= found.flops


def test_idle_settings_are_said_here(estimate):
    with pytest.warns(SnugfitWarning, match="momentum has no effect"):
        estimate(MLP(), mlp_batch(8), momentum=0.9)


def refuses(graph, inputs):
    """A compiler that cannot compile anything."""
    raise ValueError("not today")


def built_with_a_compiler():
    if "refuses" not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(refuses, name="refuses")
    return MLP()


@pytest.mark.parametrize(("backend", "reason"), [("refuses", "not today"), ("inductr", "no backend here")])
def test_what_cannot_be_compiled_is_predicted_eagerly_and_that_is_said(estimate, backend, reason):
    with pytest.warns(SnugfitWarning, match=f"predicted as if the step ran eagerly.*{reason}"):
        found = estimate(built_with_a_compiler, mlp_batch(8), recipe=Recipe(compile=backend))
    assert found.recipe.compile == backend and found.fidelity.level == "rounding"
    assert found.total_bytes == estimate(MLP(), mlp_batch(8)).total_bytes


def built_without_a_compiler():
    from torch._inductor import config

    config.cpp.cxx = ("no-such-compiler",)
    return MLP()


def test_without_a_compiler_of_cpp_the_step_of_a_processor_is_predicted_eagerly():
    own = Pool()  # whose workers are not used again
    try:
        with pytest.warns(SnugfitWarning, match="predicted as if the step ran eagerly.*InvalidCxxCompiler"):
            found = snugfit.estimate(
                built_without_a_compiler, mlp_batch(8), loss=cross_entropy, device="cpu", pool=own,
                recipe=Recipe(compile="inductor"),
            )  # fmt: skip
        assert found.total_bytes > 0
    finally:
        own.close()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"device": "rtx-4091"}, InputError, "did you mean 'rtx-4090'"),
        ({"device": 3}, InputError, "give a name"),
        ({"batch_size": 3}, InputError, "leave batch_size out"),
        ({"optimizer": "adamww"}, InputError, "did you mean 'adamw'"),
        ({"recipe": {"precision": "fp32"}}, InputError, "snugfit.Recipe"),
        ({"recipe": Recipe(microbatch_size=64)}, RecipeError, "larger than the batch of 8"),
        ({"recipe": Recipe(step_in_backward=True), "clip_norm": 1.0}, RecipeError, "contradicts clip_norm"),
        ({"warmup": 3}, RecipeError, "did you mean 'warmup_steps'"),
        ({"loss": None}, InputError, "no loss= was given"),
    ],
)
def test_bad_input_is_said(estimate, arguments, error, says):
    with pytest.raises(error, match=says) as caught:
        estimate(MLP(), mlp_batch(8), **arguments)
    assert caught.value.exit_code == 2


def broken():
    raise RuntimeError("no such layer")


@pytest.mark.parametrize(
    ("model", "batch", "says"),
    [
        (broken, mlp_batch(8), r"no such layer \(line \d+: raise"),
        (lambda: 3, mlp_batch(8), "returned a int"),
        ("resnet18", mlp_batch(8), "model is a str"),
        (MLP(), (((8, 13), torch.float32), ((8,), torch.int64)), r"small_models\.py:\d+.*RuntimeError"),
        (MLP(), (((-8, 12), torch.float32), ((8,), torch.int64)), "negative size"),
    ],
)
def test_model_and_batch_that_do_not_work_are_said(estimate, model, batch, says):
    with pytest.raises(InputError, match=says):
        estimate(model, batch)


class Picky(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(12, 5)

    def forward(self, x):
        return self.inner(x[x.sum(1) > 0])


def test_what_needs_values_is_said_with_operator_line_and_advice(estimate):
    with pytest.raises(CannotSimulateError, match=r"index\.Tensor at .*test_estimate\.py:\d+.*torch\.where") as caught:
        estimate(Picky(), mlp_batch(8192))
    assert caught.value.exit_code == 5


class _CountsInItsConstructor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = int(torch.ones(3).sum())  # reads a value, so the model cannot be built without memory
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x):
        return self.layer(x) * self.scale


def test_buffers_of_a_constructor_that_reads_values_follow_the_model(estimate):
    def step(model, optimizer, batch):
        optimizer.zero_grad()
        model(batch.to("cuda")).sum().backward()
        optimizer.step()

    made = estimate(_CountsInItsConstructor, torch.zeros(4, 8), step=step, optimizer="sgd", device="rtx-4090")
    assert made.peak_allocated_bytes > 0
