"""Runs of training from a request to their result: what `snugfit.train` and `snugfit train` do."""
