"""Layers cut among processes against one process: the same losses and weights, and refusals in words."""

import re

import pytest
import tensor_parallel_tasks
import timm
import torch
import transformers
from rank_processes import Ranks
from tensor_parallel_tasks import make_batches, trained

import snugfit
from snugfit.recording.operator_run import Collective
from snugfit.runs.checkpoint import save_checkpoint
from snugfit.runs.checkpoint_parts import Parts
from snugfit.simulator.given_training import simulate_training
from snugfit.techniques.tensor_parallel.cuts import cuts_of
from snugfit.techniques.tensor_parallel.pairs import any_pairs_in, pairs_in

TWO, SIZES = {"tensor_parallel": 2}, (8, 8)
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


@pytest.fixture
def eight():
    ranks = Ranks(8)
    yield ranks
    ranks.end()


def _check(ranks, name, fields, settings, sizes=SIZES, *, dtype=torch.float64, close=1e-9):
    """Losses and weights of every rank are those of one process by the same recipe, without what is cut or shared out."""
    settings = {"batch_size": sizes[0], **settings}
    found = ranks.do(tensor_parallel_tasks.train, name, fields, settings, sizes, dtype)
    _hold(found, name, fields, settings, sizes, dtype=dtype, close=close)


def _hold(found, name, fields, settings, sizes, *, dtype=torch.float64, close=1e-9):
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
        ("llama", {"shard": "full", "microbatch_size": 1}, CLIPPED, (7, 3)),
        ("qwen", {"shard": "full", "checkpoint": "all"}, CLIPPED, (8, 1)),
        ("decoder", {"shard": "gradients"}, CLIPPED, SIZES),
        ("decoder", {"microbatch_size": 1, "reduce_gradients": "batch"}, CLIPPED, (8, 5)),
        ("gpt2", {"shard": "full", "offload_parameters": "all"}, {}, SIZES),
        ("decoder", {"shard": "full", "step_in_backward": True}, {}, SIZES),
        ("decoder", {"tensor_parallel": 4}, CLIPPED, SIZES),
    ],
    ids=str,
)
def test_four_processes_share_the_batch_and_cut_layers(four, name, fields, settings, sizes):
    _check(four, name, {**TWO, **fields}, settings, sizes)


def test_trainers_use_the_same_groups_until_the_processes_meet_anew(two):
    """Layouts that torch has worked out name groups, which are others then."""
    settings = {"batch_size": SIZES[0], **CLIPPED}
    found = two.do(tensor_parallel_tasks.train_anew, "decoder", TWO, settings, SIZES)
    assert [forgotten for forgotten, _ in found] == [[0, 1]] * 2
    _hold([one for _, one in found], "decoder", TWO, settings, SIZES)


def test_eight_processes_share_out_in_groups_what_is_cut(eight):
    """Two groups of two, each of which is two that cut layers: the fewest that are different in all three."""
    _check(eight, "llama", {**TWO, "shard": "hybrid:2", "microbatch_size": 1, "checkpoint": "all"}, CLIPPED, (8, 5))


@pytest.mark.parametrize("fields", [{}, {"checkpoint": "all"}, {"compile": "aot_eager"}], ids=str)
def test_masks_differ_where_layers_are_cut_and_are_equal_where_they_are_whole(two, fields):
    (one, weights), (other, others) = two.do(tensor_parallel_tasks.masks, {**TWO, **fields})
    # The lists hold what one pass has put into them, also where blocks are computed again.
    assert len(one["inside"]) == len(other["inside"]) == 2 * 2 and len(one["outside"]) >= 2 * 2
    assert all(
        0.4 < (mine == its).float().mean() < 0.6 for mine, its in zip(one["inside"], other["inside"], strict=True)
    )
    assert len(one["outside"]) == len(other["outside"]) and all(map(torch.equal, one["outside"], other["outside"]))
    first, last = one["outside"][0], one["outside"][-1]
    assert 0.4 < (first == last).float().mean() < 0.6
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_a_block_that_runs_again_drops_the_same(two):
    plain, again = (two.do(tensor_parallel_tasks.masks, {**TWO, "checkpoint": kind}) for kind in ("none", "all"))
    for (_, weights), (_, others) in zip(plain, again, strict=True):
        assert all(torch.allclose(weights[name], others[name], rtol=0, atol=1e-12) for name in weights)


