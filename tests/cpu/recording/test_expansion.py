"""A deep trace from two shallow ones: what repeats from block to block is followed, and everything else refused."""

from __future__ import annotations

import dataclasses

import pytest

from snugfit.recording.expansion import Expansion
from snugfit.recording.multi_tensor import TensorLists
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.repeated_regions import NotAlike
from snugfit.recording.trace import Trace
from snugfit.recording.trace_builder import TraceBuilder


def step(
    blocks: int, *, last_bytes: int = 30, wrong_block: int | None = None, total: str = "aten.stack.default"
) -> Trace:
    """A forward pass whose activations a backward pass frees in turn, and an update by lists."""
    builder = TraceBuilder()
    weights = [builder.alloc(7, category="weights", module=f"layers.{number}.linear") for number in range(blocks)]
    builder.mark("forward", True)
    before, kept = builder.alloc(10, module="embedding"), []
    for number in range(blocks):
        kept.append(
            builder.alloc(21 if number == wrong_block else 20, category="activations", module=f"layers.{number}")
        )
        run(builder, "aten.mm.default", f"layers.{number}")
        builder.free(before)
        before = builder.alloc(10, module=f"layers.{number}")
    builder.mark("forward", False)
    out = builder.alloc(last_bytes, module="head")
    for number in reversed(range(blocks)):
        builder.workspace(5, module=f"layers.{number}")
        builder.free(kept[number])
    builder.free(out)
    norms = [builder.alloc(4, operator="aten._foreach_norm.Scalar") for _ in weights]
    run(builder, "aten._foreach_norm.Scalar", "", blocks)
    summed = builder.alloc(4 * blocks, operator=total)
    for norm in norms:
        builder.free(norm)
    builder.free(summed)
    return builder.build()


def run(builder: TraceBuilder, operator: str, module: str, tensors: int = 0) -> None:
    lists = TensorLists(tensors, 100 * tensors, 2) if tensors else None
    builder.run(
        OperatorRun(
            operator=operator, module=module, phase="", flops=0, read_bytes=7 * max(tensors, 1), written_bytes=0,
            dtype="float32", kernels=1 if lists is None else lists.launches, device="device",
            lists=() if lists is None else lists,
        )
    )  # fmt: skip


def paths(blocks: int) -> list[str]:
    return [f"layers.{number}" for number in range(blocks)]


def test_a_deep_trace_follows_from_two_shallow_ones() -> None:
    expansion = Expansion(step(3), step(4), paths(3), paths(4))
    for blocks in (3, 4, 5, 40):
        assert expansion.trace(paths(blocks)) == step(blocks)


def test_kernels_of_lists_are_counted_anew() -> None:
    deep = Expansion(step(3), step(4), paths(3), paths(4)).trace(paths(40))
    assert [one.kernels for one in deep.runs if one.lists] == [13]  # 4000 chunks, 320 in each; 2 for 4 blocks


@pytest.mark.parametrize(
    "other",
    [
        step(4, last_bytes=31),
        step(4, wrong_block=1),
        step(5),
        step(4, total="aten.bmm.default"),
        dataclasses.replace(step(4), phases=("backward",)),
    ],
    ids=["another size", "a block that differs", "two more blocks", "an operator that may not grow", "another phase"],
)
def test_what_does_not_follow_is_refused(other: Trace) -> None:
    with pytest.raises(NotAlike):
        Expansion(step(3), other, paths(3), paths(4)).trace(paths(8))


def test_an_operator_that_may_not_grow_is_refused() -> None:
    shallow, deep = (step(blocks, total="aten.bmm.default") for blocks in (3, 4))
    with pytest.raises(NotAlike):
        Expansion(shallow, deep, paths(3), paths(4))
