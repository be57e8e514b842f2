"""Speed and memory, measured against a peer in the same run; results as JSON under `results/`."""
