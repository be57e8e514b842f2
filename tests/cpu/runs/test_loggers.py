"""Loggers: they get rows and memory, and no trouble of theirs ends a run or is printed where documents are."""

import sys

import pytest

from snugfit.errors import InputError, SnugfitWarning
from snugfit.runs import loggers
from snugfit.runs.loggers import flat, logged_to, loggers_named

PREDICTED = {"peak_tensor_bytes": 100, "context_bytes": None, "step_seconds": 0.1}
SUMMARY = {"steps": 2, "predicted": PREDICTED, "measured": {"peak_tensor_bytes": 101, "ranks": []}}


@pytest.fixture
def kept(monkeypatch):
    """What two loggers were told, of which the second can be made to fail."""
    told = {"good": [], "bad": [], "fails_at": None}

    def opening(name):
        def opened(path, settings):
            def log(values, step):
                if name == "bad" and told["fails_at"] == step:
                    raise ConnectionError("the server\nis gone")
                print("a logger that talks")
                told[name].append((step, dict(values)))

            if told["fails_at"] == 0 and name == "bad":
                raise RuntimeError("no key")
            told[name].append((path.name, settings))
            return log, lambda failed: told[name].append(failed)

        return opened

    monkeypatch.setattr(loggers, "LOGGERS", {name: (opening(name), "json") for name in ("good", "bad")})
    return told


def run(folder, failing=None):
    with logged_to(["good", "bad"], folder / "name", {"recipe.precision": "fp32"}, PREDICTED) as log:
        log.take({"step": 1, "epoch": 0, "loss": 3.0, "lr": None})
        if failing is not None:
            raise failing
        log.take({"step": 2, "epoch": 0, "loss": 2.0})
        log.end(SUMMARY)


def test_rows_and_memory_arrive(kept, tmp_path, capsys):
    run(tmp_path)
    predicted, measured = {"memory/predicted_peak_tensor_bytes": 100}, {"memory/measured_peak_tensor_bytes": 101}
    rows = [(1, {"loss": 3.0, **predicted}), (2, {"loss": 2.0}), (2, {**predicted, **measured})]
    assert kept["good"] == kept["bad"] == [("name", {"recipe.precision": "fp32"}), *rows, False]
    assert capsys.readouterr().out == "" and sys.stdout is not sys.stderr


def test_a_run_that_ends_early_is_said_to_have_failed(kept, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, failing=KeyboardInterrupt())
    assert kept["good"][-1] is True


def test_a_logger_that_fails_is_left_alone(kept, tmp_path):
    kept["fails_at"] = 2
    with pytest.warns(
        SnugfitWarning, match=r"bad takes no more metrics \(ConnectionError: the server is gone\)"
    ) as told:
        run(tmp_path)
    assert len(told) == 1 and kept["bad"][-1][0] == 1 and kept["good"][-1] is False


def test_a_logger_that_does_not_start_is_told_before_training(kept, tmp_path):
    kept["fails_at"] = 0
    with pytest.raises(InputError, match="log_to bad does not start: RuntimeError: no key"):
        run(tmp_path)
    assert kept["good"][-1] is True


def test_names():
    assert loggers_named("wandb, tensorboard,wandb") == loggers_named(["wandb", "tensorboard"])
    assert loggers_named(None) == ()
    with pytest.raises(InputError, match="did you mean 'mlflow'"):
        loggers_named("mlfow")


def test_settings_have_dotted_names():
    assert flat(model="m", settings={"lr": 1, "betas": (0.9, 0.99), "none": {}}) == {
        "model": "m", "settings.lr": 1, "settings.betas": (0.9, 0.99), "settings.none": {}
    }  # fmt: skip
