"""Releases in this process: devices whose answers keep the epsilon that they state."""
