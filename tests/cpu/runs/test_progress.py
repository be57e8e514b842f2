"""Progress: lines where nobody watches, a bar on a terminal, numbers that people can read."""

import fcntl
import io
import os
import pty
import select
import struct
import termios

from snugfit.runs.progress import Progress


def test_lines_are_few_and_whole():
    stream = io.StringIO()
    progress = Progress(total_steps=100, memory=lambda: (2**20, 3 * 2**20), stream=stream, line_seconds=3600)
    for _ in range(50):
        progress.advance()
        progress.show(1.0, 10.0)
    assert stream.getvalue() == ""
    progress.say("step 50/100: validation loss 1")
    progress.close()
    assert stream.getvalue() == "step 50/100: validation loss 1\n"


def test_a_line_tells_all():
    stream = io.StringIO()
    progress = Progress(total_steps=40, steps_done=10, memory=lambda: (2**20, 3 * 2**20), stream=stream, line_seconds=0)
    progress.advance()
    progress.show(0.12345, 1234.5)
    line = stream.getvalue()
    assert line.startswith("step 11/40: loss 0.1235, 1.23e+03 samples/s, memory 1.00 MiB (peak 3.00 MiB), ")
    assert line.endswith(" left\n") and line.count("\n") == 1


def test_bar_on_a_terminal():
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    with os.fdopen(child, "w") as stream:
        progress = Progress(total_steps=4, stream=stream)
        for step in range(4):
            progress.advance()
            progress.show(float(step), 7.0)
        progress.say("a line above")
        progress.close()
        stream.flush()
        text = ""
        while "a line above" not in text or "4/4" not in text:  # a terminal hands on what it got in its own time
            assert select.select([parent], [], [], 60)[0], text
            text += os.read(parent, 65536).decode()
    os.close(parent)
    assert "4/4" in text and "loss 3, 7 samples/s" in text and "a line above" in text


def test_bar_in_a_notebook(monkeypatch):
    monkeypatch.setattr("snugfit.runs.progress.in_notebook", lambda: True)
    stream = io.StringIO()
    progress = Progress(total_steps=4, stream=stream)
    progress.advance()
    progress.show(1.0, 7.0)
    progress.close()
    assert "1/4" in stream.getvalue() and "loss 1, 7 samples/s" in stream.getvalue()
