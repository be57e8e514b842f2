"""Before planning: do microbatches of this model and loss add up to the batch? Tried for real, where that is cheap.

`training/separation.py` needs values. A model that was given runs as it is, where it is; one that is only a description
(on meta, a function, a name) is built without memory and filled with random values on the host. A batch without values is
filled with random ones too. Models that would take long or much memory are left to the first step of training, and the
plan says so. Nothing is changed on what was given.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from snugfit.simulator.request import NamedModel
    from snugfit.training.separation_verdict import Separation
    from snugfit.workload import Workload

MOST_PARAMETERS = 2**28
"""Parameters of a model that is tried."""
MOST_FLOPS = {"cpu": 3e11}
"""Arithmetic that the check may take, by kind of device: a few seconds; elsewhere `FLOPS_ON_A_CARD`."""
FLOPS_ON_A_CARD = 1e13
_PASSES = 4.5
"""Times that the few samples go through forward and backward pass."""

Call = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What a check before planning has found."""

    separation: Separation
    """The verdict."""
    real_values: bool
    """Whether the batch had values; random ones do not show what depends on them, such as unequal numbers of labels."""


Check = Callable[[Call, float, int], "Checked | None"]
"""Takes a way to call a function in a worker, the arithmetic of a sample and the number of parameters."""


def given_check(model: Any, batch: Any, shapes: Any, arguments: Mapping[str, Any]) -> Check:
    """Returns the check of a model (or function that builds one) that was given; it runs in this process.

    `shapes`: the same without memory.
    """

    def check(_: Call, flops: float, parameters: int) -> Checked | None:
        import torch

        from snugfit.recorder.materialise import fill, without_memory
        from snugfit.simulator.batch_shapes import has_values
        from snugfit.simulator.given_batches import batches_of

        if parameters > MOST_PARAMETERS:
            return None
        given = isinstance(model, torch.nn.Module)
        tensors = [*model.parameters(), *model.buffers()] if given else []
        whole = given and not any(tensor.is_meta for tensor in tensors)
        device = tensors[0].device if whole and tensors else torch.device("cpu")
        samples = _samples(flops, device)
        if samples is None:
            return None
        usable = model if whole else fill(copy.deepcopy(model) if given else without_memory(lambda _: model()))
        first = batches_of(batch)[0]
        one = first if has_values(first) else None
        return _checked(usable, one, batches_of(shapes)[0], samples, device, arguments)

    return check


def named_check(named: NamedModel, workload: Workload) -> Check:
    """Returns the check of a model by its name; it runs in a worker."""

    def check(call: Call, flops: float, parameters: int) -> Checked | None:
        if parameters > MOST_PARAMETERS or flops * _PASSES * 2 > MOST_FLOPS["cpu"]:
            return None
        found: Checked | None = call(_check_named, named, workload.freeze, flops)
        return found

    return check


def _check_named(named: NamedModel, freeze: tuple[str, ...], flops: float) -> Checked | None:
    import torch

    from snugfit.recorder.materialise import fill
    from snugfit.simulator.request import build_named
    from snugfit.workloads.model_batches import batch_for
    from snugfit.workloads.weights import freeze_parameters

    device = torch.device("cpu")
    samples = _samples(flops, device)
    if samples is None:
        return None
    task, model = build_named(named)
    if freeze:
        freeze_parameters(model, freeze)
    made = batch_for(model, named.spec, task, batch_size=samples, device="cpu", **named.shape)
    found = _checked(fill(model), made.batch, made.batch, samples, device, made.task.arguments())
    return dataclasses.replace(found, real_values=False)  # of the right kind, but nobody's data


def _samples(flops: float, device: torch.device) -> int | None:
    """How many samples may be tried; None where even two are too many."""
    most = MOST_FLOPS.get(device.type, FLOPS_ON_A_CARD)
    return next((samples for samples in (8, 4, 2) if samples * _PASSES * flops <= most), None)


def _checked(
    model: torch.nn.Module,
    batch: Any,
    shapes: Any,
    samples: int,
    device: torch.device,
    arguments: Mapping[str, Any],
) -> Checked:
    import torch

    from snugfit.recorder.materialise import filled_batch
    from snugfit.techniques.batches import map_tensors, split_batch
    from snugfit.training.caches import caching_configs, without_caches
    from snugfit.training.model_call import loss_of, output_of
    from snugfit.training.separation import separation
    from snugfit.training.separation_verdict import Separation
    from snugfit.workloads.traits import model_traits

    loss, forward = arguments.get("loss"), arguments.get("forward")
    split = arguments.get("split") or split_batch
    configs = caching_configs(model)

    def loss_of_samples(few: Any) -> torch.Tensor:
        with without_caches(configs):
            moved = map_tensors(few, lambda tensor: tensor.to(device))
            return loss_of(output_of(model, moved, forward), moved, loss)

    training = model.training
    model.train()
    try:
        if batch is None:
            generator = torch.Generator().manual_seed(0)
            batch = filled_batch(split(shapes, samples)[0], generator)
            real = False
        else:
            real = True
        traits = model_traits(model, loss, forward)
        found = separation(
            loss_of_samples,
            batch,
            parts=(model, loss, forward, split),
            parameters=[weight for weight in model.parameters() if weight.requires_grad],
            split=split,
            size=samples,
            loss_weight=arguments.get("loss_weight") or "samples",
            quiet=traits["batch_norm"] or traits["dropout"],
        )
    except Exception as error:  # the caller's own split, with a batch of random values
        found, real = Separation(separates=None, sentence=str(error)), False
    finally:
        model.train(training)
    return Checked(separation=found, real_values=real)
