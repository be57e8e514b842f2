"""Layers cut among processes against one process: the same losses and weights, and refusals in words."""

import pytest
import tensor_parallel_tasks
import torch
from rank_processes import Ranks
from tensor_parallel_tasks import make_batches, trained

import snugfit
from snugfit.training.checkpoint import save_checkpoint
from snugfit.training.checkpoint_parts import Parts

TWO, SIZES = {"tensor_parallel": 2}, (8, 8, 8)
CLIPPED = {"clip_norm": 0.1}
CASES = {
    "decoder": ("decoder", {}, CLIPPED),
    "vit": ("vit", {}, CLIPPED),
    "gpt2": ("gpt2", {}, CLIPPED),
    "llama": ("llama", {}, CLIPPED),
    "qwen": ("qwen", {}, CLIPPED),
    "microbatches": ("llama", {"microbatch_size": 3}, CLIPPED),
    "checkpoint": ("decoder", {"checkpoint": "all"}, CLIPPED),
    "selective": ("decoder", {"checkpoint": "selective"}, CLIPPED),
    "step_in_backward": ("qwen", {"step_in_backward": True}, {}),
    "offload_optimizer": ("decoder", {"offload_optimizer": True}, CLIPPED),
    "offload_activations": ("decoder", {"offload_activations": "all"}, CLIPPED),
    "for_loop": ("decoder", {"optimizer_impl": "for-loop"}, CLIPPED),
    "chunked_loss": ("llama", {"loss_impl": "chunked"}, {}),
    "compile": ("decoder", {"compile": "aot_eager"}, CLIPPED),
    "sgd": ("decoder", {}, {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01}),
    "freeze": ("decoder", {}, {"freeze": "blocks.0.attention*"}),
}


@pytest.fixture(scope="module")
def two():
    ranks = Ranks(2, "tensor_parallel_tasks")
    yield ranks
    ranks.end()


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4, "tensor_parallel_tasks")
    yield ranks
    ranks.end()


def _check(ranks, name, fields, settings, sizes=SIZES, *, dtype=torch.float64, close=1e-9):
    """Losses and weights of every rank are those of one process by the same recipe, without what is cut or shared out."""
    settings = {"batch_size": sizes[0], **settings}
    found = ranks.do(tensor_parallel_tasks.train, name, fields, settings, sizes, dtype)
    several = ("tensor_parallel", *snugfit.techniques.shard.TECHNIQUE.fields)
    alone = {field: value for field, value in fields.items() if field not in several}
    trainer, losses = trained(name, alone, settings, make_batches(name, sizes, dtype), dtype)
    weights = dict(trainer.model.named_parameters())
    for rank_losses, rank_weights, held in found:
        assert rank_losses == pytest.approx(losses, abs=close, rel=0)
        assert rank_weights.keys() == weights.keys()
        worst = max((rank_weights[key] - weight).abs().max().item() for key, weight in weights.items())
        assert worst < close, worst
        assert held < 0.85 * sum(weight.numel() for weight in weights.values() if weight.requires_grad)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_that_cut_layers_train_as_one(two, case):
    name, fields, settings = CASES[case]
    _check(two, name, {**TWO, **fields}, settings)


@pytest.mark.parametrize(
    ("name", "fields", "settings", "sizes"),
    [
        ("llama", {}, CLIPPED, SIZES),
        ("llama", {"shard": "full", "microbatch_size": 1}, CLIPPED, (7, 7, 3)),
        ("qwen", {"shard": "full", "checkpoint": "all"}, CLIPPED, (8, 8, 1)),
        ("decoder", {"shard": "gradients"}, CLIPPED, SIZES),
        ("decoder", {"microbatch_size": 1, "reduce_gradients": "batch"}, CLIPPED, (8, 8, 5)),
        ("gpt2", {"shard": "full", "offload_parameters": "all"}, {}, SIZES),
        ("decoder", {"shard": "full", "step_in_backward": True}, {}, SIZES),
        ("decoder", {"tensor_parallel": 4}, CLIPPED, SIZES),
    ],
    ids=str,
)
def test_four_processes_share_the_batch_and_cut_layers(four, name, fields, settings, sizes):
    _check(four, name, {**TWO, **fields}, settings, sizes)


def test_what_cannot_be_cut_is_refused_in_words(two, four):
    for ranks, name, fields, settings, words in (
        (two, "decoder", {"tensor_parallel": 4}, {}, "does not divide 2 GPUs into groups; give a divisor of 2"),
        (four, "llama", {"tensor_parallel": 4}, {}, "into equal parts; give 2."),
        (four, "vit", {**TWO, "shard": "hybrid:3"}, {}, "give a divisor of 4 / 2"),
        (four, "decoder", TWO, {"batch_size": 1}, "each group needs at least one sample"),
        (two, "decoder", TWO, {"optimizer": "adafactor"}, "looks at whole matrices"),
        (two, "decoder", {**TWO, "adapter": "lora"}, {}, "an adapter's matrices"),
        (two, "decoder", {**TWO, "shard": "full", "offload_parameters": "all"}, {}, "leaves one group"),
    ):
        said = ranks.do(tensor_parallel_tasks.message, name, fields, settings)
        assert all(words in one for one in said), (words, said)


@pytest.mark.parametrize("fields", [TWO, {**TWO, "shard": "full"}], ids=str)
def test_runs_are_saved_and_go_on_in_any_number_of_processes(four, tmp_path, fields):
    sizes, plain = (8, 8, 8), {"batch_size": 8}
    batches = make_batches("llama", sizes)
    alone, _ = trained("llama", {}, plain, batches[:-1])
    save_checkpoint(tmp_path / "whole", {"trainer": alone.state_dict()})
    alone.step(batches[-1])
    expected = alone.model.state_dict()
    (found, *others) = four.do(
        tensor_parallel_tasks.go_on, "llama", fields, sizes, str(tmp_path / "whole"), str(tmp_path / "parts")
    )
    assert others == [None] * 3
    for weights in found:
        assert weights.keys() == expected.keys()
        assert max((weights[key] - value).abs().max().item() for key, value in expected.items()) < 1e-9
    assert all(torch.equal(found[0][key], found[1][key]) for key in expected)
    one, _ = trained("llama", {}, plain, [])
    one.load_state_dict(Parts(one).load(tmp_path / "parts")["trainer"])
    one.step(batches[-1])
    assert all((one.model.state_dict()[key] - value).abs().max().item() < 1e-9 for key, value in expected.items())
