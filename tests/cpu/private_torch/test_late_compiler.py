"""torch's compiler: not loaded by a step that compiles nothing, and all that it is told reaches it when it is."""

import subprocess
import sys

import patience

START = """
import sys
import torch
from snugfit.late_modules import StandIn, load_libraries_late
from snugfit.private_torch import late_compiler
late_compiler.load_late()
load_libraries_late()

def loaded():
    return not isinstance(sys.modules["torch._dynamo"], StandIn)

assert not loaded()
"""
STEP = """
from torch.utils.checkpoint import checkpoint
from snugfit.private_torch.fake_tensors import new_fake_mode
with new_fake_mode():
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    checkpoint(lambda x: layer(x).relu(), torch.zeros(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def ran(code):
    """In a fresh interpreter; one that starts warm has loaded the compiler."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience.SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_who_compiles_nothing_loads_no_compiler():
    libraries = ["import torchvision.ops", "from transformers import LlamaForCausalLM"]
    codes = [STEP, *libraries, "from torch._dynamo import is_compiling"]
    ran(START + "".join(f"{code}\nassert not loaded(), {code!r}\n" for code in codes))


WHO_COMPILES = (
    "import torch._dynamo.eval_frame",
    "from torch._dynamo import eval_frame",
    "torch._dynamo.reset()",
    "torch._dynamo.utils.counters.clear()",
    "torch.compile(lambda x: x + 1, backend='eager')(torch.zeros(2))",
    "with new_fake_mode(), torch.device('meta'): torch.tensor(0.0, device='cpu')",  # in the middle of building
)


def test_who_compiles_loads_it_whole():
    ran(
        START
        + STEP
        + f"""
import os
for code in {WHO_COMPILES!r}:
    if os.fork():  # each begins without it
        assert os.wait()[1] == 0, code
        continue
    exec(code)
    assert loaded() and torch._dynamo is sys.modules['torch._dynamo']
    assert torch._dynamo.utils is sys.modules['torch._dynamo.utils'] and torch._dynamo.config.recompile_limit
    assert torch._dynamo.utils.counters is not None
    os._exit(0)
"""
    )


def test_a_simulation_that_needs_it_begins_again():
    said = ran(
        """
import snugfit, torch
from snugfit.workers.pool import Pool

class Compiled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        times.append(type(torch._dynamo).__name__)
        torch._dynamo.mark_dynamic(x, 0)
        return self.layer(x)

times = []
pool = Pool()
batch = ((2, 4), torch.float32)
made = snugfit.estimate(Compiled, batch, loss=lambda out, _: out.sum(), device="rtx-4090", pool=pool)
again = snugfit.estimate(Compiled, batch, loss=lambda out, _: out.sum(), device="rtx-4090", pool=pool)
assert made.to_mapping() == again.to_mapping() and made.peak_allocated_bytes > 0
print("ok")
"""
    )
    assert "ok" in said


TOLD = """
from collections import Counter
def kept_out(x):
    return x * 2
kept_out = torch.compiler.disable(kept_out)
@torch.compiler.disable(recursive=False)
def skipped(x):
    return x * 3
@torch.compiler.allow_in_graph
def whole(x):
    return x * 5
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)

def step(x):
    x = whole(x + 1)
    x = kept_out(x) + skipped(x)
    (x * weight).sum().backward()
    optimizer.zero_grad()
    return x + 1

def traced():
    seen = []
    def backend(graph, inputs):
        called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        seen.append(sorted(getattr(target, "__name__", str(target)) for target in called))
        return graph.forward
    torch._dynamo.reset()
    out = torch.compile(step, backend=backend)(torch.ones(3))
    return seen, out.tolist()
print(traced())
"""


def test_the_compiler_is_told_of_what_it_is_to_keep_out_of():
    late = ran(START + STEP + TOLD)
    at_once = ran("import torch, torch._dynamo\n" + STEP + TOLD)
    assert late == at_once
    assert "whole" in late


def test_what_a_library_compiles_at_import_is_compiled_at_its_first_call():
    said = ran(
        START
        + """
seen = []
def backend(graph, inputs):
    seen.append(len(inputs))
    return graph.forward
before = torch.compile
with late_compiler.compiling_late():
    @torch.compile(backend=backend)
    def twice(x):
        return x * 2
    thrice = torch.compile(lambda x: x * 3, backend=backend)
assert torch.compile is before and not loaded() and not seen
assert twice(torch.ones(2)).tolist() == [2, 2] and thrice(torch.ones(2)).tolist() == [3, 3]
assert twice.__name__ == "twice" and loaded() and len(seen) == 2
print("ok")
"""
    )
    assert "ok" in said


def test_a_recording_asks_for_the_compiler_and_begins_again():
    ran(
        START + "with late_compiler.not_loaded_within():\n"
        "    try:\n        torch._dynamo.reset()\n    except late_compiler.CompilerNeeded:\n        pass\n"
        "    else:\n        raise AssertionError('it was loaded')\n"
        "assert not loaded()\nlate_compiler.load()\nassert loaded()\n"
    )


def test_what_a_library_compiles_when_it_is_imported_is_compiled_when_it_is_called():
    ran(
        START + "with late_compiler.compiling_late():\n"
        "    twice = torch.compile(lambda x: x * 2, backend='eager')\n"
        "assert not loaded()\nassert twice(torch.ones(2)).tolist() == [2, 2] and loaded()\n"
    )
