"""The training step, the update, the loop around them, and what keeps a run safe."""
