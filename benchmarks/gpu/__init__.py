"""The ground truth: everything that is predicted, measured on a CUDA card, or smaller and by the same code on a CPU.

Each part is one file with a list of cases and a function that measures one of them in a fresh process; rows go to
`benchmarks/results/<card>-torch<version>/PART.jsonl` as they are measured, and a rerun does only what is missing.

    python -m benchmarks.gpu [--only accuracy,traces] [--minutes 9] [--device cpu]
"""
