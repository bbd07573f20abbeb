"""Default settings of a coordinator.

A module of their own: `--help` shows them without loading the coordinator.
"""

NAME = "run"
WAIT = 60.0  # seconds for devices to declare themselves
DEADLINE = 60.0  # seconds for a round
MINIMUM = 1  # answers that a round needs before it ends at its deadline
PATIENCE = 10  # deadlines after which a round without enough answers ends the run
QUORUM = 1.0  # share of the asked devices whose answers end a round
DEAF = 6.0  # seconds without any message before the coordinator connects again
PARTICIPATION = 1.0  # share of the devices that a round asks
PRECISION = "float32"  # of the models that are sent
STATUS_PORT = 8765  # where `fedbudget ui` reads the status
