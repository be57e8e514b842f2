"""Activation checkpointing: what is kept, what is computed again, which modules are blocks."""

import collections
import copy
import functools
import pickle

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import snugfit
from snugfit import InputError, Recipe, SnugfitWarning
from snugfit.techniques.base import WrappedForward
from snugfit.techniques.blocks import chosen_blocks, find_blocks
from snugfit.techniques.checkpoint.checkpointed import Checkpointed


def prepare(model, loss=cross_entropy, **fields):
    return snugfit.prepare(model, Recipe(**fields), loss=loss, optimizer="sgd", lr=0.1, device="cpu")


def wrapped(model):
    forwards = {name: vars(module).get("forward") for name, module in model.named_modules()}
    return [name for name, forward in forwards.items() if isinstance(getattr(forward, "around", None), Checkpointed)]


class Block(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, *, shift=0.0):
        return torch.tanh(self.linear(x) + shift), x.mean()


class Chain(nn.Module):
    """Blocks with keyword arguments and tuple outputs."""

    def __init__(self, blocks=3):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x):
        side = 0.0
        for number, layer in enumerate(self.layers):
            x, mean = layer(x, shift=x.sum(1, keepdim=True) * number)
            side = side + mean
        return x.sum() + side


class Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function] += 1
        return function(*args, **(kwargs or {}))


def operators(trainer, batch):
    trainer.step(batch)
    with Counter() as counter:
        trainer.step(batch)
    return counter.counts


def saved_bytes(model, batch, grad=True):
    """Bytes that autograd keeps between forward and backward, each storage once, parameters left out."""
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = cross_entropy(model(batch[0]), batch)
    size = sum(size for size, _ in kept.values())
    loss.backward()
    model.zero_grad()
    return size


def test_sequences_are_blocks_where_nothing_else_is():
    def stage(width):
        return nn.Sequential(nn.Linear(width, width), nn.ReLU())

    model = nn.ModuleDict({"down": nn.ModuleList([stage(4), stage(4)]), "up": nn.ModuleList([stage(4)])})
    assert list(find_blocks(model)) == ["down.0", "down.1", "up.0"]
    model["blocks"] = nn.ModuleList([Block(4), Block(4)])
    assert list(find_blocks(model)) == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize("choice", ["all", "selective", "every:2", "blocks:2"])
def test_batch_norm_statistics_are_those_of_plain_training(choice):
    batches = make_batches("cnn", 6, 3, torch.float32)
    states = []
    for recipe in ({}, {"checkpoint": choice}):
        model = make_model("cnn", torch.float32)
        trainer = prepare(model, **recipe)
        for batch in batches:
            trainer.step(batch)
        states.append({name: value for name, value in model.state_dict().items() if "running" in name or "num" in name})
    assert len(states[0]) == 18
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert int(states[0]["stages.0.layers.1.num_batches_tracked"]) == 3


def test_instance_norm_with_cumulative_statistics():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.InstanceNorm2d(3, track_running_stats=True, affine=True)
            self.batch_norm, self.last = nn.BatchNorm2d(3, momentum=None), nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return self.last(self.batch_norm(self.norm(self.conv(x))).relu())

    plain = nn.Sequential(Normed(), Normed())
    checkpointed = copy.deepcopy(plain)
    for model, fields in ((plain, {}), (checkpointed, {"checkpoint": "all"})):
        trainer = prepare(model, loss=lambda output, batch: output.square().mean(), **fields)
        for seed in range(2):
            trainer.step(torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed)))
    for (name, one), other in zip(plain.state_dict().items(), checkpointed.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_dropout_masks_are_the_same():
    results = []
    for fields in ({}, {"checkpoint": "all"}, {"checkpoint": "selective"}):
        model = make_model("vit")
        trainer = prepare(model, **fields)
        torch.manual_seed(1)
        trainer.step(make_batches("vit", 6, 1)[0])
        results.append((torch.cat([weight.flatten() for weight in model.parameters()]), torch.get_rng_state()))
    for weights, state in results[1:]:
        assert torch.allclose(weights, results[0][0], rtol=0, atol=1e-14)
        assert torch.equal(state, results[0][1])


def test_tuple_outputs_and_keyword_arguments():
    torch.manual_seed(0)
    plain = Chain().double()
    checkpointed = copy.deepcopy(plain)
    x = torch.randn(4, 6, dtype=torch.float64)
    for model, fields in ((plain, {}), (checkpointed, {"checkpoint": "all"})):
        prepare(model, loss=None, **fields).step(x)
    for one, other in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-14)
    assert wrapped(checkpointed) == ["layers.0", "layers.1", "layers.2"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("all", ["blocks.0", "blocks.1", "blocks.2"]),
        ("every:1", ["blocks.0", "blocks.1", "blocks.2"]),
        ("every:2", ["blocks.0", "blocks.2"]),
        ("every:9", ["blocks.0"]),
        ("blocks:2", ["blocks.0", "blocks.1"]),
        ("blocks:3", ["blocks.0", "blocks.1", "blocks.2"]),
        ("blocks.1,head", ["blocks.1", "head"]),
    ],
)
def test_which_blocks(choice, names):
    model = make_model("mlp")
    prepare(model, checkpoint=choice)
    assert wrapped(model) == names
    assert list(model.state_dict()) == list(make_model("mlp").state_dict())


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("blocks:4", "the model has 3 blocks"),
        ("block.0", r"no module named 'block.0'; did you mean 'blocks.0'"),
        ("blocks,blocks.1", "lies inside"),
    ],
)
def test_what_cannot_be_chosen(choice, message):
    with pytest.raises(InputError, match=message):
        prepare(make_model("mlp"), checkpoint=choice)


