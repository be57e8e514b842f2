"""Commands in fresh, tuned processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import patience
import pytest

from snugfit.measure import fresh
from snugfit.measure.fresh import TUNED_ENVIRONMENT, CommandError, run_json

SHOW = """
import json, os, sys
from snugfit.measure import fresh
if TYPED: fresh._is_snugfit_command = lambda: True
fresh.ensure_tuned_process()
print(json.dumps({"tuned": fresh.is_tuned(), "argv": sys.argv[1:], "flags": sys.flags.utf8_mode, "pid": os.getpid()}))
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these settings")


def plain_environment():
    return {name: value for name, value in os.environ.items() if name not in TUNED_ENVIRONMENT}


def show(tmp_path, typed):
    script = tmp_path / "show.py"
    script.write_text(SHOW.replace("TYPED", str(typed)))
    process = subprocess.Popen(
        [sys.executable, "-X", "utf8", str(script), "a b", "--c"], stdout=subprocess.PIPE, env=plain_environment()
    )
    output, _ = process.communicate(timeout=patience.SECONDS)
    return json.loads(output), process.pid


@linux
def test_command_is_replaced_by_itself_once(tmp_path):
    found, pid = show(tmp_path, typed=True)
    assert found == {"tuned": True, "argv": ["a b", "--c"], "flags": 1, "pid": pid}


def test_program_that_only_calls_snugfit_is_left_alone(tmp_path):
    found, _ = show(tmp_path, typed=False)
    assert found["tuned"] is False


@linux
def test_a_replaced_process_is_never_replaced_again(monkeypatch):
    for name in TUNED_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fresh, "_is_snugfit_command", lambda: True)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    replaced = []
    monkeypatch.setattr(fresh, "_replace_process", lambda: replaced.append(1))
    monkeypatch.setitem(sys._xoptions, fresh._MARK, True)
    fresh.ensure_tuned_process()
    assert replaced == []
    monkeypatch.delitem(sys._xoptions, fresh._MARK)
    fresh.ensure_tuned_process()
    assert replaced == [1]


def test_json_document_comes_back():
    assert "techniques" in run_json(["techniques"])


def test_failure_has_message_and_exit_code(capsys):
    with pytest.raises(CommandError, match="technique 'nonsense' is unknown") as caught:
        run_json(["techniques", "nonsense"])
    assert caught.value.exit_code == 2
    assert not str(caught.value).startswith("snugfit")
    assert "nonsense" in capsys.readouterr().err  # passed on as it came


def test_lines_of_stderr_go_to_the_caller(capsys):
    lines = []
    with pytest.raises(CommandError):
        run_json(["techniques", "nonsense"], on_line=lines.append)
    assert len(lines) == 1
    assert capsys.readouterr().err == ""


def test_time_limit(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import time, sys\nif '-m' in sys.orig_argv: time.sleep(30)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CommandError, match=r"stopped after 0\.5 s") as caught:
        run_json(["techniques"], timeout_seconds=0.5)
    assert caught.value.exit_code == 4
