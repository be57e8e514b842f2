"""The fake accelerator: a card that is not there, and what stands in on it for CUDA, libraries and other processes."""