def test_no_repeats_is_refused_with_the_reason():
    model = nn.Sequential(collections.OrderedDict(trunk=Block(), head=nn.Linear(6, 2)))
    with pytest.raises(InputError, match=r"no repeated blocks in Sequential.*checkpoint='trunk'"):
        prepare(model, checkpoint="all")
    assert not wrapped(model)


def test_nested_repeats_give_the_outermost():
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x):
            for block in self.inner:
                x = block(x)[0]
            return x

    model = nn.Sequential(nn.Sequential(Stage(), Stage()), Stage())
    assert list(find_blocks(model)) == ["0.0", "0.1", "1"]


def test_shared_blocks_are_wrapped_once_and_train_right():
    model = make_model("tied")
    prepare(model, checkpoint="all")
    assert wrapped(model) == ["blocks.0", "blocks.1"]
    assert not isinstance(model.blocks[0].forward.forward, WrappedForward)


def test_blocks_of_known_architectures():
    import torchvision.models as zoo

    with torch.device("meta"):
        assert len(find_blocks(zoo.resnet18())) == 8
        assert len(find_blocks(zoo.vit_b_16())) == 12
        assert len(find_blocks(zoo.inception_v3(init_weights=False))) >= 9
        with pytest.raises(InputError, match="found no repeated blocks in VGG"):
            chosen_blocks(zoo.vgg11(), "all", field="checkpoint")


def test_models_that_checkpoint_themselves_are_not_wrapped_twice():
    import timm
    from transformers import BertConfig, BertModel

    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=2, num_classes=5
    )
    vit.set_grad_checkpointing()
    bert = BertModel(
        BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=9)
    )
    bert.gradient_checkpointing_enable()
    for model in (vit, bert):
        with pytest.warns(SnugfitWarning, match="already checkpoints itself"):
            prepare(model, checkpoint="all")
        assert not wrapped(model)
        with pytest.raises(InputError, match=r"already checkpoints itself .*=False"):
            prepare(model, checkpoint="blocks:1")
    vit.set_grad_checkpointing(False)
    prepare(vit, checkpoint="all")
    assert wrapped(vit) == ["blocks.0", "blocks.1"]


def test_saved_bytes_fall_block_by_block():
    batch = make_batches("mlp", 64, 1)[0]
    sizes = {}
    for choice in ("none", "blocks:1", "blocks:2", "all"):
        model = make_model("mlp")
        prepare(model, checkpoint=choice)
        sizes[choice] = saved_bytes(model, batch)
    assert sizes["none"] > sizes["blocks:1"] > sizes["blocks:2"] > sizes["all"]
    assert sizes["all"] < sizes["none"] / 2.5


def test_selective_keeps_matmuls_and_recomputes_the_rest():
    aten, batch = torch.ops.aten, make_batches("mlp", 6, 1)[0]
    plain = operators(prepare(make_model("mlp")), batch)
    selective = operators(prepare(make_model("mlp"), checkpoint="selective"), batch)
    whole = operators(prepare(make_model("mlp"), checkpoint="all"), batch)
    assert plain[aten.addmm.default] == 8 and selective[aten.addmm.default] == 8
    assert plain[aten.relu.default] == 3 and selective[aten.relu.default] == 6
    assert whole[aten.addmm.default] > 8 and whole[aten.relu.default] == 6
    convolutions = operators(prepare(make_model("cnn"), checkpoint="selective"), make_batches("cnn", 6, 1)[0])
    assert convolutions[aten.convolution.default] == 7


