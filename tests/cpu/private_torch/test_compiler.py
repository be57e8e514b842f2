"""What inductor writes runs on fake tensors."""

from backend_in_a_worker import REGISTERED, in_a_worker


def test_compiled_code_runs_on_fake_tensors():
    """compiler: Kernel, kernels_stand_in, device_stands_in, never_compile, nothing_kept, forget_all, graph_breaks,
    graphs_made, processor_is_known"""
    said = in_a_worker(
        REGISTERED
        + """
from snugfit.attributes import replaced
from snugfit.private_torch import compiler
from snugfit.private_torch.backward_errors import BackendGuard

class Seen(private_torch.DirectMode):
    def ignore_compile_internals(self):
        return True
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made.append(func._opname)
        with mode:
            return func(*args, **(kwargs or {}))

def step(x, weight):
    return (torch.sin(x) * 2).sum(1) @ weight

compiler.processor_is_known()
compiler.never_compile(Seen.__torch_dispatch__, BackendGuard.type_)
for place in (torch.device("cpu"), device):
    made, told = [], []
    changes = compiler.kernels_stand_in(lambda written, read: told.append((len(written), len(read))))
    if place != torch.device("cpu"):
        changes += compiler.device_stands_in(DEVICE_TYPE, (8, 0))
    compiler.forget_all()
    assert compiler.graphs_made() == 0
    with replaced(changes), compiler.nothing_kept(), Seen():
        x, weight = torch.empty(64, 32, device=place), torch.empty(64, device=place)
        result = torch.compile(step, dynamic=False)(x, weight)
    assert compiler.graphs_made() == 1
    assert told and all(written for written, _ in told), told
    assert "sin" not in made and "empty_strided" in made, made
    assert result.device == place, result.device
    assert not compiler.graph_breaks(), compiler.graph_breaks()

compiler.forget_all()
with Seen():
    def broken(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x + 1
    torch.compile(broken, backend="aot_eager")(torch.empty(4, device=device))
assert len(compiler.graph_breaks()) == 1
compiler.forget_all()
assert not compiler.graph_breaks()
print("ok")
"""
    )
    assert "ok" in said
