"""True low precision: weights, gradients, activations and optimizer state in 16 bits.

Halves everything, and is the largest single saving of the guides. `bf16-true` keeps fp32's range with 8 bits of mantissa:
an update smaller than about 1/256 of a weight is lost (100 updates of 1e-4 on a weight of 0.05 leave 0.05005), which
`stochastic_rounding` cures on average; `prepare` watches the first updates and warns once when most of them are lost.
`16-true` has a finer mantissa but overflows at 65504: it warns at the start, and a step with a gradient that is not finite
is not taken and stops the run with the cause named.

Wrong when: the model is trained from scratch at small learning rates without stochastic rounding; many microbatches add up
in 16 bits (set `accumulate_dtype=fp32`). Fidelity: rounding. Floating tensors of a batch are cast to the weights' dtype;
integer ones, and float64 models' buffers of integers, are left alone.

Source: Lightning Fabric's true-half precision; Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019
(arXiv:1905.12322).
"""
