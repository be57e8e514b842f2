"""Activation checkpointing: keep a block's inputs, forget what it computed, compute it again when backward arrives.

Saves what lies between the blocks' inputs: of `n` equal blocks, `n` inputs and one block's inside remain. Costs one more
forward pass of each checkpointed block, about a third more time when all are. `blocks:K` and `every:N` checkpoint only as
many as the memory needs; the first blocks wait longest for their backward, so K counts from the front. `selective`
recomputes the cheap operators (norms, activations, additions) and keeps the results of matmuls, convolutions and
attention: fewer bytes saved, very little time.

Random state is kept, so dropout masks are the same, and batch norm's running statistics move once, not twice. Blocks are
found by structure (`blocks.py`) or named. A model that already checkpoints itself is not wrapped again.

Wrong when: parameters, not activations, fill the memory; the last block (its recomputation comes at once, so it saves
nothing). Fidelity: exact. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016 (arXiv:1604.06174);
torch.utils.checkpoint, non-reentrant; Korthikanti et al., 2022 (arXiv:2205.05198) for the selective form.
"""
