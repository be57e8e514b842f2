"""A process that is forked from a warm one behaves as one that a fresh interpreter runs."""

import signal
import subprocess
import sys
from pathlib import Path

import patience
import pytest
import warm_start
from command_line import command, environment, run_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all processes start afresh")

WORKER = [sys.executable, "-m", "snugfit.workers.worker"]


@pytest.fixture
def warm(pytestconfig):
    if pytestconfig.getoption("fresh_processes", default=False):
        pytest.skip("all processes start afresh: --fresh-processes")


def is_forked(process):
    return getattr(process, "_server", None) is not None


def start(words, **settings):
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "nothing.py:build", "--data", "digits"),
        ("estimate", "nothing.py:build"),
        ("train", "--help"),
        ("techniques", "init"),
    ],
)
def test_what_it_says_and_how_it_ends_are_those_of_the_installed_command(tmp_path, words):
    warm, fresh = run_command(*words, cwd=tmp_path), run_command(*words, cwd=tmp_path, installed=True)
    assert (warm.returncode, warm.stdout, warm.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_it_is_a_process_of_its_own(warm, tmp_path):
    process = start(WORKER, cwd=tmp_path)
    assert is_forked(process) and process.poll() is None
    assert Path(f"/proc/{process.pid}/cwd").samefile(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.05)
    assert process.communicate(timeout=patience.SECONDS) == (b"", b"")  # its standard input ends
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it(warm, number):
    process = start(WORKER)
    process.send_signal(number)
    assert process.wait(timeout=patience.SECONDS) == process.poll() == -number
    process.communicate()


def test_what_is_read_at_import_starts_a_fresh_interpreter(warm, monkeypatch):
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # by an import of scikit-learn in another test
    process = start(WORKER, env=environment())
    process.communicate()
    assert is_forked(process)
    for words, settings, code in (
        (WORKER, {"env": {**environment(), "MALLOC_TRIM_THRESHOLD_": "65536"}}, 0),
        (command("train", "--exact-rss"), {}, 2),
        ([sys.executable, "-c", "import sys; sys.exit(3)"], {}, 3),
    ):
        process = start(words, **settings)
        process.communicate()
        assert not is_forked(process) and process.returncode == code
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    process = start(WORKER)
    process.communicate()
    assert not is_forked(process)


def test_a_server_that_is_gone_is_told_and_started_again(monkeypatch):
    monkeypatch.setitem(warm_start.SERVER_OF, tuple(WORKER[2:]), "plain")  # it ends before it needs what others import
    with warm_start.warm_start() as servers:
        words = command("plan", "--help")
        running = start(WORKER)
        assert is_forked(running)
        servers.end()
        assert running.wait(timeout=patience.SECONDS) == -signal.SIGKILL
        running.communicate()
        with pytest.warns(UserWarning, match="a server of warm processes is gone"):
            process = start(words)
        assert not is_forked(process)
        assert process.communicate(timeout=patience.SECONDS)[0] and process.returncode == 0
        process = start(words)
        assert is_forked(process)
        assert process.communicate(timeout=patience.SECONDS)[0] and process.returncode == 0


def test_nothing_is_left_after_the_tests(monkeypatch):
    monkeypatch.setitem(warm_start.SERVER_OF, tuple(WORKER[2:]), "plain")  # one that is there soon
    with warm_start.warm_start() as servers:
        process = start(WORKER)
        folder = Path(servers.folder)
        assert folder.is_dir() and subprocess.Popen.folder == servers.folder
        server = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert Path(f"/proc/{server}").exists()
    assert process.wait(timeout=patience.SECONDS) == -signal.SIGKILL and not folder.exists()
    assert not Path(f"/proc/{server}").exists()
    process.communicate()
    assert getattr(subprocess.Popen, "folder", None) != str(folder)
