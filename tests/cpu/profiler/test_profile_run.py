"""Profiles of real scripts on the CPU: exact peaks, categories, modules, phases, and nothing left behind."""

import gc
import json
import textwrap
import weakref

import pytest
import torch
from command_line import run_command
from own_scripts import written
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode

from snugfit.errors import InputError
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.profiler.profile import profile_script
from snugfit.recording.anatomy import timeline
from snugfit.simulator.own_script import estimate_script

PLAIN = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)), nn.Linear(256, 8))
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    inputs, labels = torch.randn(64, 256), torch.randint(8, (64,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WEIGHTS = 4 * (4 * (256 * 256 + 256) + 256 * 8 + 8)


@pytest.fixture
def profiled(tmp_path):
    """Runs a text as a script under the profile."""

    def run(text, **options):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(text))
        return profile_script(str(script), with_advice=options.pop("with_advice", False), **options)

    return run


def allocator_peak(text):
    """Peak of the same script, counted by the allocator's events alone."""
    warm_up()
    events = AllocatorEvents()
    events.start()
    exec(compile(text, "script", "exec"), {"__name__": "__main__"})
    events.stop()
    return events.peak_bytes


def test_the_peak_is_the_allocators_to_the_byte_and_the_categories_add_up(profiled):
    profile = profiled(PLAIN, steps=4)
    assert profile.exit_code == 0 and profile.notes == ()
    assert profile.anatomy.peak_allocated_bytes == profile.allocator_peak_bytes == allocator_peak(PLAIN)
    found = profile.anatomy.bytes_by_category
    assert sum(found.values()) == profile.allocator_peak_bytes
    assert found["weights"] == WEIGHTS
    assert WEIGHTS * 2 <= found["optimizer_state"] < WEIGHTS * 2 + 100
    assert found["inputs"] == 64 * 256 * 4 + 64 * 8  # the images, and labels made between steps
    assert found["other"] == 0


def test_gradients_activations_and_blocks(profiled):
    profile = profiled(PLAIN, steps=2)
    blocks = {block.name: block.bytes_by_category for block in profile.anatomy.blocks}
    assert {"0", "1", "2", "3", "4"} <= set(blocks)
    for name in "0123":
        assert blocks[name]["weights"] == blocks[name]["gradients"] == 4 * (256 * 256 + 256)
    # gelu and the next linear keep their inputs
    assert blocks["0"]["activations"] == 2 * 64 * 256 * 4
    names = {(tensor.module, tensor.category) for tensor in profile.anatomy.largest}
    assert ("0.0", "weights") in names


def test_the_phases_of_the_timeline_are_those_of_training(profiled):
    profile = profiled(PLAIN, steps=2)
    assert profile.steps == 2
    marks = [(name, step) for _, name, entered, step in timeline(profile.trace, profile.config).marks if entered]
    assert marks[:5] == [("build", 0), ("forward", 0), ("backward", 0), ("optimizer", 0), ("data", 1)]


def test_what_an_operator_takes_inside_is_seen(profiled):
    # sort makes its two results and, inside, what it sorts with
    text = "import torch\nx = torch.randn(1 << 16)\nvalues, order = x.sort()\n"
    profile = profiled(text)
    tensors = (1 << 16) * (4 + 4 + 8)
    assert profile.peak_operator.startswith("aten.sort")
    assert profile.allocator_peak_bytes == allocator_peak(text) == tensors + profile.inside_operators_bytes
    assert profile.anatomy.bytes_by_category["temporaries"] >= profile.inside_operators_bytes


def test_checkpointed_blocks_keep_their_phases(profiled):
    profile = profiled(
        """
        import torch
        from torch import nn
        from torch.utils.checkpoint import checkpoint
        model = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3))
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = model
            def forward(self, x):
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=False)
                return x
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        steps=2,
    )
    assert profile.anatomy.peak_allocated_bytes == profile.allocator_peak_bytes
    modules = {row.module for row in profile.trace.storages if row.operator == "aten.addmm.default"}
    assert modules == {"blocks.0.0", "blocks.1.0", "blocks.2.0"}
    marks = [name for _, name, entered, _ in timeline(profile.trace, profile.config).marks if entered]
    assert "data" not in marks[: marks.index("optimizer")]


def test_memory_of_numpy_is_not_the_allocators(profiled):
    profile = profiled("import numpy, torch\nx = torch.from_numpy(numpy.zeros(1000, 'float32'))\ny = x.clone()\n")
    assert profile.host_peak_bytes == 4000
    assert profile.allocator_peak_bytes == profile.anatomy.peak_allocated_bytes == 4000


def test_garbage_of_an_earlier_window_is_not_subtracted(profiled):
    events = AllocatorEvents()
    events.start()
    garbage = [torch.zeros(100_000)]
    garbage.append(garbage)
    events.stop()
    gc.disable()  # else it may be gone before the profile begins, as it is most times
    try:
        del garbage
        profile = profiled("import gc, torch\ngc.collect()\nx = torch.zeros(1000)\n")
    finally:
        gc.enable()
    assert profile.allocator_peak_bytes == 4000


STEPS_IN_BACKWARD = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(300, 700, bias=False), nn.GELU(), nn.Linear(700, 500, bias=False))
optimizers = {weight: torch.optim.SGD([weight], 1e-3, foreach=False) for weight in model.parameters()}
def fire(weight):
    optimizers[weight].step()
    weight.grad = None
for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(fire)
for step in range(5):
    model(torch.randn(256, 300)).square().mean().backward()
"""
BY_TRANSFORMS = """
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
optimizer = torch.optim.Adam(model.parameters())
def loss_of(weights, x):
    return functional_call(model, weights, (x,)).square().mean()
for step in range(3):
    weights, x = dict(model.named_parameters()), torch.randn(16, 64)
    gradients = vmap(grad(loss_of), in_dims=(None, 0))(weights, x)
    loss = loss_of({name: weights[name] - 0.1 * gradients[name].mean(0) for name in weights}, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("text", [STEPS_IN_BACKWARD, BY_TRANSFORMS], ids=["step in backward", "torch.func"])
def test_what_lives_in_each_step_is_the_allocators(profiled, text):
    profile = profiled(text, steps=5)
    assert profile.exit_code == 0
    assert profile.anatomy.peak_allocated_bytes == profile.allocator_peak_bytes == allocator_peak(text)
    assert profile.anatomy.bytes_by_category["weights"] >= 8 * 64 * 4


IN_THREADS = """
import threading, torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight])
def let_go(held, may):
    may.wait()
    held.clear()
