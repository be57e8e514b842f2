"""AdamW with 4-bit and fp8 state: number formats and update of `torchao.optim`, over slices of plain tensors.

Imported only when a recipe asks for it; the one file that imports torchao's optimizers. The library's own classes hold the
state in tensor subclasses, compile the update for every shape, and hold temporaries of whole parameters where it is not
compiled. Here codes and scales are plain tensors, and torchao's update is handed a slice at a time; the result is the same,
bit for bit, because scales belong to blocks and all else is element by element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchao.optim import subclass_4bit
from torchao.optim.adam import single_param_adam
from torchao.optim.quant_utils import dequant_with_qmap, quantize_4bit_with_qmap, scale_tensor
from torchao.optim.subclass_fp8 import quantize_fp8

from snugfit.techniques.low_bit_optimizer.apply import FULL_PRECISION

SMALLEST = 4096
"""Values under which a parameter is not quantised; the rule of torchao and bitsandbytes."""
EAGER_SLICE = 2**20
"""Values of a slice where every operation is a kernel: with 53 bytes each, its temporaries are 53 MiB at most."""
COMPILED_SLICE = 2**22
"""Values of a slice where the update is compiled and keeps at most 26 bytes of each: larger, for fewer launches."""


class NumberFormat(NamedTuple):
    """How moments are packed."""

    block: int
    """Values that share a scale."""
    values_per_byte: int
    """Codes in a byte."""
    kept_bytes: int
    """What a compiled update keeps inside for each value of a slice, beside the scales of its blocks."""


FORMATS = {"adamw4bit": NumberFormat(128, 2, 26), "adamwfp8": NumberFormat(256, 1, 2)}
"""Optimizer -> its format, with the block sizes that are torchao's defaults. What is kept inside: the allocator's events of
the compiled update on cpu with torch 2.15; code for CUDA may keep others."""


def kept_inside(values: int, scale: Tensor | None, table: Tensor | None) -> int:
    """Returns the bytes that a compiled update of a slice allocates inside, unseen by torch's dispatcher.

    `scale`: None where the slice is not packed.
    `table`: what the codes stand for; None where they are numbers themselves.
    """
    return 0 if scale is None else values * FORMATS["adamwfp8" if table is None else "adamw4bit"].kept_bytes


class Moment(NamedTuple):
    """One moment of a slice, as torchao's update takes it: it asks for `float()` and calls `copy_`."""

    codes: Tensor
    """uint8 codes [bytes], or the float32 values themselves where they are not packed."""
    scale: Tensor | None
    """float32 scales [blocks]; None where values are not packed."""
    table: Tensor | None
    """What the 16 codes stand for, float32; None for fp8."""

    def float(self) -> Tensor:
        """Returns the values in float32 [values]."""
        if self.scale is None:
            return self.codes
        if self.table is None:
            packed = self.codes.view(torch.float8_e4m3fn).float().view(self.scale.shape[0], -1)
            return (packed * self.scale.view(-1, 1)).view(-1)
        halves = torch.stack([self.codes >> 4, self.codes & 0b1111], dim=-1)
        values: Tensor = dequant_with_qmap(halves, self.table, self.scale)
        return values.view(-1)

    def copy_(self, values: Tensor) -> None:
        """Packs float32 values [values], in place."""
        if self.scale is None:
            self.codes.copy_(values)
            return
        block = values.numel() // self.scale.numel()
        if self.table is None:
            codes, scale = quantize_fp8(values, block)
            self.codes.copy_(codes.view(torch.uint8))
        else:
            scaled, scale = scale_tensor(values, block)
            codes = quantize_4bit_with_qmap(scaled, self.table)
            self.codes.copy_((codes[::2] << 4) | codes[1::2])
        self.scale.copy_(scale)


@functools.cache
def lookup_tables() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns what the 16 codes of the first and of the second moment stand for."""
    return subclass_4bit.get_qmap_signed(), subclass_4bit.get_qmap_unsigned()


def update_slice(
    weight: Tensor,
    gradient: Tensor,
    first: tuple[Tensor, Tensor | None, Tensor | None],
    second: tuple[Tensor, Tensor | None, Tensor | None],
    step: Tensor,
    lr: Tensor,
    weight_decay: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Takes torchao's AdamW update on a slice [values], in place; `step`, `lr` and `weight_decay` are 0-dim tensors.

    `first`: the first moment, as the fields of a `Moment`.
    """
    single_param_adam(
        weight, gradient, step, Moment(*first), Moment(*second), None, lr, beta1, beta2, weight_decay, eps, True, False
    )


@functools.cache
def compiled_update() -> Callable[..., None]:
    """Returns the update compiled, for slices of any length."""
    return torch.compile(update_slice, fullgraph=True, dynamic=True)


