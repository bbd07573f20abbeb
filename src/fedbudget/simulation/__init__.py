"""Devices: the local steps, as the paper writes them and as compiled kernels."""
