"""Fake tensors: modes, tensors made from their layout alone, views, and what transforms put around tensors."""

import pytest
import torch
from backend_in_a_worker import fake_pair

from snugfit import private_torch
from snugfit.private_torch import fake_tensors
from snugfit.private_torch.func_wrappers import parts_inside, unwrapped


def test_fake_mode():
    """new_fake_mode, FakeTensor, FakeTensorMode, DATA_DEPENDENT, UNSUPPORTED"""
    mode = fake_tensors.new_fake_mode()
    assert isinstance(mode, fake_tensors.FakeTensorMode)
    with mode:
        fake = torch.ones(2, 3)
        assert isinstance(fake, fake_tensors.FakeTensor)
        assert (fake + torch.ones(3)).shape == (2, 3)
        with pytest.raises(fake_tensors.DATA_DEPENDENT):
            fake.sum().item()
        with pytest.raises(fake_tensors.DATA_DEPENDENT):
            fake.nonzero()
    with torch.library._scoped_library("snugfit_contract", "DEF") as library:
        library.define("without_a_fake(Tensor x) -> Tensor")
        library.impl("without_a_fake", lambda x: x.clone(), "CPU")
        with mode, pytest.raises(fake_tensors.UNSUPPORTED):
            torch.ops.snugfit_contract.without_a_fake(fake)


def test_operators_run_for_real_where_modes_are_off():
    with fake_tensors.new_fake_mode(), private_torch.without_modes():
        assert torch.ones(3).sum().item() == 3.0


def test_what_transforms_put_around_tensors_is_taken_off():
    x, seen = torch.ones(2, 3), []

    def looked_at(row):
        seen.append(unwrapped(row).untyped_storage()._cdata)
        return row.sum()

    torch.func.vmap(torch.func.grad(looked_at))(x)
    torch.func.jvp(looked_at, (x,), (x,))
    assert len(seen) == 2 and set(seen) == {x.untyped_storage()._cdata} and unwrapped(x) is x


def test_tensors_made_of_others_are_taken_apart():
    """parts_inside"""
    from torch.testing._internal.two_tensor import TwoTensor

    one, other, third = torch.ones(2), torch.zeros(2), torch.ones(2)
    found = parts_inside(TwoTensor(TwoTensor(one, other), TwoTensor(third, third)))
    assert [id(part) for part in found] == [id(one), id(other), id(third), id(third)]
    assert parts_inside(one)[0] is one and len(parts_inside(torch.nn.Parameter(one))) == 1


def test_forgotten_conversions_let_tensors_be_swapped():
    """forget_conversions"""
    mode, one, other = fake_tensors.new_fake_mode(), torch.ones(2), torch.zeros(3)
    with mode:
        made = torch.ones(2) + 1
        made.untyped_storage()
    fake_tensors.forget_conversions(mode)
    assert not mode.fake_tensor_converter.meta_converter.tensor_memo
    assert not mode.fake_tensor_converter.meta_converter.storage_memo
    torch.utils.swap_tensors(one, other)
    assert one.shape == (3,)
    assert other.shape == (2,)


def test_a_view_by_the_meta_kernel_is_that_of_the_fake_mode():
    """viewed; view by view in recorder/test_dispatch_plan.py"""
    mode, factory = fake_pair()
    tensor = factory.empty((4, 6), (6, 1), torch.float32, torch.device("cpu"))
    short = fake_tensors.viewed(factory, torch.ops.aten.select.int, (tensor, 1, 2), {})
    with mode:
        expected = tensor.select(1, 2)
    assert (short.shape, short.stride(), short.storage_offset()) == (expected.shape, expected.stride(), 2)
    assert type(short) is fake_tensors.FakeTensor
    assert short.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    assert fake_tensors.viewed(factory, torch.ops.aten.mul.Tensor, (tensor, tensor), {}) is None


def test_fake_factory():
    """FakeFactory"""
    mode, factory = fake_pair()
    fake = factory.empty((2, 3), (1, 2), torch.bfloat16, torch.device("cuda", 0))
    assert type(fake) is fake_tensors.FakeTensor
    assert (fake.device, fake.dtype, tuple(fake.shape), fake.stride()) == (
        torch.device("cuda", 0),
        torch.bfloat16,
        (2, 3),
        (1, 2),
    )
    view = factory.view(fake, (3,), (2,), 1, torch.bfloat16)
    assert view.untyped_storage()._cdata == fake.untyped_storage()._cdata
    assert (view.storage_offset(), view.device) == (1, fake.device)
    # Its ordinary constructor gives the same attributes.
    ordinary = fake_tensors.FakeTensor(mode, torch.empty(2, device="meta"), torch.device("cuda", 0))
    assert set(ordinary.__dict__) == set(fake.__dict__)


def test_fake_tensors_have_no_functions_of_their_own():
    """PLAIN_FUNCTIONS"""
    assert fake_tensors.FakeTensor.__torch_function__ is private_torch.PLAIN_FUNCTIONS
    assert torch.nn.Parameter.__torch_function__ is private_torch.PLAIN_FUNCTIONS
    assert torch.Tensor.__torch_function__ is not private_torch.PLAIN_FUNCTIONS


def test_in_fake_mode():
    seen = []

    class Watch(private_torch.DirectMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(fake_tensors.in_fake_mode())
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.ones(2)
        with fake_tensors.new_fake_mode():
            torch.ones(2)
    assert seen[0] is False and seen[-1] is True


def test_the_same_memory():
    """same_memory"""
    numbers = torch.ones(4)
    assert fake_tensors.same_memory(numbers, numbers.view(2, 2).view(4))
    assert not fake_tensors.same_memory(numbers, numbers[:3]) and not fake_tensors.same_memory(numbers, torch.ones(4))


def test_a_meta_tensor_on_a_fake_one_s_storage():
    """on_meta, forbid_data_access"""
    _, factory = fake_pair()
    fake = factory.empty((2, 3), (3, 1), torch.float32, torch.device("cuda", 0))
    with private_torch.without_modes():
        meta = fake_tensors.on_meta(fake)
    assert meta.device.type == "meta" and meta.untyped_storage()._cdata == fake.untyped_storage()._cdata
    numbers = torch.ones(3)
    fake_tensors.forbid_data_access(numbers)
    with pytest.raises(RuntimeError):
        numbers.data_ptr()
