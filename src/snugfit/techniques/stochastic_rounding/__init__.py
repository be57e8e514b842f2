"""Stochastic rounding: an update too small for bf16 is not lost but taken with the right probability.

Rounding to nearest drops every update under half a step of the number format, and training in `bf16-true` can silently
stand still. Here each parameter's update is computed in fp32 and rounded up or down at random, in proportion to the
distance, so that the expected weight is the fp32 one; Adam's moments, which decay in steps as small, are rounded the same
way. Memory between steps stays that of `bf16-true`; during the update one parameter at a time has fp32 copies of itself,
its gradient and its state. Costs a per-parameter update and random numbers, drawn from a generator of its own, so the
model's dropout is not disturbed.

Fidelity: rounding. Wrong when updates are large anyway (high learning rates): it then only adds noise of one bf16 step.
Source: Gupta et al., Deep Learning with Limited Numerical Precision, 2015 (arXiv:1502.02551); Zamirai et al., Revisiting
BFloat16 Training, 2020 (arXiv:2010.06192).
"""
