"""The table of GPUs: bytes, FLOP/s and bandwidths, each row with its source; what no source gives is None, no guess.

FLOP/s are the vendor's dense peaks (no sparsity), of the tensor cores where the type has them, accumulating in float32
as PyTorch does (GeForce cards do that at half the advertised float16 rate). Memory is what the driver calls total, as
`torch.cuda.get_device_properties` prints it: less than the number on the box where error correction takes a share, and
other by one or two hundredths from driver to driver, so of all readings that were found the lowest counts. Sources are
what was really read; "as quoted" is a vendor's document seen through somebody's quotation of it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from snugfit.errors import InputError, did_you_mean
from snugfit.units import GIB, MIB

PCIE3_X16, PCIE4_X16, PCIE5_X16 = 15_754_000_000, 31_508_000_000, 63_015_000_000
"""Bytes a second in one direction: 8, 16 and 32 GT/s on 16 lanes, 128b/130b coded (PCI-SIG base specification)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One row of the table."""

    name: str
    """The name that options take."""
    vendor_name: str
    """The name that the vendor and the driver use."""
    memory_bytes: int | None
    """Memory of the card; None for a device without a limit of its own (`cpu`)."""
    memory_source: str
    """Where the memory was read, or that it is nominal."""
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
    context_bytes: int | None = None
    """What CUDA takes for itself before the first tensor; None where no source gives it."""
    corrects_in_memory: bool = False
    """Whether its error correction takes a share of the ordinary memory's bandwidth."""
    sustained_share: float | None = None
    """Share of the peak FLOP/s that a large matrix product reaches, where the card's power limit keeps it below what others
    reach; None: as others."""
    bytes_only: bool = False
    """Whether only memory is predicted, no time: the software differs from CUDA's."""
    source: str = ""
    """Where the other numbers are from."""


_READ = "the lowest total_memory of this card that torch prints in public logs"
_TERA, _GIGA = 1e12, 1e9


def _card(
    name: str,
    vendor_name: str,
    memory: int,
    memory_source: str,
    capability: tuple[int, int],
    sm_count: int,
    teraflops: dict[str, float],
    gigabytes_per_second: float,
    link: float,
    source: str,
    context_bytes: int | None = None,
    *,
    corrects_in_memory: bool = False,
    sustained_share: float | None = None,
) -> Device:
    return Device(
        name=name,
        vendor_name=vendor_name,
        memory_bytes=memory,
        memory_source=memory_source,
        compute_capability=capability,
        sm_count=sm_count,
        flops={dtype: rate * _TERA for dtype, rate in teraflops.items()},
        memory_bandwidth=gigabytes_per_second * _GIGA,
        host_link_bandwidth=link,
        context_bytes=context_bytes,
        corrects_in_memory=corrects_in_memory,
        sustained_share=sustained_share,
        source=source,
    )


def _rates(
    fp32: float, fp16: float, tf32: float | None = None, fp8: float | None = None, *, bf16: bool = True
) -> dict[str, float]:
    rates = {"float32": fp32, "float16": fp16}
    if bf16:
        rates["bfloat16"] = fp16
    if tf32 is not None:
        rates["tf32"] = tf32
    if fp8 is not None:
        rates["float8"] = fp8
    return rates


_AT_75_WATTS = 0.4
"""Cards of at most 75 W cannot hold their clock in matrix products: in the largest T4 reaches 0.40 of its float32 peak, P4
0.34 (`products_in_float32` in benchmarks/results/clock_fit.json). L4 is of that class, and was not measured."""

_NOMINAL = "nominal"
_FABRIC = "FLOP/s: table of Lightning Fabric's throughput.py, after NVIDIA's datasheets"
_VOLTA = (
    _FABRIC + "; SMs and bandwidth: NVIDIA's table of P100, V100 and A100 (Ampere in depth); link: NVIDIA's card list"
)
_A100 = _FABRIC + "; SMs: torch; link: NVIDIA's card list; bandwidth: "
_V100_CONTEXT = 1343 * MIB  # nvidia-smi on a V100-SXM2-16GB, "Model training anatomy" of Hugging Face transformers
_HOPPER = (
    "FLOP/s: table of Lightning Fabric's throughput.py; float8 and link: G. Lockwood's notes on NVIDIA's H100 whitepaper; "
    "SMs: torch; bandwidth: "
)
_GEFORCE = "fp32 and tf32: table of Lightning Fabric's throughput.py; SMs: torch; "
_CARD_LIST = "; bandwidth and link: card lists"
_RATIO = "; tf32 and 8-bit rates: ratios to fp32 and 16 bits that hold for all GeForce cards of this chip family"

