"""What training costs at the user's prices, and which card that fits is the cheapest."""

import json
import re

import pytest
import torch
from small_models import MLP, cross_entropy

import snugfit
from snugfit import InputError
from snugfit.report.estimate_advice import cost_lines
from snugfit.simulator.costs import costs_of, read_prices
from snugfit.simulator.prediction import DeviceFit


def fit(name, seconds, fits=True):
    return DeviceFit(name=name, fits=fits, headroom_bytes=1 if fits else -1, step_seconds=seconds)


FITS = [fit("h100-80gb", 0.01), fit("rtx-4090", 0.04), fit("t4-16gb", 0.5, fits=False), fit("mi300x-192gb", None)]


def test_the_cheapest_that_fits_stands_first():
    prices = {"h100-80gb": 3.6, "rtx-4090": 0.36, "t4-16gb": 0.01, "mi300x-192gb": 0.01}
    found = costs_of(FITS, prices, batch_size=64, samples=130)
    assert [row.name for row in found[:2]] == ["rtx-4090", "h100-80gb"]
    assert [row.cost_per_step for row in found] == pytest.approx([4e-6, 1e-5, None, None])
    assert [row.cost_per_epoch for row in found] == pytest.approx(
        [1.2e-5, 3e-5, None, None]
    )  # 130 are three batches of 64
    assert cost_lines(found)[-1].startswith("  The cheapest that fits is rtx-4090,")


def test_without_samples_steps_are_priced_and_without_prices_nothing():
    found = costs_of(FITS, {"h100-80gb": 1}, batch_size=64, samples=None)
    assert [row.name for row in found] == ["h100-80gb"] and found[0].cost_per_epoch is None
    assert "an epoch" not in "\n".join(cost_lines(found))
    assert costs_of(FITS, {}, batch_size=64, samples=10) == () and cost_lines(()) == []


def test_nothing_is_called_cheapest_where_nothing_fits():
    found = costs_of(FITS, {"t4-16gb": 1, "mi300x-192gb": 1}, batch_size=1, samples=None)
    assert cost_lines(found)[-1] == "  None of these fits and has a known speed."


def test_prices_are_read_by_any_name_of_a_card():
    assert read_prices(["RTX 4090=0.5", "h100=2", "rtx-4090=0.50", "a100-40gb=0"]) == {
        "rtx-4090": 0.5, "h100-80gb": 2, "a100-40gb": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "texts, said",
    [
        (["rtx-4090"], "give CARD=PRICE an hour, such as rtx-4090=0.35"),
        (["=3"], "give CARD=PRICE an hour"),
        (["rtx-4090="], "give CARD=PRICE an hour"),
        (["rtx-4090=$1"], "'$1' is no price; give a number without a currency"),
        (["rtx-4090=-1"], "'-1' is no price"),
        (["rtx-4090=nan"], "'nan' is no price"),
        (["rtx-4090=inf"], "'inf' is no price"),
        (["rtx-4091=1"], "device 'rtx-4091' is unknown; did you mean 'rtx-4090'?"),
        (["a100=1"], "means several cards"),
        (["rtx-4090=1", "4090=2"], "gives rtx-4090 twice, at 1 and 2"),
    ],
)
def test_prices_that_cannot_be_read(texts, said):
    with pytest.raises(InputError, match=re.escape(said)):
        read_prices(texts)


def test_an_estimate_is_priced():
    batch = ((64, 12), torch.float32), ((64,), torch.int64)
    found = snugfit.estimate(MLP(), batch, loss=cross_entropy, device="rtx-4090")
    assert found.costs == () and found.to_mapping()["costs"] == []
    priced = found.priced({"rtx-4090": 0.5}, samples=640)
    (row,) = json.loads(priced.to_json())["costs"]
    assert row["cost_per_step"] == pytest.approx(0.5 * found.step_seconds / 3600)
    assert row["cost_per_epoch"] == pytest.approx(10 * row["cost_per_step"])
    assert "The cheapest that fits is rtx-4090" in str(priced)
    with pytest.raises(InputError, match="price names h100-80gb, and the estimate is of device rtx-4090"):
        found.priced({"h100": 2})
