"""The compiled kernels: many devices, and many runs, at once."""
