"""Commands typed wrong: one message, exit code 2, nothing written."""

import shlex

import pytest
from command_line import run_command
from wrong_lines import check, table


@pytest.mark.parametrize("line", list(table()), ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)


@pytest.mark.parametrize("words", ["torchvision:resnet19", "model.py:build --image-size 8 --recipe types.yaml"])
def test_as_typed(broken_folder, words):
    """The same through a real process, with and without torch being loaded for it."""
    ended = run_command(*shlex.split(f"train {words} --data random --json"), cwd=broken_folder)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("snugfit: ") and "Traceback" not in ended.stderr
