"""Measuring this machine, so that predictions hold for it: `snugfit calibrate`, and `snugfit verify`, which checks them."""
