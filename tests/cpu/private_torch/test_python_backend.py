"""A backend in Python that is *the* accelerator of a process: its kernels, modes, autocast, and errors of backward."""

import pytest
import torch
from backend_in_a_worker import REGISTERED, in_a_worker
from torch.overrides import TorchFunctionMode

from snugfit.attributes import replaced
from snugfit.private_torch import python_backend
from snugfit.private_torch.backward_errors import backward_under


def test_values_of_a_tensor_that_was_made_of_them_stay_beside_it():
    """given_values: the accelerator's copy keeps its source; test_card.py makes such tensors by `torch.tensor`."""
    source, target = torch.ones(2), torch.empty(2)
    assert python_backend._copy_values(source, target) is target
    assert python_backend.given_values(target) is source


def test_the_fake_accelerator_is_the_accelerator():
    """register_backend"""
    printed = in_a_worker(
        REGISTERED
        + """
assert torch.accelerator.current_accelerator().type == DEVICE_TYPE
assert getattr(torch, DEVICE_TYPE) is backend
with mode:
    fake = torch.empty(4, device=device)
    assert fake.device == device, fake.device
    assert torch.tensor([1.0, 2.0], device=device).device == device
    assert (fake * 2 + 1).device == device
    assert fake.to("cpu").device.type == "cpu"
print("ok")
"""
    )
    assert "ok" in printed


def test_a_claimed_autograd_kernel_can_leave_real_tensors_to_torch():
    """claim_kernel, torchs_own_gradient, below_autograd"""
    printed = in_a_worker(
        """
import torch

def gradients():
    found = []
    for name in ("prod", "max", "min", "median"):
        function = getattr(torch.Tensor, name)
        source = torch.tensor([[0.0, 2.0, 3.0], [2.0, 2.0, 5.0]], requires_grad=True)
        function(source).backward()
        found += [source.grad, torch.func.grad(function)(source.detach())]
        found += torch.func.jvp(function, (source.detach(),), (torch.ones(2, 3),))
    for function in (lambda x: x.prod(1), lambda x: x.prod(0, keepdim=True, dtype=torch.float64), lambda x: x.cumprod(1)):
        source = torch.tensor([[0.0, 2.0, 3.0], [2.0, 2.0, 5.0]], requires_grad=True)
        function(source).sum().backward()
        of_row = torch.func.grad(lambda row: function(row[None]).sum().float())
        found += [source.grad, torch.func.vmap(of_row)(source.detach())]
    return found

torchs = gradients()
"""
        + REGISTERED
        + """
assert all(torch.equal(one, other) for one, other in zip(torchs, gradients(), strict=True))
with private_torch.below_autograd():
    assert not (torch.ones(2, requires_grad=True) * 2).requires_grad
print("ok")
"""
    )
    assert "ok" in printed


def test_kernels_and_fake_versions_are_replaced():
    """claim_kernel, amend_fake, replace_fake"""
    printed = in_a_worker(
        REGISTERED
        + """
dispatcher.claim_kernel("aten::erfinv", lambda *args: args[0])
assert dispatcher.has_kernel("aten::erfinv", "PrivateUse1")
fake_tensors.replace_fake(torch.ops.aten.sinc.default, lambda x: x.new_empty(7))
with mode:
    assert torch.ops.aten.sinc.default(torch.ones(2)).shape == (7,)
fake_tensors.amend_fake(torch.ops.aten.sinc.default, lambda made, args: made.new_empty(len(args) + 8))
with mode:
    assert torch.ops.aten.sinc.default(torch.ones(3)).shape == (9,)  # another shape: fake results are cached
print("ok")
"""
    )
    assert "ok" in printed


def test_modes_are_spared_and_optimizers_take_fakes():
    """skip_dispatch_rules, let_optimizers_take_fakes"""
    printed = in_a_worker(
        REGISTERED
        + """
from torch._library import simple_registry
class Mode(private_torch.TorchDispatchMode):
    pass
private_torch.skip_dispatch_rules(Mode)
assert simple_registry.find_torch_dispatch_rule(torch.ops.aten.add.Tensor, Mode) is None
with mode:
    weight = torch.nn.Parameter(torch.empty(4, device=device))
    weight.grad = torch.empty(4, device=device)
    optimizer = torch.optim.AdamW([weight])
    called = []
    original = torch._foreach_add_
    torch._foreach_add_ = lambda *a, **k: (called.append(1), original(*a, **k))[1]
    optimizer.step()
    assert called, "optimizers do not take several fake tensors at once"
print("ok")
"""
    )
    assert "ok" in printed


def test_autocast_is_left_out_and_its_cache_watched():
    """without_autocast, on_clearing_autocast_cache"""
    printed = in_a_worker(
        REGISTERED
        + """
cleared = []
private_torch.on_clearing_autocast_cache(lambda: cleared.append(1))
with mode, torch.autocast(DEVICE_TYPE, torch.bfloat16):
    a = torch.empty(4, 4, device=device)
    assert torch.mm(a, a).dtype == torch.bfloat16
    with private_torch.without_autocast("AutocastPrivateUse1"):
        assert torch.mm(a, a).dtype == torch.float32
assert cleared
print("ok")
"""
    )
    assert "ok" in printed


def test_backend_guard_and_keep_errors_of_backward():
    """An operator that fails in backward raises its own error, where torch alone ends the process."""
    said = in_a_worker(
        """
import torch
from snugfit.recorder import registration
from snugfit.private_torch.fake_tensors import new_fake_mode
from snugfit.private_torch.backward_errors import BackendGuard, keep_errors_of_backward
registration.register()
for _ in range(3):
    with new_fake_mode(), torch.autograd.set_multithreading_enabled(False):
        weight = torch.ones(2, 2, device="sim", requires_grad=True)
        loss = (weight @ weight).relu().sum()
        weight.register_hook(lambda _: 1 // 0)
        try:
            loss.backward()
        except ZeroDivisionError as error:
            print(error)
"""
    )
    assert said.split("\n")[:3] == ["integer division or modulo by zero"] * 3


def weight_of(loss):
    return loss.grad_fn.next_functions[0][0].variable


@pytest.mark.parametrize("by", [torch.Tensor.backward, lambda loss: torch.autograd.grad(loss, [weight_of(loss)])])
def test_backward_under(by):
    """A mode sees what hooks call, although it is off while `Tensor.backward` runs, which it has seen itself."""
    seen = []

    class Sees(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    mode, weight = Sees(), torch.ones(2, requires_grad=True)
    weight.register_hook(torch.sinh)
    with mode:
        by(weight.sum())
    assert torch.sinh not in seen
    with replaced(backward_under(mode)), mode:
        by(weight.sum())
    assert torch.sinh in seen
