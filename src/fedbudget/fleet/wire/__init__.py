"""The messages between devices and the coordinator, and their bytes."""
