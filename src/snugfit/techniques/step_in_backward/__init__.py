"""Step in backward: a parameter is updated the moment its gradient is complete, and the gradient is freed at once.

All gradients are then never alive together: 4 bytes a parameter in fp32 (2 in bf16) shrink to those of one parameter.
Costs nothing but the launch of one update a parameter, and overlaps updates with the backward pass.

Wrong, and refused with the reason, where the update needs all gradients first: accumulation over microbatches, clipping by
the global norm, fp16 loss scaling. A step whose loss is not finite is not taken at all; if a gradient in the middle of a
backward pass is not finite, the parameters behind it have been updated and those from there on are left alone.

Fidelity: exact. Source: torch.Tensor.register_post_accumulate_grad_hook and the tutorial "How to save memory by fusing the
optimizer step into the backward pass"; Lv et al., LOMO, 2023 (arXiv:2306.09782).
"""
