"""`snugfit calibrate` on this processor: what is measured, what is kept, and who uses it."""

import dataclasses
import functools
import json

import pytest
import torch

from snugfit import calibrations, estimate
from snugfit.calibration import calibrate as calibration
from snugfit.calibration import card_speeds, verification
from snugfit.calibration.calibrate import calibrate, row_of
from snugfit.cli import main
from snugfit.device_kinds import CUDA
from snugfit.devices import Device, device_named
from snugfit.fields import as_data
from snugfit.operators import host_speeds
from snugfit.operators.cpu_operators import of_this_processor
from snugfit.recording.kernel_times import LINK_SHARE, MEMORY_SHARE

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """A folder of caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def estimated():
    return estimate(torch.nn.Linear(8, 8), batch=(torch.ones(4, 8), torch.ones(4, 8)), loss=mse, device="cpu")


def mse(output, batch):
    return (output - batch[1]).square().mean()


def test_what_is_kept_of_a_processor_is_what_the_clock_takes():
    assert estimated().step_seconds is None
    kept = calibrate(CPU)
    assert as_data(host_speeds.host_speeds()) == as_data(kept["speeds"])
    assert kept["identity"]["torch"] == torch.__version__
    assert 1e-7 < estimated().step_seconds < 10


def test_operators_that_were_timed_before_are_asked_again():
    estimated()
    operators = of_this_processor()
    before = operators.asked
    estimated()
    assert operators.asked == before
    operators.forget()
    assert not operators._cache._answers


def test_a_card_is_measured_by_the_same_code(monkeypatch):
    monkeypatch.setattr(card_speeds, "_CPU_SIDE", 32)
    monkeypatch.setattr(card_speeds, "_CPU_COPY_BYTES", 2**16)
    monkeypatch.setattr(card_speeds, "_PIXELS", 8)
    state = torch.get_rng_state()
    speeds = card_speeds.card_speeds(CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(speeds.product_rates) == set(speeds.convolution_rates) == {"float32", "float16", "bfloat16"}
    assert all(rate > 1e5 for rate in (*speeds.product_rates.values(), *speeds.convolution_rates.values()))
    assert speeds.bytes_per_second > 1e6 and 1e-7 < speeds.operator_seconds < 1e-1
    assert speeds.kernel_seconds is speeds.link_bytes_per_second is speeds.context_bytes is None


def test_measured_speeds_become_peaks_of_which_the_clock_takes_its_share():
    speeds = card_speeds.CardSpeeds(
        product_rates={"float32": 4e13, "bfloat16": 1e14}, convolution_rates={}, bytes_per_second=8e11,
        operator_seconds=2e-5, kernel_seconds=1e-6, link_bytes_per_second=2e10, context_bytes=5,
    )  # fmt: skip
    fields = row_of(speeds)
    assert fields.pop("context_bytes") == 5
    row = Device(name="local", vendor_name="", memory_source="", **fields)
    assert (row.flops["bfloat16"], row.sustained["tensor"], row.sustained["float32"]) == (1e14, 1.0, 1.0)
    assert row.memory_bandwidth * MEMORY_SHARE == pytest.approx(8e11)
    assert row.host_link_bandwidth * LINK_SHARE == pytest.approx(2e10)
    assert row.host_operator_seconds == 2e-5


def test_the_command_measures_keeps_and_checks(monkeypatch, capsys):
    checked = {
        "predicted": {"step_seconds": 0.09}, "measured": {"step_seconds": 0.1}, "device": "cpu",
    }  # fmt: skip
    monkeypatch.setattr(verification, "verify", lambda *words, **settings: checked)
    assert main(["calibrate", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "matrix products" in shown and "predicted 90 ms, measured 100 ms (-10%)" in shown and "kept in" in shown
    assert main(["calibrate", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["check"] == checked and calibrations.kept(document["identity"])["speeds"] == document["speeds"]
    assert main(["devices", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"] == document["speeds"]
    assert main(["devices", "cpu"]) == 0
    assert "calibration" in capsys.readouterr().out


def test_stopped_before_its_end_it_leaves_the_earlier_one(monkeypatch, capsys):
    kept = calibrate(CPU)

    @functools.cache
    def stopped(threads):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "measured_speeds", stopped)
    assert main(["calibrate", "--device", "cpu"]) == 130
    assert calibrations.kept(kept["identity"])["speeds"] == json.loads(json.dumps(kept["speeds"]))
    assert "stopped" in capsys.readouterr().err


def test_a_card_that_was_measured_keeps_its_host_time():
    from snugfit.recording.clock import HOST_LAUNCH_SECONDS, HOST_OPERATOR_SECONDS, issue_seconds
    from snugfit.recording.operator_run import OperatorRun

    run = OperatorRun("aten.add.Tensor", "", "forward", 0, 8, 8, "float32", 3, CUDA)
    card = device_named("rtx-4090")
    assert issue_seconds(run, card) == pytest.approx(HOST_OPERATOR_SECONDS + 3 * HOST_LAUNCH_SECONDS)
    measured = dataclasses.replace(card, host_operator_seconds=1e-5)
    assert issue_seconds(run, measured) == pytest.approx(1e-5 + 2 * HOST_LAUNCH_SECONDS)
