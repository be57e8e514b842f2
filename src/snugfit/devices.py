"""The table of GPUs: bytes, FLOP/s and bandwidths, each row with its source; what no source gives is None, no guess.

The rows stand in `devices.yaml`, which also says what counts as a source. Nothing else knows cards by name, but
`contexts.yaml`: what CUDA takes on them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from snugfit import calibrations
from snugfit.contexts import Context, context_of, without_size
from snugfit.contexts import measured as counted
from snugfit.errors import InputError, did_you_mean
from snugfit.units import GIB, MIB
from snugfit.yaml_files import read_table, read_yaml


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One row of the table."""

    name: str
    """The name that options take."""
    vendor_name: str
    """The name that the vendor and the driver use."""
    memory_source: str
    """Where the memory was read, or that it is nominal."""
    memory_bytes: int | None = None
    """Memory of the card; None for a device without a limit of its own (`cpu`)."""
    compute_capability: tuple[int, int] | None = None
    """CUDA compute capability."""
    sm_count: int | None = None
    """Streaming multiprocessors."""
    flops: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Dense peak FLOP/s by type: float32, tf32, float16, bfloat16, float8; a type without hardware is left out."""
    memory_bandwidth: float | None = None
    """Bytes a second between chip and memory."""
    host_link_bandwidth: float | None = None
    """Bytes a second between host and card, in one direction."""
    peer_link: str | None = None
    """What joins the cards of one machine: a generation of NVLink, `PCIe` (the host's link), `none`; None: unknown."""
    peer_bandwidth: float | None = None
    """Bytes a second that a card sends to others over it, in one direction, all its links added up; of PCIe, None."""
    peer_cards: int | None = None
    """Cards that it joins; where a group has more, PCIe carries it all."""
    machine_cards: int | None = None
    """Cards of the usual machine."""
    network: str | None = None
    """What joins machines."""
    network_bandwidth: float | None = None
    """Bytes a second of the network for each card of a machine, in one direction."""
    links_source: str = ""
    """Where it is known from how cards are joined."""
    context: Context | None = None
    """What CUDA takes for itself; left out, it is that of contexts.yaml. None only on the processor."""
    corrects_in_memory: bool = False
    """Whether its error correction takes a share of the ordinary memory's bandwidth."""
    sustained: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Share of the peak FLOP/s that a large matrix product reaches, on the ordinary cores (`float32`) and on tensor cores
    (`tensor`), and of the peak bandwidth in 16 bits (`memory_in_16_bits`), where that is not what most cards reach."""
    host_operator_seconds: float | None = None
    """Host time of an operator, its launch included, as `snugfit calibrate` measured it; None: a typical server's."""
    nccl_bytes: int | None = 0
    """What NCCL takes beside the context, for the processes of a run (`nccl.among`); None: unknown, counted 0."""
    bytes_only: bool = False
    """Whether only memory is predicted, no time: the software differs from CUDA's."""
    source: str = ""
    """Where the other numbers are from."""

    def __post_init__(self) -> None:
        if self.context is None and self.memory_bytes is not None and self.name != "cpu":
            found = context_of(self.name, self.compute_capability, self.sm_count)
            object.__setattr__(self, "context", found)

    @property
    def context_bytes(self) -> int:
        """What CUDA and NCCL take for themselves; 0 on the processor."""
        return 0 if self.context is None else self.context.typical_bytes + (self.nccl_bytes or 0)


_UNITS = {
    "memory_mib": ("memory_bytes", MIB),
    "gigabytes_per_second": ("memory_bandwidth", 1e9),
    "peer_gigabytes_per_second": ("peer_bandwidth", 1e9),
    "network_gigabits_per_second": ("network_bandwidth", 1e9 / 8),
}
"""Number in a row of the file -> the field it is for, and its unit."""


def _device(name: str, row: Mapping[str, Any]) -> Device:
    given = {field: row[written] * unit for written, (field, unit) in _UNITS.items() if written in row}
    given["flops"] = {dtype: rate * 1e12 for dtype, rate in row.get("teraflops", {}).items()}
    if "compute_capability" in row:
        given["compute_capability"] = tuple(row["compute_capability"])
    same = {field: value for field, value in row.items() if field not in (*_UNITS, "teraflops", *given)}
    return Device(name=name, **same, **given)


DEVICES: tuple[Device, ...] = tuple(_device(name, row) for name, row in read_table("devices.yaml").items())


def _normal(text: str) -> str:
    words = re.split(r"[\s_\-]+", text.strip().lower())
    return "-".join(
        word for word in words if word not in ("nvidia", "geforce", "tesla", "amd", "apple", "instinct", "gpu")
    )


def _aliases(device: Device) -> set[str]:
    """All ways to write a row's name: with or without the size, the driver's name, its number alone."""
    names = {device.name, _normal(device.vendor_name)}
    short = without_size(device.name)
    names.add(short)
    if device.memory_bytes is not None and short == device.name and device.compute_capability is not None:
        # The number on the box is an even number of GiB, and the driver's total a little less.
        names.add(f"{short}-{2 * math.ceil(device.memory_bytes / (2 * GIB))}gb")
    names |= {re.sub(r"^(rtx|gtx)-?", "", name) for name in names}
    names |= {name.replace("-", "") for name in names}
    return names


def _table() -> dict[str, list[Device]]:
    table: dict[str, list[Device]] = {}
    for device in DEVICES:
        for alias in _aliases(device):
            table.setdefault(alias, []).append(device)
    return table


_BY_ALIAS = _table()


def device_names() -> tuple[str, ...]:
    """Returns every name that `device_named` takes, `local` last."""
    return (*(device.name for device in DEVICES), "local")


def device_named(text: str) -> Device:
    """Returns the row of the device that a name means; `InputError` for unknown or ambiguous names.

    `text`: a name of the table, with or without size and vendor, as `torch.cuda.get_device_name` prints it, `local` for
    the GPU of this machine, or a YAML file: `like: NAME`, and what is different here.
    """
    if str(text).endswith(_FILES):
        return _of_file(str(text))
    wanted = _normal(str(text))
    if wanted == "local":
        return _local()
    found = _BY_ALIAS.get(wanted) or _BY_ALIAS.get(wanted.replace("-", "")) or []
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(device.name for device in found)
        raise InputError(f"device {text!r} means several cards: say {choices}.")
    own = "local is the GPU of this machine; " if wanted in ("cuda", "gpu") else ""
    raise InputError(f"device {text!r} is unknown; {own}{did_you_mean(wanted, device_names())}")


_FILES = (".yaml", ".yml")
_TEXTS, _COUNTS = ("peer_link", "network"), ("peer_cards", "machine_cards")
_RATES = ("peer_gigabytes_per_second", "network_gigabits_per_second", "gigabytes_per_second", "host_link_bandwidth")


def _of_file(path: str) -> Device:
    """A card of the table with one's own links or speeds; it keeps its name."""
    given = read_yaml(path, "device file", example="like: a100-80gb")
    if "like" not in given:
        raise InputError(
            f"device file {path!r} does not say which card it changes. Add a line such as `like: a100-80gb`."
        )
    like, changed = str(given.pop("like")), {}
    if like.endswith(_FILES):
        raise InputError(f"device file {path!r} is like {like!r}, another file. Name a card of `snugfit devices`.")
    for field, value in given.items():
        if field not in (*_TEXTS, *_COUNTS, *_RATES):
            allowed = did_you_mean(str(field), ("like", *_TEXTS, *_COUNTS, *_RATES))
            raise InputError(f"device file {path!r} has a field {field!r}, which is unknown; {allowed}")
        kinds = (str,) if field in _TEXTS else (int,) if field in _COUNTS else (int, float)
        if type(value) not in kinds or (kinds != (str,) and not 0 < value < math.inf):
            wanted = "text" if field in _TEXTS else "a whole number above 0" if field in _COUNTS else "a number above 0"
            raise InputError(f"device file {path!r}: {field} is {value!r}; give {wanted}.")
        name, unit = _UNITS.get(field, (field, 1))
        changed[name] = value if field in (*_TEXTS, *_COUNTS) else value * unit
    return dataclasses.replace(device_named(like), **changed, links_source=path)


def card_identity(name: str, torch_version: str) -> dict[str, str]:
    """Returns what a calibration of a card (by its driver's name) holds for."""
    return {"device": "card", "name": name, "torch": torch_version}


def _local() -> Device:
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            "device 'local' is the CUDA GPU of this machine, and there is none that torch can use. Name a card of the "
            "table (snugfit devices), or cpu."
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    known = _BY_ALIAS.get(_normal(properties.name), [])
    base = known[0] if len(known) == 1 else Device(name="local", vendor_name="", memory_source="")
    measured = calibrations.kept(card_identity(properties.name, torch.__version__))
    if measured is not None:
        row = dict(measured["row"])
        context = row.pop("context_bytes", None)
        if context is not None:
            row["context"] = counted(context)
        base = dataclasses.replace(base, **row, source=f"snugfit calibrate, {measured['date']}")
    return dataclasses.replace(
        base,
        name="local",
        vendor_name=properties.name,
        memory_bytes=properties.total_memory,
        memory_source="the driver of this machine",
        compute_capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        source=base.source or "the driver of this machine; FLOP/s and bandwidths are unknown",
    )
