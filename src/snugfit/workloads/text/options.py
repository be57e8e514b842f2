"""How text is read."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """How text is read."""

    task: str
    """text-classification or causal-lm."""
    seq_len: int
    """Most tokens of a sample."""
    packing: bool = False
    """Short samples are laid end to end in rows of exactly `seq_len` tokens (causal-lm)."""
    text_column: str | None = None
    """Column of the texts, or of what follows a prompt."""
    label_column: str | None = None
    """Column of the labels (text-classification)."""
    prompt_column: str | None = None
    """Column of prompts, which are read and not learned (causal-lm)."""
    samples: int | None = None
    """Training samples at most, the other parts in proportion."""
    seed: int = 0
    """Seed of random data; the cut into parts has its own."""
    download: bool = False
    """Whether `hf:` data may be fetched."""
