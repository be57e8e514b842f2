"""Long waits: one line on a terminal or under a cell, which goes away; nothing where nobody watches."""

import io
import time

import torch

import snugfit
from snugfit.planner.planner import Planner
from snugfit.report import waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def waited(stream, monkeypatch, *words, told=True):
    """What is on a stream after each of some waits, and after all of them."""
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(waiting, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "EACH_SECONDS", 0.01)
    seen = []
    with waiting.waits_are_told():
        for what in words:
            with waiting.waiting_for(what), waiting.waiting_for("a part of it"):
                end = time.monotonic() + 20
                while told and f"now {what[:10]}" not in stream.getvalue() and time.monotonic() < end:
                    time.sleep(0.01)
            waiting.say(f"a note on {what[:10]}")
            seen.append(stream.getvalue())
    return *seen, stream.getvalue()


def test_a_terminal_is_told_what_is_simulated_and_how_many_were(monkeypatch):
    long = "checkpoint=all, " * 20
    first, _, last = waited(Terminal(), monkeypatch, "precision=bf16-mixed", long)
    assert "simulated 0 in " in first and "now precision=bf16-mixed" in first
    assert "simulated 1 in " in last and "now checkpoint=all" in last and long not in last
    assert "a part of it" not in last
    assert "\ra note on precision=\n" in first  # a note has a line of its own
    assert not last.rpartition("\n")[2].strip("\r ")  # and nothing is left of ours


def test_a_cell_is_told_too(monkeypatch):
    monkeypatch.setattr(waiting, "in_notebook", lambda: True)
    first, _ = waited(io.StringIO(), monkeypatch, "a training step of Net")
    assert "simulated 0 in " in first and "now a training step of Net" in first


def test_python_callers_are_told(monkeypatch, pool):
    """As `snugfit estimate` and `snugfit plan` tell a person at a terminal."""
    stream, lines = Terminal(), []
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(waiting, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "EACH_SECONDS", 0.01)
    monkeypatch.setattr(Planner, "at", lambda *_: lines.append(waiting._line))
    model, batch = torch.nn.Linear(8, 8), torch.zeros(4, 8)
    loss = {"loss": lambda output, _: output.mean(), "device": "cpu", "pool": pool}
    snugfit.estimate(model, batch, **loss)
    assert "simulated 0 in " in stream.getvalue()
    snugfit.plan(model, batch, **loss, budget="1GiB")
    assert len(lines) == 1 and lines[0] is not None and waiting._line is None


def test_nobody_is_told_where_nobody_watches(monkeypatch):
    assert waited(io.StringIO(), monkeypatch, "plain", told=False) == ("a note on plain\n", "a note on plain\n")
