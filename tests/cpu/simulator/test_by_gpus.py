"""Which cards, and how many: one estimate for several numbers of GPUs, and what is said of wrong ones."""

import functools
import json

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import snugfit
from snugfit import cli
from snugfit.errors import InputError
from snugfit.simulator.by_gpus import numbers_of_gpus

SMALL = ["--batch-size", "2", "--image-size", "64", "--no-evaluate"]


def test_a_table_of_cards_and_numbers(capsys):
    asked = ["estimate", "torchvision:resnet18", *SMALL, "--shard", "full", "--device", "rtx-3090", "--gpus", "1,2,4"]
    assert cli.main([*asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    one, two, four = document["by_gpus"]
    assert (document["gpus"], document["total_bytes"]) == (1, one["total_bytes"])
    assert [column["gpus"] for column in (one, two, four)] == [1, 2, 4]
    assert two["host_bytes"] == one["host_bytes"], "only the first process builds the model on the host"
    assert two["devices"][0]["fits"]
    assert "cannot be shared by 4 GPUs" in four["refusal"] and four["devices"] == []
    assert cli.main(asked) == 0
    text = capsys.readouterr().out
    assert "1 GPU" in text and "4 GPUs" in text and "not possible" in text and "cannot be shared by 4 GPUs" in text


def test_a_time_that_links_would_decide_is_said_to_be_unknown(capsys):
    asked = ["estimate", "torchvision:resnet18", *SMALL, "--batch-size", "4", "--device", "rtx-4090", "--gpus", "2"]
    assert cli.main([*asked, "--nodes", "2"]) == 0
    assert "no time, as it is not known how fast such cards are linked" in capsys.readouterr().out
    assert cli.main(asked) == 0
    assert "no time" not in capsys.readouterr().out


def tied():
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)))
    layers[2][0].weight = layers[0][0].weight
    return layers


def test_weights_tied_across_units_are_refused_as_in_a_run(pool):
    sizes, batch = (
        {"loss": nn.functional.mse_loss, "gpus": 2, "device": "cpu"},
        (torch.zeros(4, 32), torch.zeros(4, 32)),
    )
    with pytest.raises(InputError, match="is tied to a weight of another unit"):
        snugfit.estimate(tied, batch, recipe=snugfit.Recipe(shard="full"), **sizes)
    snugfit.estimate(tied, batch, **sizes)


class Branched(nn.Module):
    """A block in which the order of calls is not that of definition, so that a unit is gathered in vain."""

    def __init__(self):
        super().__init__()
        self.attn, self.fc = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), nn.Linear(32, 32)

    def forward(self, x):
        return self.fc(x + self.attn(x))


def test_weights_that_were_gathered_in_vain_are_waited_for(pool):
    found = snugfit.estimate(
        functools.partial(_stack, 3),
        (torch.zeros(4, 32), torch.zeros(4)),
        loss=_mean,
        gpus=2,
        recipe=snugfit.Recipe(shard="full"),
        device="rtx-4090",
        pool=pool,
    )
    assert found.peak_allocated_bytes


def _stack(count):
    return nn.Sequential(*(Branched() for _ in range(count)))


def _mean(output, batch):
    return output.square().mean()


@pytest.mark.parametrize("text", ["1,,2", "0,1", "a,b", "2,2", "1,-2", ","])
def test_no_list_of_numbers(text):
    with pytest.raises(InputError, match="1,2,4,8"):
        numbers_of_gpus(text)


def test_auto_is_for_plans(capsys):
    assert cli.main(["estimate", "torchvision:resnet18", "--gpus", "auto"]) == 2
    assert "`snugfit plan` also takes auto" in capsys.readouterr().err
    assert cli.main(["plan", "torchvision:resnet18", "--gpus", "1,2", "--device", "rtx-3090"]) == 2
    assert "gpus is '1,2'" in capsys.readouterr().err
    asked = ["plan", "torchvision:resnet18", "--gpus", "auto", "--device", "rtx-3090", "--maximize", "batch-size"]
    assert cli.main(asked) == 2
    assert "--gpus auto" in capsys.readouterr().err


def test_shares_on_the_host_are_rounded_there(pool):
    fields = {"shard": "full", "offload_parameters": "all", "precision": "bf16-true", "stochastic_rounding": True}
    batch = (torch.ones(4, 8), torch.zeros(4, dtype=torch.long))
    estimate = snugfit.estimate(
        lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)), batch, loss=cross_entropy, gpus=2,
        recipe=snugfit.Recipe(**fields), device="rtx-3090", pool=pool,
    )  # fmt: skip
    state = [one for one in estimate.trace.storages if one.category == "optimizer_state" and one.nbytes > 4]  # no flags
    assert state and all(one.place == "host" for one in state)
