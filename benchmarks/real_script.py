"""Takes a script through the very steps that `snugfit estimate SCRIPT` takes it through, on real tensors.

    snugfit profile --steps 1000 benchmarks/real_script.py SCRIPT [its arguments]

Loaders read in this process and end early, and the script ends where its optimizer begins a fourth step.
"""

from __future__ import annotations

import runpy
import sys
from contextlib import ExitStack
from pathlib import Path

from snugfit.attributes import replaced
from snugfit.simulator.harmless import harmless
from snugfit.simulator.own_script import WatchedScript
from snugfit.simulator.script import as_main

if __name__ == "__main__":
    script = Path(sys.argv[1])
    watched = WatchedScript(script)
    with ExitStack() as around:
        watched.begin(around)
        around.enter_context(harmless())
        around.enter_context(replaced(watched.changes()))
        around.enter_context(as_main(script, sys.argv[2:]))
        runpy.run_path(str(script), run_name="__main__")
