"""AdamW with low-bit state: the libraries' own results, near plain AdamW, saved bit for bit, under every kind of update."""

import itertools
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from small_models import cross_entropy
from torch import nn

import snugfit
from snugfit import InputError, Recipe, SnugfitWarning, TrainingError, Workload
from snugfit.runs.checkpoint import load_checkpoint, save_checkpoint
from snugfit.techniques.low_bit_optimizer.apply import FULL_PRECISION, low_bit_optimizer
from snugfit.techniques.parameter_update import ParameterUpdate
from snugfit.techniques.stochastic_rounding.apply import RoundedUpdate
from snugfit.training.optimizers import make_optimizer, optimizer_groups, parameter_groups

pytest.importorskip("torchao", reason="torchao is not installed (pip install 'snugfit[lowbit]')")
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (pip install 'snugfit[lowbit]')")

CPU = torch.device("cpu")
NAMES = ["adamw8bit", "adamw4bit", "adamwfp8"]
SHAPES = [(64, 128), (3, 32, 64), (5, 1024), (4096,), (63, 65), (100,)]


class Text(nn.Module):
    """Embedding, a tied head and matrices that are large enough to be quantised, on [samples, 6]."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(80, 64)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 80, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x).mean(1)
        return self.head(self.norm(x + self.layers(x)))


def text_model():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Text()


def text_batches(count=6):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randint(0, 80, (8, 6), generator=generator), torch.randint(0, 80, (8,), generator=generator))
        for _ in range(count)
    ]


def trainer_for(optimizer, model=None, recipe=None, **settings):
    settings = {"lr": 1e-3, **settings}
    return snugfit.prepare(
        model or text_model(),
        Recipe(**(recipe or {})),
        loss=cross_entropy,
        optimizer=optimizer,
        device="cpu",
        **settings,
    )


def flat(value, name=""):
    """Every tensor and number in nested containers, by path."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{name}.{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for key, part in enumerate(value) for k, v in flat(part, f"{name}.{key}").items()}
    return {name: value}


def assert_same(left, right):
    left, right = flat(left), flat(right)
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[name].dtype and torch.equal(value, right[name]), name
        else:
            assert value == right[name], name


def parameters_and_gradients(steps, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    weights = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    return weights, [[torch.randn(w.shape, generator=generator).to(dtype) for w in weights] for _ in range(steps)]


def run(optimizer, weights, gradients):
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw4bit", "adamwfp8"])
def test_slices_give_what_torchao_gives(name, dtype, monkeypatch):
    from torchao import optim

    from snugfit.techniques.low_bit_optimizer import torchao as low_bit_torchao

    monkeypatch.setattr(low_bit_torchao, "EAGER_SLICE", 1024)
    settings = {"lr": 3e-3, "betas": (0.8, 0.95), "weight_decay": 0.1}
    ours, gradients = parameters_and_gradients(4, dtype)
    theirs, _ = parameters_and_gradients(0, dtype)
    run(low_bit_optimizer(name, [{"params": ours}], CPU, **settings), ours, gradients)
    reference = {"adamw4bit": optim.AdamW4bit, "adamwfp8": optim.AdamWFp8}[name](theirs, **settings)
    with torch.compiler.set_stance("force_eager"):
        run(reference, theirs, gradients)
    for mine, other in zip(ours, theirs, strict=True):
        if dtype == torch.float32 or mine.numel() == 64 * 128:  # torchao holds state that is not packed in bf16
            assert torch.equal(mine, other), mine.shape
    packed = reference.state[theirs[0]]["exp_avg"]
    assert packed.codes.dtype in (torch.uint8, torch.float8_e4m3fn), "the reference is packed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eight_bits_are_those_of_bitsandbytes(dtype):
    from bitsandbytes.optim import AdamW8bit

    settings = {"lr": 3e-3, "betas": (0.8, 0.95), "weight_decay": 0.1}
    ours, gradients = parameters_and_gradients(4, dtype)
    theirs, _ = parameters_and_gradients(0, dtype)
    run(low_bit_optimizer("adamw8bit", [{"params": ours}], CPU, **settings), ours, gradients)
    run(AdamW8bit(theirs, **settings), theirs, gradients)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_not_contiguous(name):
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(16, 32, 4, 4).to(memory_format=layout))
        optimizer = low_bit_optimizer(name, [{"params": [weight]}], CPU, lr=1e-2)
        run(optimizer, [weight], [[torch.randn(16, 32, 4, 4).to(memory_format=layout)] for _ in range(3)])
        results.append(weight.detach().contiguous())
    assert torch.equal(*results)


