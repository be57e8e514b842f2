"""Long waits: one line on a terminal, which goes away; nothing where nobody watches."""

import io
import time

from snugfit.report import waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def waited(stream, monkeypatch, *words):
    """What is on a stream after each of some waits, and after all of them."""
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(waiting, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "EACH_SECONDS", 0.01)
    seen = []
    with waiting.told_on_terminal():
        for what in words:
            with waiting.waiting_for(what), waiting.waiting_for("a part of it"):
                end = time.monotonic() + 20
                while stream.isatty() and f"now {what[:10]}" not in stream.getvalue() and time.monotonic() < end:
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


def test_nobody_is_told_where_nobody_watches(monkeypatch):
    assert waited(io.StringIO(), monkeypatch, "plain") == ("a note on plain\n", "a note on plain\n")
