"""One file per command, named as it is typed."""