DEVICES: tuple[Device, ...] = (
    _card("t4-16gb", "Tesla T4", 14930 * MIB, _READ, (7, 5), 40, _rates(8.1, 65, bf16=False), 320, PCIE3_X16,
          _FABRIC + "; SMs: torch" + _CARD_LIST, corrects_in_memory=True, sustained_share=_AT_75_WATTS),
    _card("v100-16gb", "Tesla V100-SXM2-16GB", 16130 * MIB, _READ, (7, 0), 80, _rates(15.7, 125, bf16=False), 900,
          PCIE3_X16, _VOLTA, _V100_CONTEXT),
    _card("v100-32gb", "Tesla V100-SXM2-32GB", 32494 * MIB, _READ, (7, 0), 80, _rates(15.7, 125, bf16=False), 900,
          PCIE3_X16, _VOLTA),
    _card("a10g-24gb", "NVIDIA A10G", 22587 * MIB, _READ, (8, 6), 80, _rates(35, 70, 35), 600, PCIE4_X16,
          "FLOP/s: two public tables after NVIDIA's A10G datasheet (Fabric's row is the A10's); bandwidth: Baseten, A10 vs "
          "A10G; SMs: torch; link: that of the A10", corrects_in_memory=True),
    _card("l4-24gb", "NVIDIA L4", 22563 * MIB, _READ, (8, 9), 58, _rates(30.3, 121, 60, 242.5), 300, PCIE4_X16,
          _FABRIC + "; float8: 485 with sparsity, halved; SMs: vLLM and others on the card" + _CARD_LIST,
          corrects_in_memory=True, sustained_share=_AT_75_WATTS),
    _card("l40s-48gb", "NVIDIA L40S", 45372 * MIB, _READ, (8, 9), 142, _rates(91.6, 362.05, 183, 733), 864, PCIE4_X16,
          "FLOP/s: public table after NVIDIA's L40S datasheet, and torchtitan's utils.py; SMs: torch" + _CARD_LIST,
          corrects_in_memory=True),
    _card("a100-40gb", "NVIDIA A100-SXM4-40GB", 40441 * MIB, _READ, (8, 0), 108, _rates(19.5, 312, 156), 1555,
          PCIE4_X16, _A100 + "NVIDIA's table of P100, V100 and A100 (Ampere in depth)"),
    _card("a100-80gb", "NVIDIA A100-SXM4-80GB", 81038 * MIB, _READ, (8, 0), 108, _rates(19.5, 312, 156), 2039,
          PCIE4_X16, _A100 + "torch's _inductor/analysis/device_info.py"),
    _card("h100-80gb", "NVIDIA H100 80GB HBM3", 81082 * MIB, _READ, (9, 0), 132, _rates(66.9, 989.4, 494.7, 1978.9),
          3350, PCIE5_X16, _HOPPER + "torch's _inductor/analysis/device_info.py"),
    _card("h200-141gb", "NVIDIA H200", 143156 * MIB, _READ, (9, 0), 132, _rates(66.9, 989.4, 494.7, 1978.9), 4800,
          PCIE5_X16, _HOPPER + "NVIDIA's H200 page, as quoted in several places; computes as the H100 does"),
    _card("b200-192gb", "NVIDIA B200", 182631 * MIB, _READ, (10, 0), 148, _rates(75, 2250, 1125, 4500), 7700, PCIE5_X16,
          "16 bits: torchtitan's utils.py after NVIDIA's Blackwell datasheet; the rest and bandwidth: HMC-Tech (HGX B200; "
          "NVIDIA rounds it to 8 TB/s); SMs: torch; link: that of HGX B200 boards, whose hosts have PCIe 5"),
    _card("rtx-3060-12gb", "NVIDIA GeForce RTX 3060", 11910 * MIB, _READ, (8, 6), 28, _rates(12.7, 25.5, 12.7), 360,
          PCIE4_X16, "fp32, SMs, bandwidth and link: card lists; 16 bits: clock, SMs and rate of the GA102 whitepaper, as "
          "several projects compute and reach it" + _RATIO),
    _card("rtx-3080-10gb", "NVIDIA GeForce RTX 3080", 10002 * MIB, _READ, (8, 6), 68, _rates(29.8, 59.5, 29.8), 760,
          PCIE4_X16, _GEFORCE + "16 bits: GA102 whitepaper, as quoted" + _CARD_LIST),
    _card("rtx-3090", "NVIDIA GeForce RTX 3090", 24259 * MIB, _READ, (8, 6), 82, _rates(35.6, 71, 35.6), 936, PCIE4_X16,
          _GEFORCE + "16 bits and bandwidth: GA102 whitepaper, as quoted; link: card lists"),
    _card("rtx-a6000", "NVIDIA RTX A6000", 48676 * MIB, _READ, (8, 6), 84, _rates(38.7, 154.8, 77.4), 768, PCIE4_X16,
          _GEFORCE + "16 bits: datasheet, as quoted by several projects" + _CARD_LIST),
    _card("rtx-4060-8gb", "NVIDIA GeForce RTX 4060", 7807 * MIB, _READ, (8, 9), 24, _rates(15.1, 30.2, 15.1, 60.5), 272,
          PCIE4_X16 / 2, "fp32, SMs, bandwidth and link (8 lanes): card lists; 16 and 8 bits: a public table of the card"
          + _RATIO),
    _card("rtx-4070-12gb", "NVIDIA GeForce RTX 4070", 11994 * MIB, _READ, (8, 9), 46, _rates(29.1, 58.3, 29.1, 116.6),
          504, PCIE4_X16, "fp32, SMs, bandwidth and link: card lists; 16 bits: clock, SMs and rate of the Ada whitepaper, "
          "as several projects compute it" + _RATIO),
    _card("rtx-4080-16gb", "NVIDIA GeForce RTX 4080", 16049 * MIB, _READ, (8, 9), 76, _rates(48.7, 97.5, 48.7, 194.9),
          716.8, PCIE4_X16, _GEFORCE + "16 and 8 bits: Ada whitepaper, as quoted" + _CARD_LIST),
    _card("rtx-4090", "NVIDIA GeForce RTX 4090", 24081 * MIB, _READ, (8, 9), 128, _rates(82.6, 165.2, 82.6, 330.3),
          1008, PCIE4_X16, _GEFORCE + "16 and 8 bits and bandwidth: Ada whitepaper v2.1, as quoted; link: card lists"),
    _card("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation", 48497 * MIB, _READ, (8, 9), 142,
          _rates(91.1, 364.2, 182.1, 728.5), 960, PCIE4_X16,
          "16 and 8 bits: Ada whitepaper for professional cards, as quoted; fp32: card lists; tf32: half of 16 bits, as in "
          "the L40S; SMs: torch" + _CARD_LIST),
    _card("rtx-5080-16gb", "NVIDIA GeForce RTX 5080", 15840 * MIB, _READ, (12, 0), 84, _rates(56.3, 112.6, 56.3, 225.1),
          960, PCIE5_X16, "16 and 8 bits, bandwidth: RTX Blackwell whitepaper, as quoted; fp32 and link: card lists; SMs: "
          "torch" + _RATIO),
    _card("rtx-5090", "NVIDIA GeForce RTX 5090", 32102 * MIB, _READ, (12, 0), 170, _rates(104.8, 209.5, 104.8, 419),
          1792, PCIE5_X16, "fp32, 16 and 8 bits, bandwidth: RTX Blackwell whitepaper, as quoted; SMs: torch; link: card "
          "lists" + _RATIO),
    Device(name="mi300x-192gb", vendor_name="AMD Instinct MI300X", memory_bytes=192 * GIB,
           memory_source=_NOMINAL + ", GiB: ROCm's table of GPU specifications",
           memory_bandwidth=5300 * _GIGA, host_link_bandwidth=PCIE5_X16, bytes_only=True,
           source="bandwidth: torch's _inductor/analysis/device_info.py, after AMD's data sheet; link: system files of "
           "MLPerf"),
    Device(name="m3-max", vendor_name="Apple M3 Max", memory_bytes=128 * GIB,
           memory_source="nominal, the largest configuration; macOS and programs share it", bytes_only=True,
           memory_bandwidth=400 * _GIGA,
           source="bandwidth of the chip with 40 GPU cores: Mac Mega Site, at the launch of the M4 Max"),
    Device(name="cpu", vendor_name="CPU", memory_bytes=None, memory_source="host memory: no card", bytes_only=True,
           source="predicted with the kernels of the CPU"),
)  # fmt: skip


