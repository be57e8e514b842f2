"""How a compiled model runs in a simulation: torch compiles it for fake tensors, with kernels that compute nothing.

Nothing about a compiler is modelled. Dynamo traces the model, AOTAutograd decides what is saved for backward, inductor's
scheduler what is fused and its code which buffers are made, reused and dropped, all as in a real run; the recorder sees
what that code asks for. Only a generated kernel is neither compiled nor run: it reads and writes whole tensors once.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from snugfit.attributes import replaced
from snugfit.errors import warn
from snugfit.fake_device.personality import DEVICE_TYPE, Personality
from snugfit.private_torch import compiler
from snugfit.private_torch.backward_errors import BackendGuard
from snugfit.private_torch.dispatcher import own_operator
from snugfit.recipe import Recipe
from snugfit.recorder.recorder import Recorder
from snugfit.recorder.script_recorder import ScriptRecorder
from snugfit.techniques.compile import bound_in_words

_OF_OURS = "(?s).*(there are global hooks on modules|dynamo_pgo force disabled)"
"""What torch warns of because a simulation looks on, and keeps nothing."""


@contextmanager
def compiled_on_fakes(recipe: Recipe, personality: Personality) -> Iterator[None]:
    """Context in which a recorded step compiles its model, if the recipe asks for that."""
    if recipe.compile == "none":
        yield
    else:
        with compiling(f"compile={recipe.compile!r}", personality):
            yield


@contextmanager
def compiling(what: str, personality: Personality) -> Iterator[None]:
    """Context in which torch compiles for fake tensors; `what`: what asked for it, in what is said at its end."""
    compiler.forget_all()
    compiler.never_compile(Recorder.__torch_dispatch__, ScriptRecorder.__torch_dispatch__, BackendGuard.type_)
    changes = compiler.kernels_stand_in(_fused_kernel)
    if personality.is_card:
        changes += compiler.device_stands_in(DEVICE_TYPE, personality.capability)
    quiet = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with replaced(changes), compiler.nothing_kept(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_OF_OURS)
            yield
        warn(bound_in_words(what, on_card=personality.is_card))
        if breaks := compiler.graph_breaks():
            warn(
                f"{what} cannot trace the code whole: its graph breaks, the first time because of: {breaks[0].rstrip('.')}. "
                "Between the pieces it runs eagerly, in a run as in this prediction."
            )
    finally:
        logging.disable(quiet)
        compiler.forget_all()


def _fused_kernel(written: list[torch.Tensor], read: list[torch.Tensor]) -> None:
    _operator()(written, read)


@functools.cache
def _operator() -> Any:
    """An operator that reads and writes whole tensors once and makes nothing."""
    return own_operator("fused_kernel(Tensor(a!)[] written, Tensor[] read) -> ()", lambda written, read: None)
