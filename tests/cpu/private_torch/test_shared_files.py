"""Checkpoints that several processes write and read together."""

from run_code import run_code


def test_shares_are_written_and_read(tmp_path):
    """shared_files: write_shares, read_shares, written_shares"""
    done = run_code(
        f"""
import torch, torch.distributed as dist
from pathlib import Path
from snugfit.private_torch import shared_files
folder = Path({str(tmp_path)!r})
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
shared_files.write_shares(folder, {{"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.float64)}}, None)
print(sorted(path.name for path in folder.iterdir()))
print(shared_files.written_shares(folder)["b"] == (torch.Size([2]), torch.float64))
for alone in (False, True):
    found = {{"a": torch.zeros(6)}}
    shared_files.read_shares(folder, found, None, alone=alone)
    print(found["a"].tolist())
(folder / "__0_0.distcp").unlink()
try:
    shared_files.read_shares(folder, found, None, alone=True)
except OSError as error:
    print("OSError", error.errno)
dist.destroy_process_group()
"""
    )
    assert done.returncode == 0, done.stderr
    values = str([float(one) for one in range(6)])
    assert done.stdout.splitlines() == ["['.metadata', '__0_0.distcp']", "True", values, values, "OSError 2"]
