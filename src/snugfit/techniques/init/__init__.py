"""Where the model is built, and how its weights get in: host, device or meta.

What it saves. Plain PyTorch builds every weight on the host in fp32 and then copies it to the device in the final
dtype, so the host holds the whole model, and a file with pretrained weights is held beside it.

- `host`: that plain way, but a weight is cast before it moves, one after the other: the device never holds more than
  the final weights. Weights that a file has and that are held in 16 bits are read one by one and cast on their way
  (`late.py`).
- `device`: the constructor runs on the device with the final 16-bit dtype as the default dtype, so no fp32 copy exists
  on either side: half of the weights' bytes at start-up under `16-true` and `bf16-true`.
- `meta`: parameters get no memory when they are built. The device tensors are then allocated in the final dtype, one at
  a time, and each is read from a safetensors file straight into its place, so the host never holds the model.

Several processes. Only the first has values: under `host` it builds the model, under `meta` it maps the file, and each unit
goes from it to the devices of all and is cut there, so that a machine holds the model once (from a file of the final dtype:
not at all) and no process more than its shares and a unit. All start from the same weights, those of one process to the last
bit. The others run the constructor with parameters on meta; one that looks at their values builds in each process, whose
values are not used. Under `device` each process builds all of it on its own device. A module that is given is there in each.

What it costs. Nothing in a training step. `device` draws the initial weights with the device's generator and in 16
bits, so a seed gives other weights than on the host, and what a constructor computes in tensors (buffers, the rates of
stochastic depth in timm) is rounded to 16 bits as well.
`meta` needs a file: a model without memory has no values to start from.

When it is wrong. `meta` is refused when no file is given, when the constructor looks at the value of a parameter, and
when a buffer is made from parameters, unless the file holds it or its module can make it again (timm's convention
`init_non_persistent_buffers`). All other buffers are sound, also those that no file holds: only parameters go to meta,
at the moment a module registers them, and buffers are built for real on the host. A head that the file does not fit
(another number of classes) is drawn afresh by its own `reset_parameters`.

Weights that are packed (`quantize`) come one by one under all three: read from the file (the safetensors shards of a
`hf:` directory, or FILE), or drawn by their layer (a `hf:` config alone), at the moment when they are packed, so that the
host holds what is final there and one layer. Values from a file are those of a model that is loaded whole. Drawn ones are of
the same distribution and follow the seed, but are other numbers than those of a model that is built whole, because layers
draw when they are packed. Where a file does not match the model name by name (a head for other classes), where something
beside a layer has a hand in its fresh values, for models of one's own, and for packed rows of text, all of it is built
first.

Tied parameters stay tied under all three. Values are those of the file, rounded to the final dtype, under all three.

Source: `torch.nn.Module.to_empty` and "Skipping module parameter initialization" (torch documentation); the hook is
`torch.nn.modules.module.register_module_parameter_registration_hook`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planned, Planning
from snugfit.units import format_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Where the model is built."""

    init: Literal["host", "device", "meta"] = "host"
    """Where the model is built: on the host and then moved; on the device in the final dtype; or without memory (meta),
    the weights then being read from a file straight into place."""


def _built_by_each(_: str, plan: Planned) -> str:
    """Says who builds the model where several processes share it out, and the host memory that takes."""
    if plan.workload.gpus == 1:
        return ""
    who = (
        "the first process builds the model on the host and sends it to the others unit by unit"
        if plan.one_builds
        else f"each of the {plan.workload.gpus} processes of a machine has the whole model on the host"
    )
    return (
        f"{who}; a machine takes {format_bytes(plan.host_bytes)} of host memory at the most. Built on a device, each GPU "
        "would hold all of it"
    )


TECHNIQUE = Technique(
    name="init",
    fields=("init",),
    rows=(13,),
    level="exact",
    summary="the second copy of the model while it loads",
    known_as="meta-device meta low-cpu-mem-usage empty-weights init-empty-weights",
    spellings={("cpu", "ram"): ("host",), ("cuda", "gpu"): ("device",), ("empty", "lazy", "deferred"): ("meta",)},
    in_the_loop="build the model there, where it is to live",
    planning=Planning(
        part="build",
        choices=(Choice({"init": "device"}),),
        off=_built_by_each,
        because="building takes no more than training, which does not depend on it",
        quiet=True,
    ),
    example="it is about building a model, before any step; the last rung of README's ladder is built in bf16 by it",
)