def state_bytes(trainer):
    tensors = flat(trainer.state_dict()["optimizer"]["state"])
    return {
        name: value.numel() * value.element_size() for name, value in tensors.items() if isinstance(value, torch.Tensor)
    }


@pytest.mark.parametrize(("name", "expected"), [("adamw8bit", 2.03), ("adamw4bit", 1.06), ("adamwfp8", 2.03)])
def test_bytes_of_state(name, expected):
    model = nn.Sequential(nn.Linear(256, 512, bias=False), nn.Linear(512, 256, bias=False))
    trainer = snugfit.prepare(model, loss=lambda output, _: output.mean(), optimizer=name, device="cpu")
    trainer.step((torch.ones(2, 256),))
    tables = 4 * 1024 if name == "adamw8bit" else 0  # state refers to the library's two shared tables, once a matrix
    share = (sum(state_bytes(trainer).values()) - tables) / sum(weight.numel() for weight in model.parameters())
    assert share == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_and_small_parameters_keep_full_precision(name):
    model = text_model()
    workload = Workload(no_decay=True)
    named, groups = dict(model.named_parameters()), parameter_groups(model.parameters(), workload)
    groups = optimizer_groups(model, named, groups, Recipe(optimizer=name), workload)
    kept = {id(weight) for group in groups if group[FULL_PRECISION] for weight in group["params"]}
    assert kept == {id(model.embedding.weight)} and model.head.weight is model.embedding.weight
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))

    plain, low = trainer_for("adamw", no_decay=True), trainer_for(name, no_decay=True)
    for batch in text_batches(1):
        plain.step(batch), low.step(batch)
    states = low.update.optimizer.state
    for weight in low.model.parameters():
        full = weight.numel() < 4096 or weight is low.model.embedding.weight
        moments = [value for value in states[weight].values() if isinstance(value, torch.Tensor) and value.dim()]
        assert any(value.dtype == torch.uint8 for value in moments) is not full
        assert not full or [value.dtype for value in moments] == [torch.float32] * 2
    for (key, one), two in zip(plain.model.named_parameters(), low.model.parameters(), strict=True):
        if one.numel() < 4096 or "embedding" in key:  # the first update does not depend on packing anywhere
            torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_where_nothing_is_packed_it_is_plain_adamw(name):
    """Learning rates, schedule, clipping, groups and betas mean what they mean for AdamW."""
    settings = {
        "lr": 0.02, "weight_decay": 0.3, "betas": (0.7, 0.9), "no_decay": True, "clip_norm": 0.05,
        "lr_schedule": "cosine", "warmup_steps": 2, "max_steps": 6,
    }  # fmt: skip

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 80))

    batches = [(inputs.float() / 80, labels) for inputs, labels in text_batches()]
    plain, low = trainer_for("adamw", model(), **settings), trainer_for(name, model(), **settings)
    for batch in batches:
        torch.testing.assert_close(plain.step(batch), low.step(batch), atol=1e-6, rtol=1e-5)
    for one, two in zip(plain.model.parameters(), low.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("name", "bound"), [("adamw8bit", 0.1), ("adamw4bit", 0.6), ("adamwfp8", 0.25)])
def test_weights_stay_near_plain_adamw(name, bound):
    """After 60 steps the distance to AdamW's weights is under a stated share of the way that AdamW went."""
    start = text_model()
    plain, low = trainer_for("adamw"), trainer_for(name)
    for batch in itertools.islice(itertools.cycle(text_batches()), 60):
        plain.step(batch), low.step(batch)
    ends = [
        torch.cat([weight.detach().flatten() for weight in m.parameters()]) for m in (start, plain.model, low.model)
    ]
    way, off = ends[1] - ends[0], ends[2] - ends[1]
    print(name, f"{float(off.norm() / way.norm()):.4f}")
    assert 0 < off.norm() / way.norm() < bound


