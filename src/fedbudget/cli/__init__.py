"""The command line: parse, call the library, print, exit code; no arithmetic.

app.py        all commands, and what becomes of errors
planning.py   plan, frontier
training.py   train
sweeping.py   sweep
options.py    the options that commands share
asking.py     from options to the arguments of a command
sources.py    from the data options to rows and a problem
tables.py     plans and frontiers for people
results.py    runs and sweeps for people
layout.py     how their pages look
output.py     JSON, warnings, errors and progress
"""

from fedbudget.cli.app import main

__all__ = ["main"]
