"""Estimates: what is asked, how it is simulated in a worker, and the answer."""
