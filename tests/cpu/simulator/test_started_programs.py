"""Programs that a script starts while it is looked at."""

import pytest
from own_scripts import LOOP, TRAINS, estimated, written

from snugfit.simulator.started_programs import only_reads

STARTS = """
import os, subprocess
assert subprocess.check_output(["git", "--version"], text=True).startswith("git version")
assert subprocess.run("git rev-parse HEAD 2>/dev/null", shell=True, capture_output=True).returncode == 128
rows, columns = os.popen("stty size", "r").read().split()
assert int(rows) and int(columns) and subprocess.check_output(["stty", "size"]).decode().split() == [rows, columns]
assert subprocess.run(["cp", "-r", "kept.txt", "copy.txt"], check=True).returncode == 0
assert os.system("mkdir -p made") == 0 and os.system("python prepare.py") != 0
assert subprocess.getoutput("cd /sys; for i in *; do cat $i/none; done") == ""
"""


def test_what_only_reads_is_run_and_files_stay(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.txt").write_text("kept")
    path = written(tmp_path, TRAINS + STARTS + LOOP)
    before = sorted(tmp_path.rglob("*"))
    code, _, err = estimated(capsys, path)
    assert code == 0 and sorted(tmp_path.rglob("*")) == before
    assert "'python prepare.py' is not run in an estimate" in err and "$i/none" in err and "mkdir" not in err


@pytest.mark.parametrize(
    "command, reads",
    [
        (["git", "rev-parse", "HEAD"], True),
        (["/usr/bin/git", "describe", "--tags"], True),
        (["bash", "-c", "hostname"], True),
        (b"uname -a 2>&1", True),
        ("nvidia-smi --query-gpu=memory.free --format=csv", True),
        ("nvidia-smi -pm 1", False),
        ("hostname other", False),
        ("git", False),
        ("git push", False),
        ("hostname > name.txt", False),
        ("hostname; reboot", False),
        ("echo 'no end", False),
        (["python", "train.py"], False),
        ([], False),
    ],
)
def test_programs_that_only_read(command, reads):
    assert only_reads(command) == reads
