"""What backward does in place where it sees no fake tensors and no mode."""

import torch

from snugfit import private_torch
from snugfit.private_torch import backward_in_place


def test_a_formula_of_a_gradient_is_seen_as_torch_runs_it():
    """as_unwatched, in_place_of: what a mode is shown inside of backward, and that it is the formula's own tensor."""
    from snugfit.private_torch.backward_in_place import in_place_of

    aten, seen = torch.ops.aten, []

    class Watch(private_torch.DirectMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func, in_place_of(func, args)))
            return func(*args, **(kwargs or {}))

    weight = torch.ones(4, 3, requires_grad=True)
    with Watch():
        (weight * 2)[torch.tensor([1, 1])].sum().backward()
        (weight * 2).gather(1, torch.zeros(4, 1, dtype=torch.long)).sum().backward()
        torch.zeros(4).index_put((torch.tensor([0]),), torch.ones(1))
    changed = {func: other for func, other in seen if other is not func}
    assert changed == {
        aten.index_put.default: aten.index_put_.default,
        aten.scatter_add.default: aten.scatter_add_.default,
    }
    assert (aten.index_put.default, aten.index_put.default) in seen  # outside of backward


def test_gradients_are_summed_in_place_where_torch_sums_them_so():
    """summed_in_place, check_summed_in_place, current_node, next_sequence"""
    backward_in_place.check_summed_in_place()
    nodes = []
    value = torch.ones(3, requires_grad=True)
    number = private_torch.next_sequence()
    made = value * 2
    assert made.grad_fn._sequence_nr() == number
    made.register_hook(lambda gradient: nodes.append(private_torch.current_node()))
    assert private_torch.current_node() is None
    made.sum().backward()
    assert nodes[0] is not None
