"""The command line: parse, call the library, print, exit code; no arithmetic.

app.py        the commands, and what becomes of errors
options.py    the options that commands share
sources.py    from the data options to a problem
tables.py     plans and frontiers for people
output.py     JSON, warnings, errors and progress
"""

from fedbudget.cli.app import main

__all__ = ["main"]
