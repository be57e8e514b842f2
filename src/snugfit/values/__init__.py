"""What code is told that asks for values, which simulated tensors do not have."""
