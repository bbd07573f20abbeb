"""The two ends of Flower: neither decides anything."""
