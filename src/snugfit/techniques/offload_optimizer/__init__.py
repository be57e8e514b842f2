"""Optimizer state on the host: moments and a copy of the weights live in host memory, and the update runs there.

Takes the whole optimizer state (8 bytes a parameter for Adam in fp32) off the device; weights and gradients stay. Costs
host memory for state, weights and a gradient buffer (16 bytes a parameter), a copy of every gradient to the host and of
every weight back each step, and an update at the host's speed. Copies run on a second stream beside the updates of other
parameters, and, with `step_in_backward`, beside the backward pass.

Wrong when: the host is slow or its memory small; many small steps, since every one moves all parameters. Takes adam, adamw
and sgd; Adafactor's state is too small to be worth it. Fidelity: exact; on CPU bitwise that of torch's own kernel.

Source: Ren et al., ZeRO-Offload, 2021 (arXiv:2101.06840).
"""
