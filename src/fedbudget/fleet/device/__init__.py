"""The program of a device; imports nothing here, to save memory."""
