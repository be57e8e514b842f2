"""Muon: the update of a matrix is made orthogonal, so one moment is enough where Adam keeps two.

Half of Adam's state for every matrix inside the model: 4 bytes a parameter in fp32 (2 in bf16) in place of 8. What Muon is
not made for stays with AdamW: embeddings, the output head, biases, norms, and convolutions (weights of more than two
dimensions). Both are one optimizer with one state_dict, built of `torch.optim.Muon` and `torch.optim.AdamW`.

Costs a Newton-Schulz iteration a matrix and step (fifteen products in bf16; it pays where batches are large), and during it
temporaries of a few times the largest matrix in bf16.

One learning rate serves both: Muon's update is scaled to the size of AdamW's (`adjust_lr_fn="match_rms_adamw"`), so that a
rate found for AdamW can be used as it is. Decay and momentum that are not given are torch's own: 0.1 and 0.95 for Muon, 0.01
for AdamW; `betas` go to AdamW.

Another algorithm, so another result: fidelity different, never chosen unless allowed. Wrong for fine-tuning a model whose
pretraining used Adam with few steps, and where the matrices are few. The output head is the layer a model names as such
(transformers), else its last linear layer.

Source: Jordan et al., Muon, 2024 (kellerjordan.github.io/posts/muon); Liu et al., Muon is Scalable for LLM Training, 2025
(arXiv:2502.16982); torch.optim.Muon.
"""

from __future__ import annotations

from typing import Literal

from snugfit.techniques.declaration import OptimizerName, Technique

Muon = Literal["muon"]

TECHNIQUE = Technique(
    name="muon",
    fields=("optimizer",),
    rows=(8,),
    level="different",
    summary="half of the optimizer state of every matrix",
    optimizers=(OptimizerName(name="muon", built_by="snugfit.techniques.muon.apply:MuonOptimizer"),),
    misfits={
        "offload_optimizer takes adam, adamw or sgd; muon multiplies matrices, which is slow on the host.": lambda r, w: (
            r.optimizer is None and r.offload_optimizer and w.optimizer == "muon"
        ),
    },
    in_the_loop="make that optimizer there (torch.optim.Muon)",
    example=({"microbatch_size": 4}, {"microbatch_size": 4, "optimizer": "muon"}),
)
