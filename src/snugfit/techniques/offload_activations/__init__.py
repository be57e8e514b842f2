"""Activation offload: what backward will need waits in host memory.

Saves nearly all activations (`all`), those of the named modules, or only the inputs of checkpointed blocks
(`checkpoints`), which together with checkpointing leaves one block's inside on the device. Costs the copies: on CUDA they
run on a second stream from and to page-locked memory beside the compute, and hurt when a block computes faster than the
link copies (short sequences, small batches). Host memory must hold what leaves the device.

Copies out are ordered by events, and at most `DEPTH` tensors wait for theirs; copies back are started one tensor ahead of
need. Both run into memory of the compute stream, so the peak does not depend on timing. Parameters, buffers, views of
them and tensors under `MIN_BYTES` stay. A tensor saved by several operators moves once.

Fidelity: exact. Source: torch.autograd.graph.saved_tensors_hooks; the fixed depth follows the design notes of torchtune's
OffloadActivations (meta-pytorch/torchtune, training/_activation_offloading.py).
"""