for step in range(4):
    may, held = threading.Event(), [torch.ones(2**20)]
    thread = threading.Thread(target=let_go, args=(held, may))
    thread.start()
    loss = weight * 2
    may.set()
    thread.join()
    loss.sum().backward()
    optimizer.step()
"""


def test_what_a_thread_releases_is_gone(profiled):
    profile = profiled(IN_THREADS, steps=4)
    assert profile.notes == ()
    assert profile.allocator_peak_bytes == profile.anatomy.peak_allocated_bytes
    assert 2**22 <= profile.allocator_peak_bytes < 2**22 + 100


SHARED_OUT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
mesh = dist.init_device_mesh("cpu", (1,))
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device="cpu")
for layer in model:
    layer.reset_parameters()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_tensors_made_of_tensors_are_those_in_them(tmp_path):
    weights = 4 * 4 * (256 * 256 + 256)
    script = written(tmp_path, SHARED_OUT)
    done = run_command("profile", "--json", "--no-advice", "--steps", "4", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    found = profile["anatomy_bytes"]
    assert (found["weights"], found["optimizer_state"]) == (weights, 2 * weights + 8 * 4)  # and numbers of steps
    predicted = estimate_script(str(script), device="cpu").peak_allocated_bytes
    # When gloo's threads let go of what was sent is theirs to choose.
    assert profile["allocator_peak_bytes"] == pytest.approx(predicted, rel=0.1) and profile["notes"] == []


def test_evaluation_is_no_training(profiled):
    profile = profiled(
        "import torch\nmodel = torch.nn.Linear(8, 8)\nwith torch.no_grad():\n    y = model(torch.ones(4, 8))\n",
        with_advice=True,
    )
    phases = {row.phase for row in profile.trace.storages if row.operator == "aten.addmm.default"}
    assert phases == {"evaluation"}
    assert profile.anatomy.bytes_by_category["activations"] == 0
    assert "no model was seen" in profile.advice.missing and "None of 3 optimizer steps" in profile.notes[0]


def test_stop_ends_the_script_and_without_it_the_script_goes_on_unwatched(profiled, capsys):
    text = PLAIN + "    print(step)\n"
    assert profiled(text, steps=2, stop=True).exit_code == 0
    assert capsys.readouterr().out == "0\n"  # the second step ends it
    short = profiled(text, steps=2)
    assert capsys.readouterr().out == "0\n1\n2\n3\n"
    assert len(short.trace) < len(profiled(text, steps=4).trace)


def test_memory_behind_the_steps_that_were_watched_is_told(tmp_path):
    path = written(tmp_path, PLAIN + "held = torch.ones(2**30, dtype=torch.uint8)\n")
    for words, told in ((("--steps", "2"), True), (("--steps", "2", "--stop"), False)):
        done = run_command("profile", "--no-advice", *words, path, cwd=tmp_path)  # a process has one peak
        assert ("Behind the steps that were watched the process took up to" in done.stdout) is told, done.stderr


def test_a_script_that_fails_leaves_its_profile(profiled, capsys):
    profile = profiled(PLAIN + "    raise RuntimeError('broken')\n")
    assert profile.exit_code == 1 and profile.steps == 1
    assert "RuntimeError: broken" in capsys.readouterr().err
    assert profile.anatomy.bytes_by_category["weights"] == WEIGHTS
    assert "exit code 1" in profile.notes[0]


def test_nothing_is_left_behind(profiled):
    def hooks():
        tables = (
            module_hooks._global_forward_hooks,
            module_hooks._global_forward_pre_hooks,
            optimizer_hooks._global_optimizer_pre_hooks,
            optimizer_hooks._global_optimizer_post_hooks,
        )
        return [len(table) for table in tables]

    before = hooks(), torch.UntypedStorage.resize_
    profiled(PLAIN, steps=2)
    profiled(PLAIN + "    raise RuntimeError\n", steps=2)
    assert (hooks(), torch.UntypedStorage.resize_) == before
    assert _get_current_dispatch_mode() is None


def test_a_dropped_model_is_not_held(profiled):
    kept = []
    torch.kept_for_test = kept
    try:
        profiled(
            """
            import gc, torch, weakref
            model = torch.nn.Linear(8, 8)
            model(torch.ones(2, 8))
            torch.kept_for_test.append(weakref.ref(model))
            del model
            gc.collect()
            assert torch.kept_for_test[0]() is None
            """
        )
    finally:
        del torch.kept_for_test
    gc.collect()
    assert isinstance(kept[0], weakref.ref) and kept[0]() is None


def test_a_script_that_makes_no_tensor_is_refused(profiled):
    with pytest.raises(InputError, match=r"made no tensor\. Give the script that trains"):
        profiled("import torch\n\ndef build():\n    return torch.nn.Linear(2, 2)\n")


def test_too_few_steps_are_refused(profiled):
    with pytest.raises(InputError, match="at least 1"):
        profiled(PLAIN, steps=0)


def test_advice_comes_from_simulations(profiled):
    profile = profiled(
        """
        import torch
        from torch import nn
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
            def forward(self, x):
                return x + self.down(torch.relu(self.up(x)))
        model = nn.Sequential(*(Block() for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2048, 64)).mean().backward()
            optimizer.step()
        """,
        steps=2,
        with_advice=True,
    )
    best = profile.advice.suggestions[0]
    assert best.recipe == {"checkpoint": "all"} and best.text == "checkpointing these 4 blocks"
    assert best.saved_bytes > 0.3 * profile.allocator_peak_bytes
    # Of 8 products forward and 15 backward (the batch needs no gradient), the first of each block is computed again:
    # the second one's result is not needed, and recomputation stops before it.
    assert best.more_time is None and best.more_flops == pytest.approx(4 / 23)
    assert profile.advice.simulated_peak_bytes == pytest.approx(profile.allocator_peak_bytes, rel=0.05)


def test_a_model_that_cannot_be_simulated_gets_no_advice(profiled):
    profile = profiled(
        """
        import torch
        class Net(torch.nn.Linear):
            def forward(self, x):
                return super().forward(x)[torch.multinomial(torch.ones(64, 512), 512) > 9]
        net = Net(8, 512)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(64, 8)).sum().backward()
        optimizer.step()
        """,
        steps=1,
        with_advice=True,
    )
    assert profile.advice.suggestions == () and "cannot be simulated" in profile.advice.missing


CUT_OUT = """
import torch
from torch import nn
sizes = [(256, 256)] * 3
block = torch.UntypedStorage(3 * 2**18 + 64)
model = nn.Sequential(*(nn.Linear(b, a, bias=False, device="meta") for a, b in sizes))
for number, layer in enumerate(model):
    part = block[number * 2**18 : (number + 1) * 2**18]
    layer.weight = nn.Parameter(torch.empty(0).set_(part, 0, (256, 256)))
del block, part
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_weights_that_a_library_cut_out_of_one_block_are_weights(profiled):
    """As safetensors gives them to every `from_pretrained`; they were nobody's bytes inside an operator."""
    found = profiled(CUT_OUT)
    assert found.anatomy.bytes_by_category["weights"] == 3 * 2**18 and found.host_peak_bytes == 0
    assert found.inside_operators_bytes < 2**10 and found.allocator_peak_bytes > 6 * 2**18


def test_a_compiled_step_is_measured_as_it_runs_eagerly(profiled):
    compiled = PLAIN.replace("optimizer =", "model = torch.compile(model, fullgraph=True)\noptimizer =", 1)
    found, plain = profiled(compiled), profiled(PLAIN)
    assert found.allocator_peak_bytes == plain.allocator_peak_bytes and found.steps == 3
    assert any("torch.compile is left out" in note for note in found.notes) and not plain.notes
