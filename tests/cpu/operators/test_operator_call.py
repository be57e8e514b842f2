"""What makes a call the same as another, and what it becomes on real tensors."""

import pytest
import torch

from snugfit.operators.operator_call import describe

aten = torch.ops.aten
CPU = torch.device("cpu")


def digest(operator, *args, **kwargs):
    return describe(operator, args, kwargs, None).digest()


def test_numbers_that_only_scale_make_no_other_call():
    x = torch.zeros(3, 5)
    assert digest(aten.add.Tensor, x, x, alpha=0.1) == digest(aten.add.Tensor, x, x, alpha=0.2)
    assert digest(aten.add.Tensor, x, x, alpha=0.1) != digest(aten.add.Tensor, x, x, alpha=1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(3, 5), torch.zeros(5, 3)),
        (torch.zeros(3, 5), torch.zeros(5, 3).t()),  # another stride
        (torch.zeros(3, 5), torch.zeros(3, 5, dtype=torch.bfloat16)),
        (torch.zeros(3, 5), torch.zeros(3, 1).expand(3, 5)),
        (torch.zeros(3, 5), torch.zeros(16)[1:].view(3, 5)),  # another alignment
    ],
)
def test_layouts_make_another_call(one, other):
    assert digest(aten.relu.default, one) != digest(aten.relu.default, other)


@pytest.mark.parametrize("powers", [(2.0, 1.0), (2.0, float("inf")), (2.0, 3)])
def test_powers_of_norms_make_another_call(powers):
    x = torch.zeros(7)
    assert digest(aten.linalg_vector_norm.default, x, powers[0]) != digest(
        aten.linalg_vector_norm.default, x, powers[1]
    )


def test_one_tensor_twice_is_not_two_tensors():
    x, y = torch.zeros(4), torch.zeros(4)
    assert digest(aten.add.Tensor, x, x) != digest(aten.add.Tensor, x, y) == digest(aten.add.Tensor, y, x)


def test_gradients_make_another_call():
    x = torch.zeros(4)
    assert describe(aten.relu.default, (x,), {}, True).digest() != describe(aten.relu.default, (x,), {}, False).digest()


def test_on_real_tensors_the_layouts_are_the_same():
    base = torch.zeros(6, 8, 10)
    given = (base[:, 1:5].transpose(0, 2), base[:, ::3], torch.zeros(1, dtype=torch.bool).expand(4), torch.tensor(3))
    call = describe(aten.cat.default, ([*given], 0), {"flag": None}, None)
    (made, dim), named = call.on(CPU)
    assert dim == 0 and named == {"flag": None}
    for real, like in zip(made, given, strict=True):
        assert (real.shape, real.stride(), real.dtype) == (like.shape, like.stride(), like.dtype)
    ones, _ = call.on(CPU, 1)
    assert int(ones[0][1].sum()) == given[1].numel()


def test_what_cannot_be_made_anew_is_not_described():
    assert describe(aten.relu.default, (torch.zeros(3, 3).to_sparse(),), {}, None) is None
    assert describe(aten.relu.default, (object(),), {}, None) is None
