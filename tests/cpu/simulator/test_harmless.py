"""What a script writes, sends and starts while it is looked at."""

import importlib
import os
from pathlib import Path

import pytest
from own_scripts import LOOP, TRAINS, estimated, written

from snugfit.simulator.harmless import harmless


def test_nothing_is_left_behind(tmp_path, capsys, monkeypatch):
    leaves = """
import bz2, io, json, os, shutil, socket, tarfile
from pathlib import Path
Path("out").mkdir(exist_ok=True)
os.makedirs("out/deep/er")
Path("out/log.json").write_text(json.dumps({"loss": 1}))
assert json.loads(Path("out/log.json").read_text()) == {"loss": 1} and os.path.isdir("out/deep/er")
low = os.open("lock", os.O_RDWR)  # a lock that was taken before, as filelock takes it
os.write(low, b"new")
os.close(low)
assert open("lock").read() == "newfile"
try:
    os.open("other", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    raise SystemExit("was not there")
except FileExistsError:
    pass
with tarfile.open("out/all.tar.bz2", "w:bz2") as archive:
    archive.add("out/log.json")
with tarfile.open("out/all.tar.bz2") as archive, bz2.open("out/more.bz2", "wb") as more:
    more.write(archive.extractfile("out/log.json").read())
assert json.loads(bz2.open("out/more.bz2").read()) == {"loss": 1}
with open("kept.txt", "a") as log:
    log.write("more")
assert open("kept.txt").read() == "keptmore"
os.remove("kept.txt")
shutil.rmtree("folder")
torch.save(model.state_dict(), "out/new.pt")
os.replace("out/new.pt", "out/model.pt")
assert os.path.getsize("out/model.pt")
model.load_state_dict(torch.load("out/model.pt"))
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
buffer.seek(0)
model.load_state_dict(torch.load(buffer))
try:
    socket.create_connection(("127.0.0.1", 9))
    raise SystemExit("was not refused")
except OSError:
    pass
"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.txt").write_text("kept")
    for name in ("lock", "other"):
        (tmp_path / name).write_text("oldfile")
    (tmp_path / "folder").mkdir()
    path = written(tmp_path, TRAINS + leaves + LOOP)
    before = sorted(tmp_path.rglob("*"))
    code, _, err = estimated(capsys, path)
    assert code == 0, err
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "kept.txt").read_text() == "kept"
    assert (tmp_path / "lock").read_text() == "oldfile"


def test_sparse_data_and_pools_of_processes_prepare_data(tmp_path, capsys):
    prepares = """
from multiprocessing import Pool
with Pool(2) as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
graph = torch.tensor([0.5] * 64).diag().to_sparse()
assert (graph @ graph).is_sparse
edges = torch.sparse_coo_tensor([[0], [1]], torch.ones(1), (64, 64), dtype=torch.int64)
assert (torch.eye(64) + edges)[0, :2].tolist() == [1, 1]
"""
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + prepares + LOOP))
    assert code == 0, err


def test_arrow_reads_what_was_written(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    with harmless():
        (tmp_path / "cache").mkdir()
        assert os.statvfs(tmp_path / "cache").f_namemax
        (tmp_path / "cache" / "rows").write_bytes(b"rows")
        assert pyarrow.memory_map(str(tmp_path / "cache" / "rows")).read() == b"rows"
    assert not list(tmp_path.iterdir())


def test_code_of_hubs_is_imported_from_where_it_is_written(monkeypatch):
    with harmless():
        folder = Path(os.environ["HF_MODULES_CACHE"])
        folder.mkdir()
        (folder / "metric_of_a_hub.py").write_text("ANSWER = 42")
        monkeypatch.syspath_prepend(folder)
        assert importlib.import_module("metric_of_a_hub").ANSWER == 42


def test_a_file_that_is_touched_is_there(tmp_path, capsys):
    touched = """
    from pathlib import Path
    Path("marker").touch()
    assert open("marker").read() == "" and Path("marker").exists()
    """
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + touched.replace("\n    ", "\n") + LOOP), device="cpu")
    assert code == 0, err
    assert not (tmp_path / "marker").exists()
