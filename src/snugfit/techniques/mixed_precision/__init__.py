"""Mixed precision: compute in 16 bits under autocast, keep weights, gradients and state in fp32.

Saves about half of the activations that matmuls and convolutions save, and runs them on the fast units of a GPU. Adds a
16-bit copy of each weight while a forward pass runs (autocast's cache), so a model with few activations can need *more*
memory than plain fp32. `16-mixed` scales the loss so that small gradients survive fp16, skips updates whose gradients
overflow, and lowers the scale; `bf16-mixed` has fp32's range and needs none of that.

Wrong when: the model already holds 16-bit weights (use true precision); on CPUs without 16-bit matmul units it is slower
than fp32. Fidelity: rounding. Evaluation runs under autocast too, as the deployed model would.

Source: Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740); torch.amp.
"""
