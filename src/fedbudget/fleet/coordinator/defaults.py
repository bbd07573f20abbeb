"""What a coordinator does where nobody says otherwise.

On their own, so that the command line shows them without loading the coordinator.
"""

NAME = "run"
WAIT = 60.0  # seconds for devices to declare themselves
DEADLINE = 60.0  # seconds for a round
MINIMUM = 1  # answers without which a round does not end at its deadline
PATIENCE = 10  # deadlines after which a round without enough answers ends the run
PRECISION = "float32"  # of the models that are sent
STATUS_PORT = 8765  # where the page of `fedbudget ui` looks for the status
