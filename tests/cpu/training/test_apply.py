"""`snugfit.apply`: loops with their own forward, backward and optimizers compute what they did, in the bytes foretold."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from own_loops import LOOPS, Layer
from small_models import MLP
from text_models import LLAMA, build
from torch import nn
from torch.func import functional_call

import snugfit
from snugfit import InputError, Recipe, RecipeError, SnugfitWarning
from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.techniques import LOOP_FIELDS, TECHNIQUES

EXACT = {
    "nothing": lambda loop: {},
    "checkpoint": lambda loop: {"checkpoint": loop.blocks},
    "offload all": lambda loop: {"offload_activations": "all"},
    "offload some": lambda loop: {"offload_activations": loop.blocks[:1]},
    "offload inputs": lambda loop: {"checkpoint": loop.blocks, "offload_activations": "checkpoints"},
    "selective": lambda loop: {"checkpoint": "selective"},
    "inplace": lambda loop: {"inplace": True},
}
ignored = pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")


@pytest.fixture(scope="module")
def plain():
    return {name: loop.run() for name, loop in LOOPS.items()}


@ignored
@pytest.mark.parametrize("fields", EXACT)
@pytest.mark.parametrize("name", LOOPS)
def test_losses_and_weights_are_those_of_the_plain_loop(plain, name, fields):
    loop = LOOPS[name]
    if fields == "selective" and name in ("wgan-gp", "maml"):
        with pytest.raises(InputError, match="Take checkpoint='all'"):
            loop.run(lambda model: snugfit.apply(model, Recipe(checkpoint="selective")))
        return
    losses, model = loop.run(lambda model: snugfit.apply(model, Recipe(**EXACT[fields](loop))))
    expected, other = plain[name]
    for found, wanted in zip(losses, expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[key], rtol=1e-9, atol=1e-12)


def measured(loop, recipe):
    events = AllocatorEvents()
    gc.collect()
    events.start()
    model = loop.model()
    applied = snugfit.apply(model, recipe)
    optimizer = loop.optimizer(model.parameters()) if loop.optimizer is not None else None
    step = loop.new_step()
    for number in range(2):
        batch = loop.batch(number)
        step(model, optimizer, batch)
        del batch
    events.stop()
    return events.peak_bytes, applied.peak_host_bytes


@pytest.mark.parametrize("fields", ["nothing", "checkpoint", "offload all"])
@pytest.mark.parametrize("name", LOOPS)
def test_predicted_bytes_are_the_measured_ones(pool, name, fields):
    loop = LOOPS[name]
    recipe = Recipe(**EXACT[fields](loop))
    measured(loop, recipe)
    peak_bytes, host_bytes = measured(loop, recipe)
    found = snugfit.estimate(
        loop.model,
        loop.batch(0),
        step=loop.new_step(),
        optimizer=loop.optimizer,
        recipe=recipe,
        device="cpu",
        pool=pool,
    )
    assert found.peak_allocated_bytes == pytest.approx(peak_bytes, rel=0.02)
    assert found.host_bytes == host_bytes
    assert found.recipe == recipe and found.fidelity.level == "exact" and found.steps == 2


def test_checkpointed_blocks_take_less(pool):
    loop = LOOPS["dcgan"]
    given = {"optimizer": None, "device": "rtx-4090", "pool": pool}
    peaks = [
        snugfit.estimate(
            loop.model, loop.batch(0).to("meta"), step=loop.new_step(), recipe=recipe, **given
        ).peak_allocated_bytes
        for recipe in (None, Recipe(), Recipe(checkpoint=loop.blocks))
    ]
    assert peaks[0] == peaks[1] and peaks[2] < 0.9 * peaks[1]


# -- the state of a block between forward and backward


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            Layer(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 6)) for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def lent(model, x):
    weights = {name: (2 * weight).detach().requires_grad_() for name, weight in model.named_parameters()}
    loss = functional_call(model, weights, (x,)).square().mean()
    return torch.autograd.grad(loss, list(weights.values()))


def lent_of_another(model, x):
    other = copy.deepcopy(model)
    for weight in other.parameters():
        weight.data.mul_(1.5)
    return torch.autograd.grad(
        functional_call(model, dict(other.named_parameters()), (x,)).sum(), list(other.parameters())
    )


def lent_statistics(model, x):
    model.eval()
    statistics = {name: value + 1 for name, value in model.named_buffers() if value.is_floating_point()}
    loss = functional_call(model, statistics, (x,)).square().mean()
    return torch.autograd.grad(loss, list(model.parameters()))


def evaluated_before_backward(model, x):
    loss = model(x).square().mean()
    model.eval()
    return torch.autograd.grad(loss, list(model.parameters()))


def frozen_before_backward(model, x):
    loss = model(x).square().mean()
    model.requires_grad_(False)
    loss.backward()
    return [weight.grad for weight in model.parameters()]


def several_passes_before_backward(model, x):
    loss = model(x).square().mean() + model(2 * x).mean() * model(x - 1).mean()
    return torch.autograd.grad(loss, list(model.parameters()))


def twice_backward(model, x):
    loss = model(x).square().mean()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return *first, *torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("fields", ["all", "selective", "checkpoints"])
@pytest.mark.parametrize(
    "use",
    [
        lent,
        lent_of_another,
        lent_statistics,
        evaluated_before_backward,
        frozen_before_backward,
        several_passes_before_backward,
        twice_backward,
    ],
)
def test_a_block_is_computed_again_as_it_was(use, fields):
    recipe = (
        Recipe(checkpoint="all", offload_activations=fields) if fields == "checkpoints" else Recipe(checkpoint=fields)
    )

    def used(wanted):
        torch.manual_seed(0)
        model = Blocks().double()
        snugfit.apply(model, wanted)
        return [*use(model, torch.randn(8, 6, dtype=torch.float64)), *model.buffers()]

    if use is twice_backward and fields == "selective":
        with pytest.raises(InputError, match="Take checkpoint='all'"):
            used(recipe)
        return
    results = used(Recipe()), used(recipe)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_weights_that_change_before_backward_are_said():
    model = Blocks()
    snugfit.apply(model, Recipe(checkpoint="all"))
    loss = model(torch.randn(4, 6)).sum()
    with torch.no_grad():
        model.blocks[1].parts[4].bias.add_(1)  # what plain torch keeps for backward does not change by it
    with pytest.raises(InputError, match=r"'parts.4.bias' of the checkpointed block 'blocks.1' was changed between"):
        loss.backward()


@pytest.mark.parametrize("fields", [{"checkpoint": "all"}, {"offload_activations": "all"}])
@pytest.mark.parametrize("used", [False, True])
def test_transforms_of_functions_are_refused_in_words(fields, used):
    model = Blocks()
    snugfit.apply(model, Recipe(**fields))
    if used:
        model(torch.randn(4, 6)).sum().backward()
    with pytest.raises(InputError, match=r"torch\.func\.grad, vmap and their kin"):
        torch.func.grad(lambda x: model(x).sum())(torch.randn(4, 6))


# -- what belongs to the loop


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"microbatch_size": 2}, "call backward"),
        ({"optimizer": "adamw8bit"}, "torchao"),
        ({"optimizer": "muon"}, "torch.optim.Muon"),
        ({"step_in_backward": True}, "register_post_accumulate_grad_hook"),
        ({"workers": 2, "init": "device"}, "2 problems"),
        ({"compile": "inductor"}, "model.compile"),
        ({"shard": "full"}, "snugfit.prepare"),
        ({"stochastic_rounding": True, "precision": "bf16-true"}, "rounds so"),
    ],
)
def test_fields_of_the_loop_are_refused_by_name(fields, words):
    for refuses in (
        lambda: snugfit.apply(MLP(), Recipe(**fields)),
        lambda: snugfit.estimate(MLP(), torch.zeros(2, 12), step=print, recipe=Recipe(**fields), device="cpu"),
    ):
        with pytest.raises(RecipeError, match=words) as caught:
            refuses()
        assert next(iter(fields)) in str(caught.value) or "2 problems" in words
        assert "belongs to the loop, which is yours here" in str(caught.value)


def test_each_technique_lives_in_the_model_or_says_whose_it_is():
    in_the_model = {row.name for row in TECHNIQUES if not row.in_the_loop}
    with_hooks = {row.name for row in TECHNIQUES if row.hooks}
    assert in_the_model <= with_hooks
    assert with_hooks - in_the_model == {"compile", "tensor_parallel"}
    assert not LOOP_FIELDS & {field for row in TECHNIQUES if not row.in_the_loop for field in row.fields}


@pytest.mark.parametrize(
    ("model", "recipe", "words"),
    [
        (lambda: MLP, Recipe(), "model is a type"),
        (MLP, "checkpoint", "recipe is a str"),
        (lambda: MLP().to("meta"), Recipe(), "meta device"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), Recipe(checkpoint="all"), "is lazy"),
        (MLP, Recipe(checkpoint="nonsense"), "nonsense"),
    ],
)
def test_what_cannot_be_is_said(model, recipe, words):
    with pytest.raises(InputError, match=words):
        snugfit.apply(model(), recipe)


# -- numbers, attention, losses


@pytest.mark.parametrize("whole", [True, False])
def test_autocast_reaches_parts_that_are_called_by_themselves(whole):
    model = MLP()
    snugfit.apply(model, Recipe(precision="bf16-mixed"))
    seen = []
    model.stem.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    output = model(torch.randn(2, 12)) if whole else model.stem(torch.randn(2, 12))
    assert output.dtype == torch.float32
    assert seen == [torch.bfloat16 if whole else torch.float32]
    assert not torch.is_autocast_enabled("cpu")
    F.binary_cross_entropy(output.sigmoid(), torch.ones_like(output)).backward()
    assert model.stem.weight.grad.dtype == torch.float32


def test_autocast_is_that_of_torch():
    torch.manual_seed(0)
    model, x = MLP(), torch.randn(4, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x).float()
    snugfit.apply(model, Recipe(precision="bf16-mixed"))
    assert torch.equal(model(x), expected)


def test_weights_in_16_bits_take_batches_in_32():
    model = MLP()
    applied = snugfit.apply(model, Recipe(precision="bf16-true"))
    assert model(torch.randn(2, 12)).dtype == torch.bfloat16
    with pytest.warns(SnugfitWarning, match="stays on the model: weights in 16 bits"):
        applied.remove()
    assert model.stem.weight.dtype == torch.bfloat16


def test_a_scaler_is_the_loops():
    with pytest.warns(SnugfitWarning, match=r"torch\.amp\.GradScaler"):
        snugfit.apply(MLP(), Recipe(precision="16-mixed"))


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_chunked_loss_meets_the_loss_of_the_loop(precision):
    words = torch.randint(0, 512, (2, 24), generator=torch.Generator().manual_seed(0))
    results = []
    for impl in ("full", "chunked"):
        torch.manual_seed(0)
        model = build(LLAMA, vocab_size=512)
        snugfit.apply(model, Recipe(loss_impl=impl, precision=precision))
        logits = model(words).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        results.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-3 if precision != "fp32" else 1e-6)


@pytest.mark.parametrize("fields", [{"attention": "eager", "checkpoint": "all"}, {"precision": "tf32"}])
@ignored
def test_switches_of_torch_need_a_context(fields):
    model = MLP()
    applied = snugfit.apply(model, Recipe(**fields))
    with pytest.raises(InputError, match=r"`with applied:` around forward and backward"):
        model(torch.randn(2, 12))
    with torch.no_grad():
        model(torch.randn(2, 12))
    with applied, applied:
        assert torch.backends.cuda.matmul.fp32_precision == ("tf32" if "precision" in fields else "none")
        model(torch.randn(2, 12)).sum().backward()
    assert torch.backends.cuda.matmul.fp32_precision == "none"


# -- off again


@ignored
@pytest.mark.parametrize(
    "fields",
    [
        {"checkpoint": "all"},
        {"offload_activations": "all"},
        {"inplace": True},
        {"precision": "bf16-mixed"},
        {"attention": "eager"},
        {"loss_impl": "chunked"},
    ],
)
def test_remove_gives_the_model_back(fields):
    model = (
        build(LLAMA, vocab_size=512)
        if "inplace" not in fields
        else nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    )
    x = torch.randint(0, 512, (2, 8)) if "inplace" not in fields else torch.randn(2, 4)

    def state():
        own = [(module, sorted(vars(module)), getattr(module, "inplace", None)) for module in model.modules()]
        hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
        output = model(x)
        return own, hooks, getattr(getattr(model, "config", None), "_attn_implementation", None), output

    *before, expected = state()
    applied = snugfit.apply(model, Recipe(**fields))
    applied.remove()
    *after, output = state()
    assert after == before
    pairs = (output, expected) if isinstance(output, torch.Tensor) else (output.logits, expected.logits)
    assert torch.equal(*pairs)
    for use in (applied.remove, applied.__enter__):
        with pytest.raises(InputError, match="not on the model any more"):
            use()


def test_who_comes_last_has_the_model():
    model = MLP()
    first = snugfit.apply(model, Recipe(checkpoint="all"))
    second = snugfit.apply(model, Recipe(offload_activations="all"))
    with pytest.raises(InputError, match="not on the model any more"):
        first.remove()
    trainer = snugfit.prepare(model, Recipe(), loss=lambda output, batch: output.sum(), device="cpu")
    with pytest.raises(InputError, match="not on the model any more"):
        second.remove()
    snugfit.apply(nn.ModuleList([model]), Recipe())
    with pytest.raises(InputError, match="prepared again"):
        trainer.step(torch.randn(2, 12))


@pytest.mark.parametrize("inplace", [False, True])
def test_a_part_that_is_called_alone_is_computed_as_within_the_model(inplace):
    """An encoder of two, called for an index of all items; whatever else surrounds the model."""
    model = nn.Sequential(nn.Sequential(nn.Linear(12, 8), nn.ReLU()), nn.Linear(8, 4))
    snugfit.apply(model, Recipe(precision="bf16-mixed", inplace=inplace))
    model[0][0].register_forward_hook(lambda *call: dtypes.append(call[2].dtype))
    dtypes = []
    model(torch.randn(2, 12)).sum().backward()
    model[0](torch.randn(2, 12))
    assert dtypes == [torch.bfloat16] * 2


def test_a_copy_is_a_model_of_its_own():
    """A target network, an average of weights."""
    model = MLP()
    snugfit.apply(model, Recipe(checkpoint="all", precision="bf16-mixed"))
    target = copy.deepcopy(model)
    x = torch.randn(2, 12)
    before = model(x)
    with torch.no_grad():
        for weight in target.parameters():
            weight.zero_()
    assert torch.equal(model(x), before) and not target(x).any()
    target(x).sum().backward()
    assert target.head.bias.grad is not None and model.head.bias.grad is None


def test_adapters_go_on_before_the_optimizer_is_made(pool):
    pytest.importorskip("peft")
    recipe = Recipe(adapter="lora", adapter_rank=2)

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    model = MLP()
    given = {"step": step, "recipe": recipe, "device": "cpu", "pool": pool}
    with pytest.raises(InputError, match="Give a function from parameters to an optimizer"):
        snugfit.estimate(model, torch.zeros(4, 12), optimizer=torch.optim.AdamW(model.parameters()), **given)
    found = snugfit.estimate(model, torch.zeros(4, 12), optimizer=torch.optim.AdamW, **given)
    assert found.fidelity.level == "different"
    plain = snugfit.estimate(model, torch.zeros(4, 12), optimizer=torch.optim.AdamW, **{**given, "recipe": None})
    assert 0 < found.anatomy_bytes["optimizer_state"] < plain.anatomy_bytes["optimizer_state"]
    applied = snugfit.apply(model, recipe)
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer, torch.randn(4, 12))
    assert len(optimizer.state) == sum(weight.requires_grad for weight in model.parameters())
    with pytest.warns(SnugfitWarning, match="merge_adapter"):
        applied.remove()
