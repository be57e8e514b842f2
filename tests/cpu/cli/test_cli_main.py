"""The command as such: help without torch, hints for typos, one line for errors and warnings, pipes that close."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from command_line import command, environment, run_command

import snugfit.cli
from snugfit.cli import COMMANDS, main, parse
from snugfit.errors import SnugfitWarning, TrainingError

PRESENT = sorted(COMMANDS)


@pytest.mark.parametrize("words", [[], *([name] for name in PRESENT)], ids=lambda words: " ".join(words) or "snugfit")
def test_help_takes_no_time_and_no_torch(words, tmp_path):
    code = (
        "import sys\nfrom snugfit.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "finally:\n    assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules), 'heavy import'\n"
        "    assert len(sys.modules) < 350, len(sys.modules)\n"  # what takes the time; seconds depend on the machine
    )
    checked = subprocess.run(
        [sys.executable, "-c", code, *words, "--help"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    shown = run_command(*words, "--help", cwd=tmp_path)
    assert shown.returncode == 0 and shown.stdout.startswith("usage: snugfit")
    assert shown.stderr == "" and shown.stdout == checked.stdout


def test_help_lists_what_is_there_and_train_shows_examples(tmp_path):
    shown = run_command("--help", cwd=tmp_path).stdout
    assert all(name in shown for name in PRESENT)
    assert "train" in PRESENT
    assert (
        "snugfit train torchvision:resnet18 --data cifar10:data" in run_command("train", "--help", cwd=tmp_path).stdout
    )


@pytest.mark.parametrize("words", [["trian"], ["train", "m", "--data"]])
def test_what_cannot_be_read_is_exit_2_with_one_line(words, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("snugfit: ") and err.count("\n") == 1


def test_no_command_says_what_to_type_first(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("snugfit: ")
    commands = [line.split("     ")[0].split()[1:] for line in err.splitlines() if line.startswith("  snugfit ")]
    assert [words[0] for words in commands] == ["estimate", "estimate", "plan", "train"]
    for words in commands:
        assert parse(words).run
    assert len(err.splitlines()) == 10
    assert [line.split()[0] for line in err.splitlines()[-3:]] == ["GPU", "torch", "calibrated"]


def test_no_command_looks_at_the_machine_without_torch(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA L4, 2048, 23034\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    code = "import sys\nfrom snugfit.cli import main\nmain([])\nassert not {'torch', 'numpy'} & set(sys.modules)"
    paths = {**environment(), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    said = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=True).stderr
    assert "NVIDIA L4, 2.00 GiB of 22.5 GiB free now" in said


def test_version(tmp_path):
    assert run_command("--version", cwd=tmp_path).stdout == f"snugfit {snugfit.__version__}\n"


class FakeCommand:
    """Stands in for the module of a subcommand."""

    def __init__(self, action):
        self.run = action

    def add_arguments(self, parser):
        parser.add_argument("--json", action="store_true")


def with_command(monkeypatch, action):
    monkeypatch.setattr(snugfit.cli, "COMMANDS", {"train": "x"})
    monkeypatch.setattr(snugfit.cli.importlib, "import_module", lambda name: FakeCommand(action))


def test_errors_carry_their_exit_code_and_leave_stdout_empty(monkeypatch, capsys):
    def fails(args):
        raise TrainingError("it went wrong.")

    with_command(monkeypatch, fails)
    assert main(["train", "--json"]) == 4
    assert capsys.readouterr() == ("", "snugfit: it went wrong.\n")


def test_ctrl_c_is_130(monkeypatch, capsys):
    def stopped(args):
        raise KeyboardInterrupt

    with_command(monkeypatch, stopped)
    assert main(["train"]) == 130
    assert capsys.readouterr() == ("", "snugfit: stopped.\n")


def test_our_warnings_are_one_clean_line(monkeypatch, capsys):
    def warns(args):
        for _ in range(2):
            warnings.warn("pin_memory has no effect here.", SnugfitWarning)
        return 0

    with_command(monkeypatch, warns)
    before = warnings.showwarning
    assert main(["train"]) == 0
    assert capsys.readouterr() == ("", "snugfit: pin_memory has no effect here.\n")
    assert warnings.showwarning is before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_no_traceback(tmp_path):
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command("devices"),
            cwd=tmp_path,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 2 and "Make room" in ended.stderr and "Traceback" not in ended.stderr


def test_closed_pipe_is_no_traceback(tmp_path):
    writer = (
        "import sys\nimport snugfit.cli as cli\n"
        "class Long:\n"
        "    add_arguments = staticmethod(lambda parser: None)\n"
        "    run = staticmethod(lambda args: [print('line', number) for number in range(100000)] and 0)\n"
        "cli.importlib.import_module = lambda name: Long\n"
        "sys.exit(cli.main(['train']))\n"
    )
    script = tmp_path / "writer.py"
    script.write_text(writer)
    ended = subprocess.run(
        ["bash", "-c", f"{sys.executable} {script} | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout == "line 0\n141\n"


def test_module_and_console_script_are_the_same_command(tmp_path):
    script = Path(sys.executable).with_name("snugfit")
    by_script = subprocess.run([script, "train"], capture_output=True, text=True, env=environment(), check=False)
    by_module = subprocess.run(command("train"), capture_output=True, text=True, env=environment(), check=False)
    assert by_script.returncode == by_module.returncode == 2
    assert by_script.stderr == by_module.stderr
    assert by_script.stdout == ""
