"""Logits that nobody has computed: hidden states and a head that wait for the loss they are meant for.

A model's forward method applies its head, may scale or cap the result, shifts and flattens it, and hands it to
`F.cross_entropy`. All of these act on a token's logits as a whole, so they can act on its hidden state instead: a
`DeferredLogits` passes slicing and flattening on to the hidden states, remembers element-wise steps, and when it meets
`F.cross_entropy` calls a function that knows head and labels and never holds all logits. No model's code is copied, and no
model is known by name. Whatever else is asked of it is refused by name in training; where no gradient is wanted the logits
are computed after all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.errors import InputError, about
from snugfit.techniques.loss_impl.linear_cross_entropy import LogitStep, Settings, after_steps

LossFunction = Callable[..., Tensor]
"""As `linear_cross_entropy`."""
_LEGACY_REDUCTIONS = ("size_average", "reduce")


@dataclasses.dataclass
class Use:
    """What becomes of the logits of one call of the head, however they are sliced and flattened."""

    trained: bool
    """Whether a gradient is wanted."""
    in_loss: bool = False
    """Whether a cross entropy was taken of them."""


@dataclasses.dataclass(eq=False, repr=False)
class DeferredLogits:
    """Stands where a model expects the output of its head."""

    __iter__ = None

    hidden: Tensor
    """Hidden states, `[..., F]`."""
    head: nn.Linear
    """The head, `[V, F]`."""
    loss_function: LossFunction
    """From hidden states `[N, F]`, weight, bias and labels to a loss."""
    impl: str
    """The recipe's `loss_impl`, for messages."""
    compute_dtype: torch.dtype
    """Dtype of the head's product, of where the head was called: a loss may be taken outside of autocast."""
    steps: tuple[LogitStep, ...] = ()
    """What has happened to the logits so far."""
    use: Use = dataclasses.field(default_factory=lambda: Use(trained=torch.is_grad_enabled()))
    """Shared by all that is made of one call of the head."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that the logits would have."""
        return Settings(steps=self.steps, compute_dtype=self.compute_dtype).logits_dtype

    @property
    def device(self) -> torch.device:
        """Device that the logits would be on."""
        return self.hidden.device

    @property
    def shape(self) -> torch.Size:
        """Shape that the logits would have, `[..., V]`."""
        return torch.Size((*self.hidden.shape[:-1], self.head.out_features))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.hidden.dim()

    @property
    def requires_grad(self) -> bool:
        """Whether the logits would require a gradient."""
        return torch.is_grad_enabled() and (self.hidden.requires_grad or self.head.weight.requires_grad)

    def size(self, dim: int | None = None) -> Any:
        """Returns the shape, or one length of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Returns the number of dimensions."""
        return self.hidden.dim()

    def computed(self) -> Tensor:
        """Returns the logits after all, `[..., V]`."""
        return after_steps(F.linear(self.hidden, self.head.weight, self.head.bias), self.steps)

    # -- steps on single logits

    def float(self) -> Any:
        """Returns the logits in fp32."""
        return self._cast(torch.float32)

    def double(self) -> Any:
        """Returns the logits in fp64."""
        return self._cast(torch.float64)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the logits in another dtype; a device is passed over where it is their own."""
        given = [*args, *kwargs.values()]
        dtypes = [value.dtype if isinstance(value, Tensor) else value for value in given]
        dtype = next((value for value in dtypes if isinstance(value, torch.dtype)), None)
        for value in given:
            place = value.device if isinstance(value, Tensor) else value
            if isinstance(place, str | torch.device) and torch.device(place).type != self.device.type:
                return self._otherwise("to", lambda: self.computed().to(*args, **kwargs))
        return self if dtype is None else self._cast(dtype)

    def type_as(self, other: Tensor) -> Any:
        """Returns the logits in the dtype of another tensor."""
        return self._cast(other.dtype)

    def __mul__(self, factor: Any) -> Any:
        """Scales the logits."""
        return self._scaled("multiply", factor)

    __rmul__ = __mul__
    mul = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        """Scales the logits."""
        return self._scaled("divide", divisor)

    div = __truediv__

    def tanh(self) -> Any:
        """Caps the logits softly, with a division before and a product behind."""
        return self._with_step(LogitStep("tanh"))

    def _cast(self, dtype: torch.dtype) -> Any:
        return self if dtype == self.dtype else self._with_step(LogitStep("cast", dtype))

    def _scaled(self, kind: Any, value: Any) -> Any:
        if isinstance(value, int | float):
            return self._with_step(LogitStep(kind, float(value)))
        what = "multiplying by a tensor" if kind == "multiply" else "dividing by a tensor"
        return self._otherwise(what, lambda: self.computed() * value if kind == "multiply" else self.computed() / value)

    def _with_step(self, step: LogitStep) -> DeferredLogits:
        return dataclasses.replace(self, steps=(*self.steps, step))

    # -- which tokens, in which shape

    def contiguous(self) -> Any:
        """Returns the logits as they are."""
        return self

    def view(self, *shape: Any) -> Any:
        """Returns the tokens in another shape; the vocabulary stays the last dimension."""
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        words = self.head.out_features
        if all(isinstance(size, int) for size in sizes) and sizes and sizes[-1] in (words, -1) and sizes.count(-1) <= 1:
            tokens = self.hidden.shape[:-1].numel()
            front = 1
            for size in sizes[:-1]:
                front *= size if size != -1 else max(1, tokens)
            if sizes[-1] == words or front == tokens:
                return self._like(self.hidden.reshape(*sizes[:-1], self.hidden.shape[-1]))
        return self._otherwise("view", lambda: self.computed().reshape(*shape))

    reshape = view

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Returns the tokens with some of their dimensions as one."""
        last = end_dim % self.ndim
        if last < self.ndim - 1:
            return self._like(self.hidden.flatten(start_dim, last))
        return self._otherwise("flatten", lambda: self.computed().flatten(start_dim, end_dim))

    def squeeze(self, dim: int) -> Any:
        """Returns the tokens without a dimension of length 1."""
        if dim % self.ndim < self.ndim - 1:
            return self._like(self.hidden.squeeze(dim))
        return self._otherwise("squeeze", lambda: self.computed().squeeze(dim))

    def __getitem__(self, key: Any) -> Any:
        """Returns some of the tokens."""
        parts = key if isinstance(key, tuple) else (key,)
        taken = sum(_dimensions(part) for part in parts)
        has_gap = any(part is Ellipsis for part in parts)
        whole = parts and isinstance(parts[-1], slice) and parts[-1] == slice(None)
        if (whole and (has_gap or taken <= self.ndim)) or (not has_gap and taken < self.ndim):
            return self._like(self.hidden[key])
        if parts[-1] is Ellipsis and taken < self.ndim:
            return self._like(self.hidden[key])
        return self._otherwise("indexing words of the vocabulary", lambda: self.computed()[key])

    def _like(self, hidden: Tensor) -> DeferredLogits:
        return dataclasses.replace(self, hidden=hidden)

    # -- the loss, and everything else

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Takes part in torch's functions: a cross entropy is what it waits for."""
        kwargs = dict(kwargs or {})
        found = next(value for value in (*args, *kwargs.values()) if isinstance(value, cls))
        if func is F.cross_entropy and (args[0] if args else kwargs.get("input")) is found:
            return found._cross_entropy(*args[1:], **{key: kwargs[key] for key in kwargs if key != "input"})
        if func is torch.tanh:
            return found.tanh()
        return found._otherwise(
            getattr(func, "__name__", str(func)),
            lambda: func(
                *(value.computed() if isinstance(value, cls) else value for value in args),
                **{key: value.computed() if isinstance(value, cls) else value for key, value in kwargs.items()},
            ),
        )

    def __getattr__(self, name: str) -> Any:
        """Anything of a tensor that is not here needs the logits themselves."""
        if name.startswith("__") or not hasattr(Tensor, name):  # a tensor has no `loss`, which many ask for
            raise AttributeError(name)
        return self._otherwise(name, lambda: getattr(self.computed(), name))

    def _cross_entropy(self, target: Tensor, weight: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        names = ("size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
        kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        if any(kwargs.get(name) is not None for name in _LEGACY_REDUCTIONS):
            self._refuse("cross_entropy with size_average or reduce")
        if weight is not None:
            self._refuse("a cross entropy with weights of classes")
        if target.is_floating_point() or target.shape != self.hidden.shape[:-1]:
            self._refuse(f"a cross entropy with labels of shape {tuple(target.shape)} for {tuple(self.shape)} logits")
        reduction = kwargs.get("reduction", "mean")
        self.use.in_loss = True
        losses = self.loss_function(
            self.hidden.reshape(-1, self.hidden.shape[-1]),
            self.head.weight,
            self.head.bias,
            target.reshape(-1),
            reduction=reduction,
            settings=Settings(
                steps=self.steps,
                compute_dtype=self.compute_dtype,
                ignore_index=kwargs.get("ignore_index", -100),
                label_smoothing=kwargs.get("label_smoothing", 0.0),
            ),
        )
        return losses.reshape(target.shape) if reduction == "none" else losses

    def _otherwise(self, name: str, compute: Callable[[], Any]) -> Any:
        if self.use.trained:
            self._refuse(name)
        with torch.no_grad():
            return compute()

    def _refuse(self, name: str) -> NoReturn:
        with about("loss_impl"):
            raise InputError(
                f"loss_impl={self.impl!r}: the model does more with its logits than scale, shift and flatten them for a "
                f"plain cross entropy over the vocabulary ({name}), so they cannot be left out. Set loss_impl='full'."
            )


def product_dtype(hidden: Tensor) -> torch.dtype:
    """Returns in which dtype a linear layer would compute here."""
    kind = hidden.device.type
    cast = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if cast else hidden.dtype


def _dimensions(part: Any) -> int:
    """How many dimensions one part of an index takes up."""
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1
