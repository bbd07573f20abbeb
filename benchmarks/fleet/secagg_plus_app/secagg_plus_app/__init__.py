"""Flower's SecAgg+ workflow, as its documentation runs it."""
