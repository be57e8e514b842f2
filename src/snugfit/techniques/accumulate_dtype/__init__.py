"""fp32 accumulation: gradients of microbatches add up in fp32 although the weights are 16 bits.

A bf16 sum of many microbatches loses its small terms (in a sum of 256 equal ones, half of it). Here each microbatch's
gradient is added to an fp32 sum and freed; before the update the sum is rounded once, parameter by parameter. Costs
4 bytes a parameter instead of 2 while gradients add up.

Fidelity: exact for the sum itself. Source: the fp32 main gradients of Megatron-LM (arXiv:1909.08053).
"""
