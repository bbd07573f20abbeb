"""What runs on a device: nothing is imported here, to save its memory."""
