"""Runs of several processes: a small model, commands that are joined by their environment, and what came of them."""

from __future__ import annotations

import json
import socket
import subprocess

import patience
from command_line import command, environment
from safetensors.torch import load_file

MODEL = """
import os
import resource
from pathlib import Path

import torch
from torch import nn


class Net(nn.Sequential):
    def forward(self, x):
        if self.training and os.environ.get("RANK") == os.environ.get("NAN_IN", "none"):
            self.calls = getattr(self, "calls", 0) + 1
            x = x * float("nan") if self.calls > 4 else x
        return super().forward(x)


class Large(nn.Module):
    '''Takes 32 MiB a sample; one process may be given 220 MiB beside what it has when it first trains.'''

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        here = os.environ.get("RANK") == os.environ.get("LITTLE_MEMORY", "none") and torch.is_grad_enabled()
        if here and resource.getrlimit(resource.RLIMIT_DATA)[1] == resource.RLIM_INFINITY:
            with open("/proc/self/status") as status:
                most = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData")) + 220 * 2**20
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        wide = x.repeat(1, 2**21 // x.shape[1] + 1)[:, : 2**21] * self.scale
        return x + wide.exp().log().view(len(x), -1, 128).mean((1, 2)).unsqueeze(1) * 0.1


def build(num_classes=10, width=24, dropout=0.0):
    if "WRITE_NUMBERS" in os.environ:
        Path("process-" + os.environ["RANK"]).write_text(str(os.getpid()))
    layers = [nn.Linear(192, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU()]
    return Net(nn.Flatten(), *layers, nn.Linear(width, num_classes))


def large(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 24), Large(), nn.Linear(24, num_classes))


def coupled(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 24), AcrossSamples(), nn.Linear(24, num_classes))


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return x * self.scale


def scalar(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes), Scalar())


class AcrossSamples(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Breaks(Net):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + self.training
        if self.calls == 5 and os.environ.get("RANK") == "1":
            if os.environ["BREAKS"] == "exit":
                os._exit(7)
            raise KeyError("mine")
        return super().forward(x)


def breaks(num_classes=10):
    return Breaks(nn.Flatten(), nn.Linear(192, num_classes))


def other(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))
"""

RUN = [
    "train", "model.py:build", "--data", "random", "--samples", "101", "--image-size", "8", "--model-arg", "num_classes=10",
    "--batch-size", "16", "--max-steps", "9", "--save-every", "3",
]  # fmt: skip


def of_model(name, run=RUN):
    """The words of a run of another model of the file."""
    return [run[0], f"model.py:{name}", *run[2:]]


def free_port():
    """A port that nothing uses at the moment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def by_torchrun(number, ranks, port):
    """The variables by which a process finds the others, as torchrun sets them."""
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {**there, "RANK": number, "LOCAL_RANK": number}


def started(folder, *words, **variables):
    """Starts a command."""
    own = {**environment(), "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    own |= {name: str(value) for name, value in variables.items()}
    pipe = subprocess.PIPE
    return subprocess.Popen([*map(str, words)], cwd=folder, env=own, stdout=pipe, stderr=pipe, text=True)


def ended(processes):
    """The codes of processes, what they said on stderr, and the document of the first."""
    told = [one.communicate(timeout=patience.SECONDS) for one in processes]
    errors = "".join(error for _, error in told)
    assert "Traceback" not in errors, errors
    assert all(out == "" for out, _ in told[1:])
    return [one.returncode for one in processes], errors, json.loads(told[0][0]) if told[0][0] else None


def both(folder, *words, each=lambda number: (), ranks=2, there=2, joined=by_torchrun, **variables):
    """Runs a command in two processes; returns their codes, what they said on stderr, and the document of the first."""
    port = free_port()
    return ended(
        [
            started(folder, *command(*words, *each(number), "--json"), **{**joined(number, ranks, port), **variables})
            for number in range(there)
        ]
    )


def alone(folder, *words, code=0, **variables):
    """Runs a command; returns its document, or what it said where it must fail."""
    codes, said, found = ended([started(folder, *command(*words, "--json"), **variables)])
    assert codes == [code], said
    return said if code else found


def difference(one, other):
    """The largest difference of the weights of two runs."""
    one, other = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)
