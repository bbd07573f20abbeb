"""What devices and the coordinator send each other, byte by byte."""
