"""Microbatches (gradient accumulation): the batch goes through the model in pieces whose gradients add up.

Activations shrink with the microbatch, and nothing else does. The update is that of the whole batch: each microbatch's
loss is weighted by its share, so a ragged last piece, sums, and losses that are means over tokens come out the same.

Costs time: small pieces fill a GPU badly (the guides measured 3.3 times as long at 4 x 4 instead of 16), so take the largest
that fits. Not exact where model or loss look across the batch: batch norm takes other statistics, dropout draws other
masks, a contrastive loss sees other negatives. What structure does not show is tried on a few samples before the first
update (`training/separation.py`); `coupled_samples` declares it, and docs/losses.md says which `loss_weight` is whose.
In 16-bit weights the sum loses bits; `accumulate_dtype=fp32` keeps it in fp32 at 4 bytes a parameter.

Fidelity: exact (see above). Source: the guides; the token-weighting error of plain averaging is described in
huggingface/transformers#34191.
"""
