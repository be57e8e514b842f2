"""A script that compiles is recorded twice: as it runs eagerly, and then as torch compiles it, which is what it takes.

The second takes as long as torch's compiler does, kernels apart. Where it fails, the first one stands.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

from snugfit.errors import SnugfitError, in_words
from snugfit.recording.recording import Recording
from snugfit.simulator.compiled_code import EAGER
from snugfit.simulator.fresh_workers import fresh_workers


def record_as_it_compiles(record: Any, *request: Any, doing: str, **settings: Any) -> Recording:
    """Records a script, or a trainer's steps, in workers by `record`, which takes `compiles`; as `Pool.call`."""
    call = functools.partial(fresh_workers().call, record, *request, **settings)
    eager: Recording = call(doing=doing)
    if EAGER not in eager.warnings or os.environ.get("TORCH_COMPILE_DISABLE", "0") == "1":  # by torch's own variable
        return eager
    try:
        compiled: Recording = call(doing=f"{doing}, compiled", compiles=True)
    except Exception as error:  # compilers raise what they like
        reason = str(error) if isinstance(error, SnugfitError) else f"{in_words(error)}."
        reason = reason.split(" If it fails without snugfit")[0].replace(", with its traceback above", "")
        notes = [f"{EAGER} It was tried: {reason}" if note == EAGER else note for note in eager.warnings]
        return dataclasses.replace(eager, warnings=tuple(notes))
    return compiled
