"""The model and the batches of a request: built without memory, recorded, and what is known of them beside the recording."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from snugfit.errors import InputError, SnugfitError, SnugfitWarning
from snugfit.fake_device.captured import captured_tensors
from snugfit.fake_device.materialise import without_memory
from snugfit.fake_device.personality import Personality
from snugfit.fake_device.sparse_gradients import without_sparse_gradients
from snugfit.recording.experts import expert_modules
from snugfit.recording.recording import Recording
from snugfit.simulator.batches import shape_in_words
from snugfit.simulator.given_batches import batches_of
from snugfit.simulator.lazy_modules import give_shapes
from snugfit.simulator.real_run import Refused
from snugfit.techniques.blocks import find_blocks
from snugfit.workers import skeleton
from snugfit.workers.code_constants import as_in_code
from snugfit.workers.failures import line_of
from snugfit.workloads.model_files import describe


class RecordedModel:
    """The model and batches of a request, for either kind of step."""

    def __init__(self, model: Any, batch: Any, forward: Callable[[Any, Any], Any] | None) -> None:
        """Builds the model without memory, if it is a function; `forward` None: called with what the batch holds."""
        self.model: torch.nn.Module = _built(model)
        as_in_code(self.model)
        self.batches = batches_of(batch)
        give_shapes(self.model, self.batches[0], forward)

    def captured(self, *others: Any) -> list[torch.Tensor]:
        """Returns the tensors that code holds besides model, batches and `others`."""
        return captured_tensors(skeleton.arrived(), self.model, self.batches, *others)

    def recorded(self, run: Callable[[], Recording], personality: Personality, **facts: Any) -> Recording:
        """Returns the recording of `run`, with what is known of the model and its batches, and more facts."""
        dense = without_sparse_gradients(self.model)
        block_names = tuple(find_blocks(self.model))
        weight_bytes, parameters = _weights(self.model)
        without_logs()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", SnugfitWarning)
            try:
                recording = run()
            except SnugfitError:
                raise
            except Exception as error:
                raise _refused(error, self.model, personality) from error
        return dataclasses.replace(
            recording,
            warnings=tuple(dict.fromkeys(str(warning.message) for warning in caught)),
            answered=(*recording.answered, *dense, *skeleton.dense_for_sparse()),
            batch_shape=shape_in_words(self.batches),
            batches=len(self.batches),
            block_names=block_names,
            weight_bytes=weight_bytes,
            parameters=parameters,
            expert_modules=expert_modules(self.model),
            **facts,
        )


def _built(model: Any) -> Any:
    """Returns the model; a function builds it without memory."""
    if isinstance(model, torch.nn.Module):
        return model
    try:
        made = without_memory(lambda _: model())
    except SnugfitError:
        raise
    except Exception as error:
        code = getattr(inspect.unwrap(model), "__code__", None)
        where = Path(code.co_filename) if code is not None else None
        raise InputError(f"the model function failed: {describe(error, where)}.") from error
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"the model function returned a {type(made).__name__}; it must return a torch.nn.Module.")
    return made


def _refused(error: Exception, model: torch.nn.Module, personality: Personality) -> Refused:
    """The error for torch's or the user's own, with module and line."""
    names = {id(module): name for name, module in model.named_modules() if name}
    module = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and id(owner) in names:
            module = f" in module {names[id(owner)]!r} ({type(owner).__name__})"
    return Refused(error, f"{line_of(error)}{module}", on_card=personality.kind != "cpu")


def without_logs() -> None:
    """Context without torch's logs of refused fake kernels: the error that follows says all of it."""
    for name, level in (("torch._subclasses.fake_tensor", logging.CRITICAL), ("torch.utils._pytree", logging.ERROR)):
        logging.getLogger(name).setLevel(level)


def _weights(model: torch.nn.Module) -> tuple[dict[str, int], int]:
    found: dict[str, int] = {}
    count = 0
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        found[owner] = found.get(owner, 0) + parameter.numel() * parameter.element_size()
        count += parameter.numel()
    return found, count
