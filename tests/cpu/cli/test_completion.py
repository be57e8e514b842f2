"""Shell completion: a real bash completes what is typed, without starting Python."""

import pexpect
import pytest

from snugfit.cli import COMMANDS, main
from snugfit.cli.completion import SHELLS

COMPLETED = {
    "techn": "techniques",
    "plan --precis": "plan --precision",
    "plan --precision bf16-m": "plan --precision bf16-mixed",
    "estimate --device rtx-4090": "estimate --device rtx-4090",
    "train --device cud": "train --device cuda",
    "train --recipe folder/rec": "train --recipe folder/recipe.yaml",
    "export --to axo": "export --to axolotl",
    "ladder --preset llama-8": "ladder --preset llama-8b",
    "techniques step_": "techniques step_in_backward",
}
"""What is typed before the tab key -> what bash then runs."""


def script(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_options_and_values(tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "recipe.yaml").touch()
    (tmp_path / "script").write_text(script("bash", capsys))
    settings = {"PATH": "/usr/bin:/bin", "TERM": "dumb", "HOME": str(tmp_path)}
    bash = pexpect.spawn("bash", ["--norc", "--noprofile", "-i"], env=settings, cwd=tmp_path, encoding="utf-8")
    bash.sendline('source ./script; snugfit() { echo "[$*]"; }; snugfit is there')
    bash.expect_exact("[is there]")
    for typed, whole in COMPLETED.items():
        bash.send(f"snugfit {typed}\t\n")
        bash.expect_exact(f"[{whole}]", timeout=20)
    bash.close(force=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_knows_all_commands(shell, capsys):
    text = script(shell, capsys)
    assert all(name in text for name in COMMANDS) and "bf16-mixed" in text
