"""Recipes as lines of a script, in both styles; text only, what they do is simulated elsewhere."""

import dataclasses

import pytest

from snugfit.errors import InputError
from snugfit.recipe import Recipe
from snugfit.simulator.script_lines import Lines
from snugfit.simulator.script_seen import Place, ScriptSeen, SeenModel, SeenOptimizer

HERE = Place(file="train.py", line=3)
BEFORE = "import torch\nmodel = net()\nopt = optim.AdamW(model.parameters(), foreach=True)\n"
MODEL = SeenModel(
    place=HERE,
    name="model",
    blocks={name: name for name in ("body.0", "body.1", "tail.0.x", "tail.1.x")},
    batch_norm=False,
    own_checkpoints=False,
)
ADAMW = SeenOptimizer(kind="AdamW", algorithm="adamw", place=HERE, settings=("foreach",))


def lines_of(recipe, *models, style="snugfit", fused=False, optimizer=ADAMW):
    seen = ScriptSeen(models=models or (MODEL,), optimizers=(optimizer,))
    lines = Lines(seen=seen, texts={"train.py": BEFORE}, style=style, fused=fused)
    changed = lines.changed(Recipe(**recipe)).get("train.py", BEFORE).splitlines()
    return [line for line in changed if line not in BEFORE.splitlines()]


APPLY = "snugfit.apply(model, snugfit.Recipe({}))"
CHECKPOINT = (
    "    block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)"
)
TF32 = 'torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "tf32"'


@pytest.mark.parametrize(
    "recipe, wanted",
    [
        ({}, []),
        ({"checkpoint": "blocks:2"}, ["import snugfit", APPLY.format('checkpoint="blocks:2"')]),
        ({"checkpoint": ("body.1",)}, ["import snugfit", APPLY.format('checkpoint=("body.1",)')]),
        ({"inplace": True, "checkpoint": "all"}, ["import snugfit", APPLY.format('checkpoint="all", inplace=True')]),
        ({"precision": "tf32"}, [TF32]),
        ({"optimizer": "adamw8bit"}, ["import bitsandbytes", "opt = bitsandbytes.optim.AdamW8bit(model.parameters())"]),
    ],
)  # fmt: skip
def test_lines_of_snugfit(recipe, wanted):
    assert lines_of(recipe) == wanted


@pytest.mark.parametrize(
    "chosen, blocks",
    [
        ("blocks:2", "model.body[:2]"),
        (("body.0",), "model.body[:1]"),
        (("body.1", "tail.0.x"), 'map(model.get_submodule, ("body.1", "tail.0.x"))'),
        ("all", 'map(model.get_submodule, ("body.0", "body.1", "tail.0.x", "tail.1.x"))'),
    ],
)
def test_lines_of_torch(chosen, blocks):
    imports = ["import functools", "import torch.utils.checkpoint"]
    assert lines_of({"checkpoint": chosen}, style="torch") == [*imports, f"for block in {blocks}:", CHECKPOINT]


def test_fused_kernels_are_asked_for_in_the_call():
    assert lines_of({}, fused=True) == ["opt = optim.AdamW(model.parameters(), fused=True)"]
    fused = dataclasses.replace(ADAMW, settings=("fused",))
    assert lines_of({}, fused=True, optimizer=fused) == []


def test_models_have_their_own_blocks():
    first = dataclasses.replace(MODEL, name="a", blocks={"body.0": "body.0", "body.1": "body.1"})
    second = dataclasses.replace(MODEL, name="self.b", blocks={"Net.0": "layers.0", "Net.1": "layers.1"})
    without = dataclasses.replace(MODEL, name="c", blocks={})
    some, every = ({"checkpoint": choice} for choice in ("blocks:3", "all"))
    assert set(lines_of(some, first, second, without)[1:]) == {
        'snugfit.apply(a, snugfit.Recipe(checkpoint=("body.0", "body.1")))',
        'snugfit.apply(self.b, snugfit.Recipe(checkpoint=("layers.0",)))',
    }
    assert len(lines_of(every, first, second, without)) == 3


@pytest.mark.parametrize(
    "recipe, model, style, said",
    [
        ({"checkpoint": "all"}, {"batch_norm": True}, "torch", "statistics of batch norm twice"),
        ({"checkpoint": "selective"}, {}, "torch", "--as snugfit"),
        ({"loss_impl": "chunked"}, {}, "torch", "loss_impl='chunked' is more than a line"),
        ({"checkpoint": "all"}, {"blocks": {}}, "torch", "no repeated blocks in model"),
        ({"precision": "16-mixed"}, {}, "snugfit", "GradScaler"),
        ({"optimizer": "sgd"}, {}, "snugfit", "only torch.s AdamW that it makes itself"),
    ],
)
def test_what_no_line_says_is_refused(recipe, model, style, said):
    with pytest.raises(InputError, match=said):
        lines_of(recipe, dataclasses.replace(MODEL, **model), style=style)
