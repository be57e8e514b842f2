"""torch.compile: fuse operators, and let the compiler choose what to keep for backward.

Fusing saves the intermediates between elementwise operators and the time to write them; the partitioner of
`aot_eager_decomp_partition` and `inductor` also recomputes cheap operators instead of saving their results, and
`compile_memory_budget` (0 to 1, a share of activation memory) makes it recompute more. Costs minutes at the start, and
again for every new shape: a ragged last batch compiles once more. `aot_eager` only proves that a model compiles.

Wrong when: shapes change all the time, the run is short, or the model breaks the graph often. TorchScript is deprecated in
torch and not offered: it saves no training memory. Fidelity: `aot_eager` exact, `inductor` rounding.

Source: Ansel et al., PyTorch 2, 2024 (doi:10.1145/3620665.3640366); torch._functorch.config.activation_memory_budget.
"""