class Overwriting(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu_(self.linear(x))


def test_a_kept_result_that_the_code_overwrites_is_told():
    batch = make_batches("mlp", 6, 1, torch.float32)[0]
    width = batch[0].shape[1]
    model = nn.Sequential(Overwriting(width), Overwriting(width), nn.Linear(width, 5))
    with pytest.raises(
        InputError, match=r"the code of block '\d' overwrites one of them in place. Take checkpoint='all'"
    ):
        prepare(model, checkpoint="selective").step(batch)
    prepare(model, checkpoint="all").step(batch)


class CutUnseen(Overwriting):
    def forward(self, x):
        first, second = self.linear(x).unsafe_chunk(2, 1)
        return x + torch.cat([first.sigmoid_(), second], 1)


def test_a_kept_result_that_may_be_overwritten_unseen_is_told():
    batch = make_batches("mlp", 6, 1, torch.float32)[0]
    width = batch[0].shape[1]
    model = nn.Sequential(CutUnseen(width), CutUnseen(width), nn.Linear(width, 5))
    with pytest.raises(InputError, match="unsafe_chunk"):
        prepare(model, checkpoint="selective").step(batch)
    prepare(model, checkpoint="all").step(batch)


def test_without_gradients_nothing_is_wrapped_around():
    model = make_model("mlp")
    trainer = prepare(model, checkpoint="all")
    batch = make_batches("mlp", 6, 1)[0]
    with Counter() as counter, torch.no_grad():
        model.eval()(batch[0])
    assert counter.counts[torch.ops.aten.addmm.default] == 8
    assert not trainer.evaluate_batch(batch).requires_grad


def test_a_block_in_evaluation_mode_stays_there():
    model = make_model("cnn", torch.float32)
    trainer = prepare(model, checkpoint="all")
    model.stages[0].eval()
    before = model.stages[0].layers[1].running_mean.clone()
    trainer.step(make_batches("cnn", 6, 1, torch.float32)[0])
    assert torch.equal(before, model.stages[0].layers[1].running_mean)
    assert not model.stages[0].training and model.stages[1].training


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpoint": "all"},
        {"checkpoint": "selective"},
        {"checkpoint": "all", "offload_activations": "checkpoints"},
        {"offload_activations": "blocks.0"},
    ],
)
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_prepared_model_work(fields, copier):
    model, batch = make_model("mlp"), make_batches("mlp", 128, 1)[0]
    prepare(model, **fields).step(batch)
    twin = copier(model)
    for one in (model, twin):
        cross_entropy(one(batch[0]), batch).backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert one is not other and torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("kernels", ["eager", "sdpa"])
def test_recomputed_attention_takes_the_kernels_of_the_forward_pass(kernels):
    model = make_model("vit", torch.float32)
    for module in model.modules():  # without dropout the CPU has a fused kernel that `eager` must not take, twice
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    trainer = prepare(model, checkpoint="all", attention=kernels)
    counts = operators(trainer, make_batches("vit", 4, 1, torch.float32)[0])
    fused = counts[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]
    layers = sum(isinstance(module, nn.MultiheadAttention) for module in model.modules())
    assert layers > 1 and fused == {"eager": 0, "sdpa": 2 * layers}[kernels]


class EachBlockTwice(nn.Module):
    """Two blocks, each gone through twice, as in ALBERT: autocast would cast their weights in the first pass only."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in (*self.blocks, *self.blocks):
            x, _ = block(x)
        return x


@pytest.mark.parametrize("build", [functools.partial(make_model, "vit", torch.float32), EachBlockTwice])
def test_selective_checkpoints_under_autocast_from_the_first_step_on(build):
    """The trial before the first pass leaves nothing cast behind, which would be cast again in backward."""
    outcomes = []
    for checkpoint in ("none", "selective"):
        torch.manual_seed(0)
        model = build()
        trainer = snugfit.prepare(
            model,
            Recipe(precision="bf16-mixed", checkpoint=checkpoint),
            loss=lambda output, batch: output.square().mean(),
        )
        torch.manual_seed(1)
        batch = make_batches("vit", 4, 1, torch.float32)[0] if build is not EachBlockTwice else torch.randn(4, 6)
        losses = [trainer.step(batch).item() for _ in range(2)]
        trainer.finish()
        outcomes.append((losses, [weight.detach().clone() for weight in model.parameters()]))
    (plain, plain_weights), (selective, weights) = outcomes
    assert plain == selective
    # Gradients of a block that ran twice are added up in float32, where plain autocast adds those of one 16-bit cast.
    rounding = 1e-3 if build is EachBlockTwice else 0
    for one, other in zip(plain_weights, weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=rounding)
