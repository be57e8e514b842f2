"""Foreign code, adopted: where it is from, and what of it is trained."""

from benchmarks.stranger_cases import generative, language, own_loops, science, vision
from benchmarks.stranger_cases.adopted import CASES

__all__ = ["CASES", "generative", "language", "own_loops", "science", "vision"]
