"""The truth: what one training run used, seen from outside. Importing this room loads no torch."""
