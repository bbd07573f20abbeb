"""`python -m fedbudget` is the command `fedbudget`."""

from fedbudget.cli import main

if __name__ == "__main__":
    main()