def _normal(text: str) -> str:
    words = re.split(r"[\s_\-]+", text.strip().lower())
    return "-".join(
        word for word in words if word not in ("nvidia", "geforce", "tesla", "amd", "apple", "instinct", "gpu")
    )


def _aliases(device: Device) -> set[str]:
    """All ways to write a row's name: with or without the size, the driver's name, its number alone."""
    names = {device.name, _normal(device.vendor_name)}
    short = re.sub(r"-\d+gb$", "", device.name)
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
    """Returns the device that a name means.

    Args:
        text: A name of the table, with or without size and vendor, as `torch.cuda.get_device_name` prints it, or
            `local` for the GPU of this machine.

    Returns:
        Its row.

    Raises:
        InputError: For an unknown name, one that means several cards, or `local` without a GPU.
    """
    wanted = _normal(str(text))
    if wanted == "local":
        return _local()
    found = _BY_ALIAS.get(wanted) or _BY_ALIAS.get(wanted.replace("-", "")) or []
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(device.name for device in found)
        raise InputError(f"device {text!r} means several cards: say {choices}.")
    raise InputError(f"device {text!r} is unknown; {did_you_mean(wanted, device_names())}")


def _local() -> Device:
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            "device 'local' is the CUDA GPU of this machine, and there is none that torch can use. Name a card of the "
            "table (snugfit devices), or cpu."
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    known = _BY_ALIAS.get(_normal(properties.name), [])
    base = known[0] if len(known) == 1 else Device(name="local", vendor_name="", memory_bytes=None, memory_source="")
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