def test_processes_with_the_same_samples_must_be_seeded_alike(two):
    said = two.do(tensor_parallel_tasks.masks, TWO, 1)
    assert all("Seed them alike: torch.manual_seed(seed + rank // 2)" in one for one in said), said


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


class _Halves(torch.nn.Module):
    """Layers that feed each other: with what lies between them, by one matrix for both, in the same weights."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(8 if kind == "fused" else 16, 8)
        self.norm, self.kind = torch.nn.LayerNorm(16), kind

    def forward(self, x):
        wide = self.first(x)
        if self.kind == "fused":
            one, other = wide.chunk(2, -1)
            return x + self.second(torch.relu(one) * other)
        if self.kind == "leaks":
            return x + self.second(torch.relu(wide)) + wide.sum(-1, keepdim=True)
        return x + self.second(self.norm(wide) if self.kind == "norm" else torch.softmax(wide, -1))


@pytest.mark.parametrize("kind", ["norm", "softmax", "fused", "leaks"])
def test_layers_whose_parts_do_not_come_out_as_parts_stay_whole(kind):
    assert pairs_in(_Halves(kind), 2) == any_pairs_in(_Halves(kind)) == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_counts_of_heads_are_divided_with_them_whether_there_are_weights_or_not(device):
    attention, mlp = pairs_in(tensor_parallel_tasks.Block().to(device), 4)
    assert attention.columns == ("attention.q", "attention.k", "attention.v") and attention.row == "attention.out"
    assert set(attention.counts) == {("attention", "heads", 1), ("attention", "width", 6)}
    assert (mlp.columns, mlp.row, mlp.counts) == (("gate", "up"), "down", ())


def test_blocks_of_libraries_are_found_by_trying():
    with torch.device("meta"):
        bert = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2))
        fused = timm.create_model("vit_tiny_patch16_224")
    found = cuts_of(bert, 2)
    assert len(found.styles) == 2 * 6 and found.whole == () == found.counts
    found = cuts_of(fused, 2)
    assert found.whole == ("attn.qkv", "attn.proj") and len(found.styles) == 2 * 12


@pytest.mark.parametrize(
    ("model", "degree", "words"),
    [
        (lambda: tensor_parallel_tasks.Decoder(heads=6), 4, "into equal parts; give 2, 3, 6."),
        (tensor_parallel_tasks.MODELS["llama"], 4, "into equal parts; give 2."),
        (
            lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()),
            2,
            "finds nothing to cut in Sequential",
        ),
        (lambda: _Planned({"blocks.*.first": "packed_colwise"}), 2, "asks for packed_colwise, which is not"),
    ],
)
def test_models_that_cannot_be_cut_so_are_refused(model, degree, words):
    with pytest.raises(snugfit.InputError, match=re.escape(words)):
        cuts_of(model(), degree)


class _Planned(torch.nn.Module):
    def __init__(self, plan):
        super().__init__()
        self.tp_plan = plan
        self.blocks = torch.nn.ModuleList(_Halves("softmax") for _ in range(2))


def test_a_simulated_process_takes_down_what_layers_add_up(pool):
    trained_on = make_batches("decoder", (8,))[0]
    batch = tuple(
        tensor.float().to("meta") if tensor.is_floating_point() else tensor.to("meta") for tensor in trained_on
    )
    arguments = {"loss": tensor_parallel_tasks.cross_entropy, "batch_size": 8, "gpus": 4}
    recording = simulate_training(
        tensor_parallel_tasks.build("decoder", torch.float32), snugfit.Recipe(**TWO), batch,
        arguments=arguments, evaluate=False, pool=pool,
    )  # fmt: skip
    added = [Collective(*run.collective) for run in recording.trace.runs if run.collective and run.phase == "forward"]
    inside = [one for one in added if one.kind == "all_reduce" and one.ranks == 2 and one.nbytes == 4 * 7 * 24 * 4]
    assert len(inside) == 2 * 2 * 2  # steps, blocks, pairs
    back = [Collective(*run.collective) for run in recording.trace.runs if run.collective and run.phase == "backward"]
    # What q, k and v, and gate and up, give for the gradient of their input is added up once for all of them.
    assert len([one for one in back if one.ranks == 2 and one.nbytes == inside[0].nbytes]) == len(inside)
