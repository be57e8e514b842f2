"""The recording of a training run and what is read off it: allocator, anatomy, clock. Importing this room loads no torch."""
