"""TF32: matmuls and convolutions of fp32 tensors round their inputs to 10 bits of mantissa on CUDA's tensor cores.

Saves no memory; it makes fp32 training several times faster on Ampere and newer cards, which buys time for techniques that
save memory. Wrong when the model needs all of fp32's digits (some solvers and losses do). Fidelity: rounding. Has no
effect outside CUDA, and says so.

Source: torch notes, "TensorFloat-32 (TF32) on Ampere (and later) devices".
"""
