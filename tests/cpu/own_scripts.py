"""Training scripts as people write them, and what is estimated and measured of them."""

import json
import subprocess
import sys
import textwrap

from command_line import run_command

from snugfit.cli import main

TRAINS = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=256)
width = parser.parse_args().width
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
"""
LOOP = """
data = torch.utils.data.TensorDataset(torch.randn(640, 32), torch.arange(640) % 4)
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, num_workers=2, pin_memory=True)
for epoch in range(50):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
"""


def written(folder, text, name="train.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def estimated(capsys, path, *words, device="rtx-4090"):
    code = main(["estimate", "--device", device, "--json", str(path), *words])
    out, err = capsys.readouterr()
    return code, json.loads(out) if code == 0 else None, err


def measured_bytes(path, *words, until="--stop"):
    """The most bytes that live tensors have in three steps of a real run, or in all of it."""
    done = run_command("profile", "--json", "--no-advice", until, path, *words, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["allocator_peak_bytes"]


_ALONE = """
import runpy, sys
from snugfit.measure.allocator_events import AllocatorEvents
events = AllocatorEvents()
events.start()
runpy.run_path(sys.argv[1], run_name="__main__")
events.stop()
print(events.peak_bytes)
"""


def unwatched_bytes(path):
    """The most bytes that live tensors have in a real run that nobody looks into, so that torch compiles."""
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, path], cwd=path.parent, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])
