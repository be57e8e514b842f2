"""Kernels of the update: fused (one pass), foreach (one operation at a time), for-loop (one tensor at a time).

Saves temporaries and time. `foreach` holds one intermediate as large as all parameters (Adam's denominator), `for-loop` one
as large as the largest parameter, `fused` none. On CUDA `fused` is also the fastest, and can be masked on the device: a
step whose gradients are not finite is left out without the host waiting, where `foreach` and `for-loop` make it wait for
that flag.

None takes `fused` where torch has it (adam, adamw and sgd on CPU and CUDA), else torch's default. Wrong when bit-for-bit
equality with a run that used another implementation matters. Fidelity: exact, up to the order of operations.

Source: torch.optim's documentation of foreach and fused. Chosen in `training/optimizers.py`.
"""