UPDATES = {
    "whole": {},
    "step in backward": {"step_in_backward": True},
    "bf16": {"precision": "bf16-true"},
    "bf16, step in backward": {"precision": "bf16-true", "step_in_backward": True},
    "stochastic rounding": {"precision": "bf16-true", "stochastic_rounding": True},
    "loss scaling": {"precision": "16-mixed", "microbatch_size": 4},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recipe", UPDATES.values(), ids=UPDATES)
def test_resumes_bit_for_bit(name, recipe, tmp_path):
    """Through a checkpoint file, which holds plain tensors only."""
    batches = text_batches()
    settings = {"lr_schedule": "linear", "max_steps": 8, "no_decay": True}
    straight = trainer_for(name, recipe=recipe, **settings)
    for batch in batches[:3]:
        straight.step(batch)
    save_checkpoint(tmp_path / "state", straight.state_dict())
    other = trainer_for(name, recipe=recipe, **settings)
    other.step(batches[5])
    other.load_state_dict(load_checkpoint(tmp_path / "state"))
    for batch in batches[3:]:
        assert torch.equal(straight.step(batch), other.step(batch))
    assert_same(straight.state_dict(), other.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_whole_and_in_backward_are_one_run(name):
    batches = text_batches()
    whole, backward = trainer_for(name), trainer_for(name, recipe={"step_in_backward": True})
    for batch in batches[:2]:
        assert torch.equal(whole.step(batch), backward.step(batch))
    for source, recipe in ((whole, {"step_in_backward": True}), (backward, {})):
        taken = trainer_for(name, recipe=recipe)
        taken.load_state_dict(source.state_dict())
        source.step(batches[2]), taken.step(batches[2])
        for one, two in zip(source.model.parameters(), taken.model.parameters(), strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", [True, False], ids=["first step", "later step"])
def test_flag_of_a_bad_step_leaves_everything(name, first):
    weight = nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    update = ParameterUpdate(low_bit_optimizer(name, [{"params": [weight]}], CPU, lr=0.1), [weight])
    weight.grad = torch.ones_like(weight)
    if not first:
        update.step(torch.zeros(()))
    before = [weight.detach().clone(), {key: torch.as_tensor(value).clone() for key, value in update.state.items()}]
    weight.grad = torch.full_like(weight, torch.nan)
    update.step(torch.ones(()))
    assert torch.equal(weight, before[0]) and update.state.keys() == before[1].keys()
    assert all(torch.equal(torch.as_tensor(value), before[1][key]) for key, value in update.state.items())
    weight.grad = torch.ones_like(weight)
    update.step(torch.zeros(()))
    assert not torch.equal(weight, before[0]) and bool(torch.isfinite(weight).all())


@pytest.mark.parametrize("recipe", [{}, {"precision": "bf16-true", "stochastic_rounding": True}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_that_are_not_finite_change_nothing(name, recipe):
    trainer = trainer_for(name, recipe=recipe)
    batches = text_batches()
    trainer.step(batches[0])
    before = {
        key: value.clone() for key, value in flat(trainer.state_dict()).items() if isinstance(value, torch.Tensor)
    }
    hook = trainer.model.layers[0].weight.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(TrainingError):
        trainer.step(batches[1])
    hook.remove()
    assert_same(before, {k: v for k, v in flat(trainer.state_dict()).items() if isinstance(v, torch.Tensor)})


@pytest.mark.parametrize("name", NAMES)
def test_small_updates_are_not_lost_with_stochastic_rounding(name):
    """Fifty updates of 1e-5 on bf16 weights of 0.05, whose next neighbours are 2.4e-4 away."""
    weight = nn.Parameter(torch.full((64, 64), 0.05, dtype=torch.bfloat16))
    start = weight.detach().float().mean()

    def make(owned):
        return low_bit_optimizer(name, [{"params": [owned]}], CPU, lr=1e-5, weight_decay=0.0)

    rounded = RoundedUpdate(make(weight), [weight], 0, SimpleNamespace(generator=torch.Generator().manual_seed(0)))
    plain = nn.Parameter(weight.detach().clone())
    nearest = ParameterUpdate(make(plain), [plain])
    for _ in range(50):
        for update in (rounded, nearest):
            update.weight.grad = torch.ones_like(update.weight)
            update.step(None)
    assert bool((plain == weight.new_full((), 0.05)).all()), "rounding to nearest loses all of them"
    assert float(start - weight.detach().float().mean()) == pytest.approx(50e-5, rel=0.05)


def test_name_gives_the_workload_and_the_recipe():
    trainer = trainer_for("adamw8bit")
    assert (trainer.workload.optimizer, trainer.recipe.optimizer) == ("adamw", "adamw8bit")
    assert trainer.fidelity.level == "rounding" and "optimizer" in trainer.fidelity.reasons
    kept = trainer_for("adamw8bit", recipe={"optimizer": "sgd"})
    assert (kept.workload.optimizer, kept.recipe.optimizer) == ("adamw", "sgd")
    assert trainer_for("sgd", recipe={"optimizer": "adamw4bit"}).fidelity.level == "different"


def test_a_model_that_is_prepared_again_is_taken_over():
    batches, model = text_batches(), text_model()
    trainer_for("adamw8bit", model, {"step_in_backward": True}).step(batches[0])
    second = trainer_for("adamw4bit", model)
    assert float(second.step(batches[1])) > 0 and len(second.update.optimizer.state) == len(list(model.parameters()))


def test_state_of_another_kind_is_refused():
    batches = text_batches(1)
    trainers = {name: trainer_for(name) for name in ("adamw", *NAMES)}
    for trainer in trainers.values():
        trainer.step(batches[0])
    with pytest.raises(
        InputError, match="saved optimizer holds its state as full precision, and this recipe as adamw8bit"
    ):
        trainers["adamw8bit"].load_state_dict(trainers["adamw"].state_dict())
    with pytest.raises(InputError, match="holds its state as adamw4bit, and this recipe as full precision"):
        trainers["adamw"].load_state_dict(trainers["adamw4bit"].state_dict())
    backward = trainer_for("adamwfp8", recipe={"step_in_backward": True})
    with pytest.raises(InputError, match="holds its state as adamw4bit, and this recipe as adamwfp8"):
        backward.load_state_dict(trainers["adamw4bit"].state_dict())


def test_nothing_is_paged_on_cpu_and_that_is_said():
    batches = text_batches(2)
    with pytest.warns(SnugfitWarning, match="runs as adamw8bit: on cpu the state is in host memory already"):
        paged = trainer_for("paged-adamw8bit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the library's own warning would come at the first step
        paged.step(batches[0])
    plain = trainer_for("adamw8bit")
    plain.step(batches[0])
    plain.load_state_dict(paged.state_dict())
    assert torch.equal(plain.step(batches[1]), paged.step(batches[1]))


@pytest.mark.parametrize(("name", "library"), [("adamw8bit", "bitsandbytes"), ("adamw4bit", "torchao")])
def test_library_that_is_missing(name, library, monkeypatch):
    monkeypatch.delitem(sys.modules, f"snugfit.techniques.low_bit_optimizer.{library}", raising=False)
    for module in [module for module in sys.modules if module == library or module.startswith(f"{library}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=f"needs the library {library}, which does not import .*pip install"):
        make_optimizer(Recipe(optimizer=name), Workload(), [{"params": [nn.Parameter(torch.zeros(2))]}], CPU)


def test_libraries_are_imported_only_when_asked_for():
    code = (
        "import sys, snugfit.training.optimizers, snugfit.fake_device.library_kernels\n"
        "assert not {'torchao', 'bitsandbytes', 'torch._dynamo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_update_compiles_to_one_graph_for_all_lengths():
    """As on CUDA, but without generating code: whole graph, and no new one for another length."""
    from torch._dynamo.testing import CompileCounterWithBackend

    from snugfit.techniques.low_bit_optimizer import torchao as low_bit_torchao

    counter = CompileCounterWithBackend("aot_eager")
    torch.compiler.reset()
    compiled = torch.compile(low_bit_torchao.update_slice, fullgraph=True, dynamic=True, backend=counter)
    number_format = low_bit_torchao.FORMATS["adamw4bit"]
    tables = [torch.tensor(table) for table in low_bit_torchao.lookup_tables()]

    def arguments(values):
        generator = torch.Generator().manual_seed(values)
        moments = tuple(
            (
                torch.zeros(values // number_format.values_per_byte, dtype=torch.uint8),
                torch.zeros(values // number_format.block),
                table,
            )
            for table in tables
        )
        weight, gradient = (torch.randn(values, generator=generator) for _ in range(2))
        scalars = (torch.tensor(1.0), torch.tensor(1e-2), torch.tensor(0.1))
        return (weight, gradient, *moments, *scalars, 0.9, 0.999, 1e-8)

    graphs = []
    for values in (8192, 4096, 12288, 5120, 2**15, 16384 + 256):
        given, plain = arguments(values), arguments(values)
        compiled(*given)
        low_bit_torchao.update_slice(*plain)
        torch.testing.assert_close(given[0], plain[0], atol=1e-7, rtol=1e-6)
        assert torch.equal(given[2][0], plain[2][0]) and bool(given[2][0].any())
        graphs.append(counter.frame_count)
    assert graphs[0] >= 1 and len(set(graphs)) == 1, graphs


@pytest.mark.parametrize("name", NAMES)
def test_no_random_number_is_drawn(name):
    trainer = trainer_for(name)
    before = torch.get_rng_state()
    trainer.step(text_batches(1)[0])
    assert torch.equal(before, torch.get_rng_state())


def test_convolutions_train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 16, 4))
    images, labels = torch.randn(8, 3, 8, 8), torch.arange(8) % 4
    for name in NAMES:
        trainer = snugfit.prepare(
            model, loss=lambda output, batch: F.cross_entropy(output, batch[1]), optimizer=name, lr=3e-3, device="cpu"
        )
        losses = [float(trainer.step((images, labels))) for _ in range(8)]
        assert losses[-1] < losses[0]
