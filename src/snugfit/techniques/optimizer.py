"""Leaner optimizers: SGD keeps no state without momentum, Adafactor a row and a column a matrix; Adam keeps two copies.

Adam and AdamW hold 8 bytes a parameter in fp32 (4 in bf16), often more than weights and gradients together. SGD with
momentum holds half of that, SGD without momentum nothing. Adafactor factors the second moment and keeps no first one:
about 0.02 bytes a parameter.

Costs nothing in time, but is another algorithm: it needs its own learning rate (SGD's is usually 10 to 1000 times Adam's,
with a cosine schedule), and on transformers SGD often ends at a worse loss. Fidelity: different, never chosen unless
allowed.

`Workload.optimizer` says what is to be learned with; `Recipe.optimizer` replaces it to save memory and is labelled. Both
mean what `torch.optim` means: SGD has momentum 0, AdamW decays every parameter by 0.01. `no_decay` leaves biases and norms
out.

Source: Shazeer and Stern, Adafactor, 2018 (arXiv:1804.04235); torch.optim. Built by `training/optimizers.py`.
"""
