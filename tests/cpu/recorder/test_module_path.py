"""Which module owns a parameter, also after its parameters were replaced."""

import torch
from torch import nn

from snugfit.recorder.module_path import ModulePath


def test_a_tied_parameter_belongs_to_its_first_module():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    path = ModulePath()
    path.watch(model)
    assert path.owner(model[1].weight) == "0"
    assert path.owner(model[1].bias) == "1"


def test_new_parameters_at_old_identities_belong_to_their_module():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    path = ModulePath()
    path.watch(model)
    first, second = model[0].weight, model[1].weight
    model[0].weight, model[1].weight = second, first  # what freed and reused identities amount to
    path.watch(model)
    assert path.owner(first) == "1"
    assert path.owner(second) == "0"
    assert path.owner(torch.ones(1)) == ""
