"""Federated learning within two budgets: privacy and resources."""

__version__ = "0.1.0"
