"""Simulated devices over compiled kernels, sweeps, and personal models."""
