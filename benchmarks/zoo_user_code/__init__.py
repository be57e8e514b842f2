"""Training code as people write it, for the zoo: captured tensors and teachers, own losses, masks, hooks, batches.

`CASES` has one row a case; each is made anew by `make()`, so that captured networks are new as well:

    for make in CASES:
        case = make()
        estimate = snugfit.estimate(case.build(), case.batch(), device="cpu", assume=case.assume, **case.arguments())
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.zoo_user_code import adversarial, images, sequences, tables
from benchmarks.zoo_user_code.case import Case

CASES: tuple[Callable[[], Case], ...] = (
    images.class_weights,
    images.loss_module,
    images.distillation,
    images.perceptual,
    images.unet,
    images.vae,
    images.contrastive,
    images.triplet,
    adversarial.discriminator,
    adversarial.gradient_penalty,
    adversarial.spectral,
    adversarial.old_spectral,
    adversarial.weighted,
    adversarial.old_weighted,
    sequences.tagger,
    sequences.seq2seq,
    sequences.masked_encoder,
    sequences.gpt,
    tables.pinn,
    tables.own_function,
    tables.recommender,
    tables.graph,
    tables.multi_task,
    tables.dataclass_batch,
    tables.experts,
    tables.hash_experts,
)
"""Functions that make a case."""

__all__ = ["CASES", "Case"]
