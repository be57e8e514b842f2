"""A script that compiles is recorded twice: as it runs eagerly, and then as torch compiles it, which is what it takes.

The second takes as long as torch's compiler does, kernels apart. Where it fails, the first one stands.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

from snugfit.errors import SnugfitError
from snugfit.simulator.compiled_code import EAGER
from snugfit.simulator.fresh_workers import fresh_workers
from snugfit.simulator.script_seen import ScriptRecording


def record_as_it_compiles(record: Any, *request: Any, doing: str, **settings: Any) -> ScriptRecording:
    """Records a script in workers by `record`, which takes `compiles`; as `Pool.call`."""
    call = functools.partial(fresh_workers().call, record, *request, **settings)
    eager: ScriptRecording = call(doing=doing)
    if EAGER not in eager.warnings or os.environ.get("TORCH_COMPILE_DISABLE", "0") == "1":  # by torch's own variable
        return eager
    try:
        compiled: ScriptRecording = call(doing=f"{doing}, compiled", compiles=True)
    except SnugfitError as error:
        reason = str(error).split(" If it fails without snugfit")[0].replace(", with its traceback above", "")
        notes = [f"{EAGER} It was tried: {reason}" if note == EAGER else note for note in eager.warnings]
        return dataclasses.replace(eager, warnings=tuple(notes))
    return compiled
