"""What is said where a script ends, fails or does not train."""

import sys

import pytest
from own_scripts import LOOP, TRAINS, estimated, written

SAVES = """
places = {weight.untyped_storage().data_ptr() for _ in range(2) for weight in model.parameters()}
raise SystemExit(0 if len(places) == 4 else "two weights in one place")
"""


def test_what_fails_behind_the_steps_is_one_line(tmp_path, capsys):
    few = LOOP.replace("range(50)", "range(1)")
    _, whole, err = estimated(capsys, written(tmp_path, TRAINS + few + SAVES))
    assert whole is not None and "two weights" not in err and "behind the steps" not in err
    path = written(tmp_path, TRAINS + few + "raise OSError(\n    'no place\\non the disk')\n")
    _, failed, err = estimated(capsys, path)
    assert f"{path} failed behind the steps that are estimated: OSError: no place on the disk at {path}:" in err
    assert "Traceback" not in err
    assert failed["peak_allocated_bytes"] == whole["peak_allocated_bytes"]


@pytest.mark.parametrize(
    "text, code, said",
    [
        ("print('nothing to do')", 2, "without a step of an optimizer"),
        ("raise SystemExit(3)", 2, "exit status 3"),
        ("open('missing.csv')", 2, "FileNotFoundError"),
        ("import torch._six", 2, "written for another version of torch"),
        ("import missing_module", 2, f"runs in the Python of {sys.prefix}: install it there"),
        ("input('go on?')", 5, "reads standard input"),
        (
            "import snugfit, torch\nsnugfit.estimate(torch.nn.Linear(2, 2), torch.ones(2, 2), device='cpu')",
            2,
            "It asks snugfit for an estimate or a plan",
        ),
        (
            "import snugfit, torch\nfrom snugfit.operators import host_speeds\nhost_speeds.kept_speeds = lambda *_: None\n"
            "snugfit.plan(torch.nn.Linear(2, 2), torch.ones(2, 2), device='cpu', budget='1GiB')",
            2,
            "It asks snugfit for an estimate or a plan",
        ),
        ("import subprocess\nsubprocess.run(['git', 'pull'])", 2, "no program is started in an estimate"),
        ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')", 2, "What it downloads has to be there"),
        ("raise ConnectionError('no data set of this name is here')", 2, "What it downloads has to be there"),
        ("raise FileNotFoundError('not on the Hugging Face Hub either')", 2, "What it downloads has to be there"),
        ("import multiprocessing\nmultiprocessing.Process(target=print).start()", 5, "starts a process"),
        (
            "x = torch.multinomial(torch.ones(2**16, device=device), 2**15)\nprint(x[x > 9].shape)",
            5,
            "--assume nonzero",
        ),
        (
            "try:\n    x = torch.multinomial(torch.ones(2**16, device=device), 2**15)\n    x[x > 9].sum()\n"
            "except Exception as error:\n    print(error)",
            5,
            "--assume nonzero",
        ),
    ],
    ids=[
        "no step",
        "exit",
        "file",
        "version",
        "module",
        "stdin",
        "itself",
        "itself, timing",
        "program",
        "download",
        "data set",
        "hub",
        "process",
        "values",
        "caught",
    ],
)
def test_what_ends_a_script_is_told_in_one_line(tmp_path, capsys, monkeypatch, text, code, said):
    monkeypatch.chdir(tmp_path)
    got, _, err = estimated(capsys, written(tmp_path, TRAINS + text))
    last = err.strip().splitlines()[-1]
    assert (got, "snugfit/" in last) == (code, False) and last.startswith("snugfit: ") and said in last


def test_a_module_of_a_package(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_package").mkdir()
    written(tmp_path / "own_package", "width = 64", name="sizes.py")
    path = written(tmp_path / "own_package", "from .sizes import width as least\n" + TRAINS + LOOP)
    code, _, err = estimated(capsys, path)
    assert code == 2 and "-m package.module" in err
    code, found, err = estimated(capsys, "-m", "own_package.train", "--width", "32")
    assert (code, found["title"], found["parameters"]) == (0, "-m own_package.train", 1188)
    assert found["peak_allocated_bytes"] > 0
    sys.modules.pop("own_package", None)


def test_the_traceback_goes_to_what_stands_in_for_stderr(tmp_path, capsys):
    logger = """
    import sys
    class Logger:
        def write(self, text):
            pass
        def flush(self):
            pass
    sys.stderr = Logger()
    raise ValueError("no data")
    """
    code, _, err = estimated(capsys, written(tmp_path, logger))
    assert code == 2 and "ValueError: no data" in err.splitlines()[-1]


def test_what_asks_for_values_behind_the_steps_is_told_and_the_steps_are_estimated(tmp_path, capsys):
    asks = "print(len(model(torch.randn(8, 32, device=device)).unique()))\n"
    few = LOOP.replace("range(50)", "range(1)")
    path = written(tmp_path, TRAINS + few + asks)
    _, found, err = estimated(capsys, path)
    _, whole, _ = estimated(capsys, written(tmp_path, TRAINS + few, "alone.py"))
    assert f"{path} was not followed to its end: aten._unique2" in err and "--assume unique" in err
    assert found["peak_allocated_bytes"] == whole["peak_allocated_bytes"]


def test_a_notebook_that_was_saved_as_a_script_runs_its_timed_cells_and_no_other_magics(tmp_path, capsys):
    begins = (
        "get_ipython().system('pip install timm')\nget_ipython().run_line_magic('matplotlib', 'inline')\n"
        "files = get_ipython().getoutput('ls')\nget_ipython().run_line_magic('time', 'size = 64')\n"
        "get_ipython().run_cell_magic('writefile', 'made.py', 'no code')\n"
    )
    cell = f"get_ipython().run_cell_magic('time', '', {LOOP.replace('batch_size=64', 'batch_size=size')!r})\n"
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + begins + cell))
    _, plain, _ = estimated(capsys, written(tmp_path, TRAINS + LOOP, "plain.py"))
    assert found is not None, err
    assert found["peak_allocated_bytes"] == plain["peak_allocated_bytes"]
