"""Simulated devices on compiled kernels, sweeps and personal models."""
