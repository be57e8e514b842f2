"""How long tests wait for processes that hang: far above what the slowest busy machine needs, so that none fails by load."""

SECONDS = 1200
