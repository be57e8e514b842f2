"""Plans of operators: what is made again from layouts is what torch's fake mode makes, wherever a view begins."""

import pytest
import torch

from snugfit.private_torch.fake_tensors import FakeFactory, new_fake_mode, viewed
from snugfit.recorder.dispatch_plan import OperatorPlan, OperatorPlans, follow, outputs_of

aten = torch.ops.aten
CPU = torch.device("cpu")

VIEWS = {
    "select": (aten.select.int, (1, 2)),
    "select, from the end": (aten.select.int, (-1, -2)),
    "slice": (aten.slice.Tensor, (1, 1, 6, 2)),
    "slice to the end": (aten.slice.Tensor, (0, 1, 2**63 - 1)),
    "transpose": (aten.transpose.int, (0, 2)),
    "permute": (aten.permute.default, ([2, 0, 1],)),
    "unsqueeze": (aten.unsqueeze.default, (1,)),
    "squeeze": (aten.squeeze.dim, (0,)),
    "expand": (aten.expand.default, ([2, 4, 6, 8],)),
    "view": (aten.view.default, ([2, -1],)),
    "view of another dtype": (aten.view.dtype, (torch.int16,)),
    "unfold": (aten.unfold.default, (2, 4, 2)),
    "diagonal": (aten.diagonal.default, ()),
    "detach": (aten.detach.default, ()),
    "alias": (aten.alias.default, ()),
    "as_strided": (aten.as_strided.default, ([2, 3], [3, 1])),
    "as_strided at a place": (aten.as_strided.default, ([2, 3], [3, 1], 5)),
    "split": (aten.split.Tensor, (2, 1)),
    "unbind": (aten.unbind.int, (1,)),
}


@pytest.fixture
def factory():
    return FakeFactory(new_fake_mode())


def layouts(result):
    several = result if isinstance(result, list | tuple) else [result]
    return [(t.shape, t.stride(), t.storage_offset(), t.dtype, t.device) for t in several]


def tensor_at(factory, offset):
    base = factory.empty((1000,), (1,), torch.float32, CPU)
    return factory.view(base, (4, 6, 8), (48, 8, 1), offset, torch.float32)


@pytest.mark.parametrize("name", VIEWS)
def test_short_way_makes_the_views_of_the_fake_mode(factory, name):
    operator, args = VIEWS[name]
    tensor = tensor_at(factory, 7)
    short = viewed(factory, operator, (tensor, *args), {})
    with factory.mode:
        expected = operator(tensor, *args)
    assert layouts(short) == layouts(expected)
    assert type(short) is type(expected)
    one = short[0] if isinstance(short, list | tuple) else short
    assert one.untyped_storage()._cdata == tensor.untyped_storage()._cdata


def test_what_is_no_view_or_refused_is_left_to_the_fake_mode(factory):
    tensor = tensor_at(factory, 0)
    assert viewed(factory, aten.mul.Tensor, (tensor, tensor), {}) is None
    assert viewed(factory, aten.view.default, (tensor, [5, 5]), {}) is None
    assert viewed(factory, aten.select.int, (tensor, 0, 9), {}) is None
    assert viewed(factory, aten.view.default, (torch.empty(4), [2, 2]), {}) is None


@pytest.mark.parametrize("name", VIEWS)
def test_plan_made_at_one_place_holds_wherever_its_key_is_the_same(factory, name):
    operator, args = VIEWS[name]
    plans = OperatorPlans(operator)
    met = 0
    for offset in (3, 19, 35, 4):
        tensor = tensor_at(factory, offset)
        with factory.mode:
            expected = operator(tensor, *args)
        key, tensors = plans.key((tensor, *args), {})
        if key not in plans.plans:
            outputs, shape = outputs_of(expected, tensors)
            plans.plans[key] = OperatorPlan(str(operator), outputs, shape, None, (), (), "device", False)
        else:
            met += 1
        made, fresh = follow(plans.plans[key], tensors, factory)
        assert layouts(made) == layouts(expected)
        assert fresh == []
    by_place = operator is aten.view.dtype or operator is aten.as_strided.default
    assert met == (0 if by_place else 2)


def test_key_is_of_layouts_and_of_numbers_that_decide(factory):
    one, other = tensor_at(factory, 0), tensor_at(factory, 16)
    assert (
        OperatorPlans(aten.mul.Tensor).key((one, other), {})[0]
        == OperatorPlans(aten.mul.Tensor).key((other, one), {})[0]
    )
    select = OperatorPlans(aten.select.int)
    assert select.key((one, 0, 1), {})[0] != select.key((one, 0, 2), {})[0]
    backward = OperatorPlans(aten.select_backward.default)
    grad = factory.empty((4, 6), (6, 1), torch.float32, CPU)
    keys = {backward.key((grad, [4, 6, 8], 2, index), {})[0] for index in range(8)}
    assert len(keys) == 1
    assert backward.key((grad, [4, 6, 9], 2, 0), {})[0] not in keys


@pytest.mark.parametrize("operator", [aten.select_backward.default, aten.slice_backward.default])
def test_arguments_that_are_not_read_decide_nothing(factory, operator):
    names = [argument.name for argument in operator._schema.arguments]
    assert names[:3] == ["grad_output", "input_sizes", "dim"]
    assert set(names[3:]) <= {"index", "start", "end", "step"}


def test_tensors_of_the_host_alone_have_no_plan():
    assert OperatorPlans(aten.add.Tensor).key((torch.tensor(1.0), torch.tensor(2.0)), {}) is None
    assert OperatorPlans(aten.upsample_nearest1d.default).key((torch.tensor(1.0), [3]), {}) is None
