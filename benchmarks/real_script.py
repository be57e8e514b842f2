"""Takes a script through the very steps that `snugfit estimate SCRIPT` takes it through, on real tensors.

    snugfit profile --steps 1000 benchmarks/real_script.py [--losses FILE] SCRIPT [its arguments]

Loaders read in this process and end early, and the script ends where its optimizer begins a fourth step. Random numbers
are seeded before it begins. FILE gets the losses that were differentiated, as JSON.
"""

from __future__ import annotations

import json
import random
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import torch

from snugfit.attributes import replaced
from snugfit.private_torch.gloo import letting_go
from snugfit.simulator.harmless import harmless
from snugfit.simulator.script import Program, as_main
from snugfit.simulator.stored_tensors import stored_tensors
from snugfit.simulator.watched_script import WatchedScript

if __name__ == "__main__":
    words, file, losses = sys.argv[1:], None, list[float]()
    if words[0] == "--losses":
        file, words = Path(words[1]), words[2:]
    script = Path(words[0])
    program = Program(script)
    watched = WatchedScript(program.owns)
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(0)

    def told(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
            losses.append(tensors.item())
        counted(tensors, *args, **kwargs)

    try:
        with ExitStack() as around:
            watched.begin(around)
            around.enter_context(harmless())
            around.enter_context(replaced([*stored_tensors(), *watched.changes()]))
            if file is not None:
                counted = torch.autograd.backward
                around.enter_context(replaced([(torch.autograd, "backward", told)]))
            around.enter_context(letting_go())
            around.enter_context(as_main(program, words[1:]))
            runpy.run_path(str(script), run_name="__main__")
    finally:
        if file is not None:
            file.write_text(json.dumps(losses))
