"""Optimizers by name mean exactly what torch.optim means."""

import pytest
import torch
from small_models import make_model

from snugfit import InputError, Recipe, Workload
from snugfit.training.optimizers import make_optimizer, parameter_groups, trained_parameters

CPU = torch.device("cpu")
CLASSES = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adafactor": torch.optim.Adafactor,
}


def made(recipe=None, device=CPU, **settings):
    workload = Workload(**settings)
    groups = parameter_groups(make_model("mlp").parameters(), workload)
    return make_optimizer(Recipe(**(recipe or {})), workload, groups, device)


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_those_of_torch(name):
    optimizer = made(optimizer=name)
    plain = CLASSES[name](make_model("mlp").parameters())
    assert type(optimizer) is type(plain) and len(optimizer.param_groups) == 1
    kernels = ("params", "fused", "foreach")
    assert {k: v for k, v in optimizer.param_groups[0].items() if k not in kernels} == {
        k: v for k, v in plain.param_groups[0].items() if k not in kernels
    }


def test_settings_reach_the_optimizer():
    group = made(optimizer="adamw", lr=0.5, weight_decay=0.2, betas=(0.5, 0.6)).param_groups[0]
    assert (group["lr"], group["weight_decay"], tuple(group["betas"])) == (0.5, 0.2, (0.5, 0.6))
    assert made(optimizer="sgd").param_groups[0]["momentum"] == 0
    assert made(optimizer="sgd", momentum=0.9).param_groups[0]["momentum"] == 0.9
    assert type(made({"optimizer": "sgd"}, optimizer="adamw")) is torch.optim.SGD


@pytest.mark.parametrize(
    ("name", "choice", "fused", "foreach"),
    [
        ("adamw", None, True, None),
        ("sgd", None, True, None),
        ("adafactor", None, None, None),
        ("adam", "fused", True, None),
        ("adam", "foreach", None, True),
        ("adam", "for-loop", None, False),
        ("adafactor", "for-loop", None, False),
    ],
)
def test_kernels(name, choice, fused, foreach):
    group = made({"optimizer_impl": choice}, optimizer=name).param_groups[0]
    assert (group.get("fused"), group["foreach"]) == (fused, foreach)


def test_fused_kernels_that_do_not_exist():
    with pytest.raises(InputError, match="no fused kernels for meta; use foreach or for-loop"):
        made({"optimizer_impl": "fused"}, device=torch.device("meta"))
    assert made(device=torch.device("meta")).param_groups[0]["fused"] is None


def test_groups_without_decay():
    model = make_model("cnn")
    decayed, others = parameter_groups(model.parameters(), Workload(no_decay=True))
    names = {weight: name for name, weight in model.named_parameters()}
    assert {names[weight].rsplit(".", 1)[-1] for weight in others["params"]} == {"weight", "bias"}
    assert all(weight.dim() < 2 for weight in others["params"]) and others["weight_decay"] == 0.0
    assert all(weight.dim() >= 2 for weight in decayed["params"]) and "weight_decay" not in decayed
    assert len(decayed["params"]) + len(others["params"]) == len(names)
    assert len(parameter_groups([torch.zeros(3)], Workload(no_decay=True))) == 1


def test_trained_parameters():
    model = make_model("tied")
    model.blocks[1].requires_grad_(False)
    names = list(trained_parameters(model))
    assert "embedding.weight" in names and "head.weight" not in names, "tied ones once"
    assert not any(name.startswith("blocks.1") for name in names)
    with pytest.raises(InputError, match="nothing to train"):
        trained_parameters(model.requires_grad_(False))
