"""What a real step allocated, one block after the other, against the predicted sequence.

The runs are public memory snapshots of transformers written for Stanford's course CS336, whose code is public too. That code
is not part of this repository: CODE is a folder with a checkout of each repository (CODE/OWNER/NAME), and what they import
(einops, einx, jaxtyping) must be there. A step is built from it as its author profiled it, and simulated; then the blocks it
allocates in the steady step are laid beside the recorded ones.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import real_traces
from snugfit.fake_device.personality import Personality
from snugfit.recording.trace import ALLOC, WORKSPACE, Trace
from snugfit.simulator.own_step import simulate_step
from snugfit.workers.pool import Pool

VOCABULARY, BATCH = 10_000, 4
MEDIUM = {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}
LARGE = {"d_model": 2560, "num_layers": 32, "num_heads": 32, "d_ff": 10240}


@dataclasses.dataclass(frozen=True)
class Case:
    """One profiled step."""

    repository: str
    """Owner and name."""
    snapshot: str
    """A part of the snapshot's name."""
    tokens: int
    """Tokens of a sequence."""
    sizes: dict[str, int]
    """Sizes of the model."""
    train: bool
    """Whether the step goes backward and updates, or only forward."""
    autocast: bool
    """Whether it computes in bfloat16."""


CASES = (
    Case("Wedsonlin/assignment2-systems", "medium_128_inference", 128, MEDIUM, False, False),
    Case("Wedsonlin/assignment2-systems", "medium_256_inference", 256, MEDIUM, False, False),
    Case("Wedsonlin/assignment2-systems", "medium_256_training", 256, MEDIUM, True, False),
    Case("Wedsonlin/assignment2-systems", "medium_1024_training", 1024, MEDIUM, True, True),
    Case("aimetrics/assignment2-systems", "2.7b_forward_seq128_bf16", 128, LARGE, False, True),
    Case("aimetrics/assignment2-systems", "2.7b_train_seq128_bf16", 128, LARGE, True, True),
)


def simulated(case: Case, code: Path, pool: Pool) -> Trace:
    """Returns the recording of a case."""
    path = str(code / case.repository / "cs336-basics")
    ours = "Wedsonlin" in case.repository  # the course's own loss and optimizer, and its model as it is
    folders = [path, *(folder for folder in sys.path if folder)]

    def build() -> torch.nn.Module:
        sys.path[:0] = [folder for folder in folders if folder not in sys.path]
        from cs336_basics import model

        if not ours:
            model.SwiGLU.forward = _both_products_first
        made: torch.nn.Module = model.BasicsTransformerLM(
            vocab_size=VOCABULARY, context_length=case.tokens, **case.sizes
        )
        return made.train(case.train)

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        without_gradients: Callable[[], Any] = torch.inference_mode if ours else torch.no_grad
        if not case.train:
            with without_gradients(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=case.autocast):
                model(batch[0])
            return
        from cs336_basics.nn_utils import cross_entropy

        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=case.autocast):
            scores = model(batch[0])
            if ours:
                loss = cross_entropy(scores, batch[1])
            else:
                loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.size(-1)), batch[1].reshape(-1))
        loss.backward()
        optimizer.step()

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        if ours:
            from cs336_basics.optimizer import AdamW

            made: torch.optim.Optimizer = AdamW(parameters)
            return made
        return torch.optim.AdamW(parameters)

    batch = tuple(torch.zeros(BATCH, case.tokens, dtype=torch.long, device="meta") for _ in range(2))
    return simulate_step(step, build, optimizer, batch, personality=Personality(capability=(8, 0)), pool=pool).trace


def _both_products_first(self: Any, inputs: torch.Tensor) -> Any:
    """A gated layer in the order of aimetrics' benchmarking.py, which profiles with ranges around its parts."""
    gate, up = self.w1(inputs), self.w3(inputs)
    return self.w2(gate * torch.sigmoid(gate) * up)


def blocks(trace: Trace) -> list[tuple[int, str]]:
    """Returns bytes and operator of what the last step allocates on the card, in order."""
    before, last = trace.step_events()
    found = []
    for event in range(before + 1, last):
        subject = trace.subjects[event]
        if trace.kinds[event] == WORKSPACE:
            found.append((trace.workspaces[subject].nbytes, f"inside {trace.workspaces[subject].operator}"))
        elif trace.kinds[event] == ALLOC:
            storage = trace.storages[subject]
            if storage.place == "device" and storage.nbytes:
                found.append((storage.nbytes, storage.operator))
    return found


def compared(trace: Trace, snapshot: Path) -> dict[str, Any]:
    """Returns how much of what was recorded is predicted in the same order, and what is not."""
    _, events, _ = real_traces.read(snapshot)
    real = [event["size"] for event in events if event["action"] == "alloc"]
    predicted = blocks(trace)
    matcher = difflib.SequenceMatcher(None, [size for size, _ in predicted], real, autojunk=False)
    matched = sum(sum(real[one.b : one.b + one.size]) for one in matcher.get_matching_blocks())
    only_real: Counter[int] = Counter()
    only_predicted: Counter[tuple[int, str]] = Counter()
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind != "equal":
            only_predicted.update(predicted[first:last])
            only_real.update(real[begin:end])
    return {
        "recorded_blocks": len(real),
        "recorded_bytes": sum(real),
        "predicted_blocks": len(predicted),
        "predicted_bytes": sum(size for size, _ in predicted),
        "matched_bytes": matched,
        "only_recorded": [[size, count] for size, count in only_real.most_common(8)],
        "only_predicted": [[size, operator, count] for (size, operator), count in only_predicted.most_common(8)],
    }


def sequences(truth: Path, code: Path) -> list[dict[str, Any]]:
    """Compares all cases."""
    rows = []
    for case in CASES:
        found = [path for path in (truth / "traces").glob("*.json.gz") if case.snapshot in path.name]
        pool = Pool()  # the repositories have packages of the same name
        try:
            rows.append({**dataclasses.asdict(case), **compared(simulated(case, code, pool), found[0])})
        finally:
            pool.close()
        print(case.snapshot, f"{rows[-1]['matched_bytes'] / rows[-1]['recorded_bytes']:.4%}", flush=True)
    return rows