def build(name: str, groups: list[dict[str, Any]], device: torch.device, settings: dict[str, Any]) -> SlicedAdamW:
    """Builds the optimizer.

    `groups`: parameter groups with `full_precision`.
    `device`: where the update runs; the optimizer sees it at its parameters.
    """
    return SlicedAdamW(groups, number_format=name, **settings)


class SlicedAdamW(Optimizer):
    """AdamW whose moments are packed; the state of a parameter is plain tensors."""

    host_decides = True
    """No kernel can be masked on the device."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        number_format: str,
    ) -> None:
        """Takes groups with `full_precision`; `number_format` is a key of `FORMATS`. State appears at the first step."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._format = FORMATS[number_format]
        self._tables: tuple[Tensor | None, Tensor | None] | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            self._init_group(group)
        self._reserve()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)

    def _init_group(self, group: dict[str, Any]) -> None:
        """Makes the state of a first step, before anything is changed; named as in torch's optimizers."""
        for weight in group["params"]:
            if weight.grad is not None and not self.state[weight]:
                self._start(self.state[weight], weight, group)

    def _reserve(self) -> None:
        """Allocates and frees what a compiled slice needs inside: its kernels cannot be made to wait for memory."""
        states = [
            self.state[weight] for group in self.param_groups for weight in group["params"] if weight in self.state
        ]
        scales = [state["exp_avg_scale"] for state in states if "exp_avg_scale" in state]
        largest = max(scales, key=Tensor.numel, default=None)
        if largest is not None and largest.device.type != "cpu":
            values = min(largest.numel() * self._format.block, COMPILED_SLICE)
            torch.empty(values * self._format.kept_bytes, dtype=torch.uint8, device=largest.device)

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        state["step"] += 1
        on_cpu = weight.device.type == "cpu"
        update: Callable[..., None] = update_slice if on_cpu else compiled_update()
        length = EAGER_SLICE if on_cpu else COMPILED_SLICE
        flat = weight.detach().reshape(-1)  # a copy where the weight is not contiguous
        gradients = gradient.reshape(-1)
        # Tensors, so that another learning rate does not compile the update once more.
        lr, decay = torch.tensor(group["lr"]), torch.tensor(group["weight_decay"])
        for start in range(0, flat.numel(), length):
            end = min(start + length, flat.numel())
            update(
                flat[start:end],
                gradients[start:end],
                self._moment(state, "exp_avg", start, end),
                self._moment(state, "exp_avg_sq", start, end),
                state["step"],
                lr,
                decay,
                *group["betas"],
                group["eps"],
            )
        if not weight.is_contiguous():
            weight.copy_(flat.view(weight.shape))

    def _start(self, state: dict[str, Any], weight: Tensor, group: dict[str, Any]) -> None:
        """Makes the state before the first step: zeros."""
        values, device = weight.numel(), weight.device
        packed = values >= SMALLEST and values % self._format.block == 0 and not group[FULL_PRECISION]
        state["step"] = torch.tensor(0.0)
        for name in ("exp_avg", "exp_avg_sq"):
            if packed:
                codes = values // self._format.values_per_byte
                state[name] = torch.zeros(codes, dtype=torch.uint8, device=device)
                state[f"{name}_scale"] = torch.zeros(values // self._format.block, device=device)
            else:
                state[name] = torch.zeros(values, dtype=torch.float32, device=device)

    def _moment(
        self, state: dict[str, Any], name: str, start: int, end: int
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if f"{name}_scale" not in state:
            return state[name][start:end], None, None
        per_byte, block = self._format.values_per_byte, self._format.block
        codes = state[name][start // per_byte : end // per_byte]
        scale = state[f"{name}_scale"][start // block : end // block]
        if per_byte == 1:
            return codes, scale, None
        if self._tables is None:
            self._tables = tuple(torch.tensor(table, device=codes.device) for table in lookup_tables())  # type: ignore[assignment]
        assert self._tables is not None
        return codes, scale, self._tables[name == "exp_avg_sq"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state bit for bit, of this optimizer or of one optimizer for each parameter."""
        super().load_state_dict(
            {"state": {}, "param_groups": state_dict["param_groups"]}
        )  # torch would cast codes to floats
        weights = {
            number: weight
            for saved, own in zip(state_dict["param_groups"], self.param_groups, strict=True)
            for number, weight in zip(saved["params"], own["params"], strict=True)
        }
        for number, state in state_dict["state"].items():
            weight = weights[number]
            self.state[weight] = {
                name: value.to("cpu" if name == "step" else weight.device, copy=True) for name, value in state.items()
            }
