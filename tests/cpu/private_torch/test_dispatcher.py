"""What torch's dispatcher knows of operators, and modes that see what it calls."""

import sys

import pytest
import torch

from snugfit import private_torch
from snugfit.private_torch import dispatcher, fake_tensors
from snugfit.private_torch.writes import BeforeWrites


def test_dispatch_modes():
    """TorchDispatchMode, DirectMode, current_mode"""
    seen = []

    class Watch(private_torch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func, private_torch.current_mode()))
            return func(*args, **(kwargs or {}))

    with Watch() as mode:
        assert private_torch.current_mode() is mode
        torch.ones(2).add(1)
    assert (torch.ops.aten.add.Tensor, None) in seen
    assert private_torch.current_mode() is None


def test_torch_calls_a_direct_mode_itself():
    callers = []

    class Watch(private_torch.DirectMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            callers.append(sys._getframe(1).f_code.co_name)
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.ones(2)
    assert set(callers) == {"test_torch_calls_a_direct_mode_itself"}


def test_plain_classes_dispatch_plainly():
    """PLAIN_DISPATCH"""
    assert torch.nn.Parameter.__torch_dispatch__ is private_torch.PLAIN_DISPATCH
    assert torch.Tensor.__torch_dispatch__ is private_torch.PLAIN_DISPATCH
    assert fake_tensors.FakeTensor.__torch_dispatch__ is not private_torch.PLAIN_DISPATCH


def test_kernels_by_key():
    """has_kernel, operator_names, knows_cuda_kernels, IMPLICIT"""
    assert dispatcher.has_kernel("aten::mm", "CPU")
    assert not dispatcher.has_kernel("aten::matmul", "CPU")
    assert dispatcher.has_kernel("aten::matmul", dispatcher.IMPLICIT)
    assert {"aten::mm", "aten::add.Tensor"} < set(dispatcher.operator_names())
    assert dispatcher.knows_cuda_kernels() == (torch.version.cuda is not None)


def test_explicit_bodies():
    """explicit_body, run_explicit_body, EXPLICIT"""
    assert dispatcher.explicit_body("aten::matmul") is None
    operator, value = torch.ops.aten.ones_like.default, torch.rand(3)
    assert dispatcher.explicit_body(operator.name()) in dispatcher.EXPLICIT
    assert torch.equal(dispatcher.run_explicit_body(operator, (value,), {}), torch.ones(3))


def test_kernels_without_the_dispatcher():
    """run_on_cpu"""
    seen = []

    class Watch(private_torch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    library = torch.library.Library("snugfit_private_torch_test", "DEF")
    library.define("double_(Tensor(a!) x) -> ()")
    library.impl("double_", lambda x: x.copy_(x * 2) and None, "CPU")
    operator, value = torch.ops.snugfit_private_torch_test.double_.default, torch.ones(1)
    assert dispatcher.has_kernel(operator.name(), "CPU")
    with Watch():
        dispatcher.run_on_cpu(operator, (value,), {})
    assert value.item() == 2 and torch.ops.aten.mul.Tensor in seen and operator not in seen


def test_places_that_operators_write_to():
    """places_written"""
    assert dispatcher.places_written(torch.ops.aten.add.Tensor) == []
    assert dispatcher.places_written(torch.ops.aten.add_.Tensor) == [(0, "self")]
    assert dispatcher.places_written(torch.ops.aten.add.out) == [(3, "out")]


def test_a_mode_is_told_before_a_tensor_is_written():
    """BeforeWrites"""
    told = []

    class Watch(BeforeWrites):
        def about_to_write(self, tensor):
            told.append(tensor.tolist())

    one, out = torch.ones(2), torch.zeros(2)
    with Watch():
        one.add_(1)
        torch.add(one, one, out=out)
        torch._foreach_mul_([one, out], 2)
        one * 2
    assert told == [[1, 1], [0, 0], [2, 2], [4, 4]]


def test_bodies_in_python():
    """python_body"""
    assert dispatcher.python_body(torch.ops.aten.mm.default) is None
    pytest.importorskip("torch.nn.modules.linear_cross_entropy", reason="this torch writes no operators in Python")
    packets = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("torch_nn::")]
    bodies = [
        dispatcher.python_body(getattr(torch.ops.torch_nn, name.split("::")[1].partition(".")[0]).default)
        for name in packets
    ]
    assert bodies
    assert all(callable(body) for body in bodies)


def test_nothing_stands_above_a_kernel():
    """nothing_above"""
    state = torch.get_rng_state()
    weight = torch.ones(2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), fake_tensors.new_fake_mode(), private_torch.nothing_above(False):
        product = torch.mm(weight.reshape(1, 2), weight.reshape(2, 1))
        torch.rand(3)
    assert (product.dtype, product.requires_grad, product.item()) == (torch.float32, False, 2.0)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_operator_of_ours_makes_what_its_fake_version_makes():
    """own_operator"""
    twice = dispatcher.own_operator("contract_twice(Tensor x) -> Tensor", lambda x: x.new_empty((2, *x.shape)))
    with fake_tensors.new_fake_mode():
        assert twice(torch.ones(3)).shape == (2, 3)
    assert str(twice) == "snugfit.contract_twice.default"
