"""What torch's dispatcher knows of operators: which kernels there are, what they write to, bodies over other operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

_libraries: list[torch.library.Library] = []

IMPLICIT, EXPLICIT = (
    "CompositeImplicitAutograd",
    ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
)
"""Keys of bodies over other operators, with autograd inside them and under it."""


def has_kernel(name: str, key: str) -> bool:
    """Returns whether an operator (`aten::add.Tensor`) has a kernel registered for exactly this key (`CPU`)."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def operator_names() -> list[str]:
    """Returns the names of all registered operators of torch itself."""
    return [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]


@functools.cache
def knows_cuda_kernels() -> bool:
    """Returns whether this build of torch has CUDA's kernels (also without a GPU)."""
    return has_kernel("aten::mm", "CUDA")


def explicit_body(name: str) -> str | None:
    """Returns the key of an operator's body over other operators under autograd; None where it has none."""
    return next((key for key in EXPLICIT if has_kernel(name, key)), None)


def run_explicit_body(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs that body in place of a kernel."""
    key = getattr(torch._C.DispatchKey, explicit_body(operator.name()) or "")
    python = operator.py_kernels.get(key)
    return python(*args, **kwargs) if python is not None else operator._op_dk(key, *args, **kwargs)


@functools.cache
def places_written(operator: Any) -> list[tuple[int, str]]:
    """Returns positions and names of the arguments that an operator writes to."""
    arguments = enumerate(operator._schema.arguments)
    return [(i, argument.name) for i, argument in arguments if argument.alias_info and argument.alias_info.is_write]


def run_on_cpu(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs an operator's cpu kernel without the dispatcher, so that a mode sees the operators inside it."""
    return operator._op_dk(torch._C.DispatchKey.CPU, *args, **kwargs)


def claim_kernel(name: str, kernel: Callable[..., Any], key: str = "PrivateUse1", *, with_keys: bool = False) -> None:
    """Registers a kernel for an operator; without a key, for the simulated card.

    `with_keys`: whether it takes the set of dispatch keys before the arguments.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl(name.removeprefix("aten::"), kernel, key, with_keyset=with_keys)  # type: ignore[no-untyped-call]
    _libraries.append(library)


def own_operator(schema: str, fake: Callable[..., Any]) -> Any:
    """Returns a new operator of ours that only simulations run; call it once for each.

    `schema`: its name, arguments and results, such as `scale(Tensor x) -> Tensor`.
    `fake`: what it does to fake tensors.
    """
    library, name = torch.library.Library("snugfit", "FRAGMENT"), schema.partition("(")[0]  # type: ignore[no-untyped-call]
    library.define(schema)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"snugfit::{name}", fake, lib=library)
    _libraries.append(library)
    return getattr(torch.ops.snugfit, name).default


@functools.cache
def python_body(operator: Any) -> Callable[..., Any] | None:
    """Returns the kernel of an operator that torch itself writes in Python over other operators, None for others.

    Its fake version shows only its results; the body, run on fake tensors, shows what it takes inside as well.
    """
    if operator.namespace != "torch_nn":
        return None
    from torch.nn.modules import linear_cross_entropy

    definition = getattr(linear_cross_entropy, operator._opname, None)
    body: Callable[..., Any] | None = getattr(definition, "_init_fn", None)
    return body


def torchs_own_gradient(operator: Any, keys: Any, claimed: str, *args: Any, **kwargs: Any) -> Any:
    """Runs an operator with torch's own gradient, where the kernel for its autograd key was claimed.

    Autograd's kernels are the same for all kinds of device, so another kind's is taken.
    """
    known = torch._C.DispatchKey
    return operator.redispatch(keys.remove(getattr(known, claimed)).add(known.AutogradOther), *args, **kwargs)
