"""The errors and warnings of this package.

    Exception
      FedbudgetError            the base class of all
        InvalidInputError       an argument is invalid (also a ValueError)
          DataError             a table or a data set is invalid
        InfeasibleBudgetError   the budgets do not pay for a single round
        TrainingError           a run cannot continue; its record is kept
        RecordError             a run folder cannot be written or resumed
        MessageError            bytes from the network are not a message
        LedgerError             a device's ledger cannot be written or trusted
        MeasuringError          this device's prices cannot be measured
        TrackingError           a tracker cannot log a round
        MissingExtraError       an optional package is missing (also an ImportError)

    UserWarning
      NotPrivateWarning         a value was read from private rows without noise
      DataWarning               a cell of a table looks like a typing error
      OneDeviceWarning          an estimator got no groups and used one device

Every message gives the name, the value, the limit and the remedy, on one line.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class FedbudgetError(Exception):
    """Base class of the errors of this package."""


class InvalidInputError(FedbudgetError, ValueError):
    """An argument is invalid.

    Attributes:
        argument: The argument's name, if the error is about one argument.
        column: The name of the table's column, if the error is about one.
    """

    def __init__(
        self, message: str, *, argument: str | None = None, column: str | None = None
    ) -> None:
        super().__init__(message)
        self.argument, self.column = argument, column


class DataError(InvalidInputError):
    """A table, a column or a data set cannot be used as it is."""


class InfeasibleBudgetError(FedbudgetError):
    """No plan fits the budgets; raise one of them or lower the prices."""


class TrainingError(FedbudgetError):
    """A run cannot continue; its record so far is kept."""


class RecordError(FedbudgetError):
    """A run folder cannot be written, read or resumed."""


class MessageError(FedbudgetError):
    """Bytes from the network are not a message, or not from the expected sender."""


class LedgerError(FedbudgetError):
    """A device's ledger cannot be read, written or trusted."""


class MeasuringError(FedbudgetError):
    """The cost of a step or a round on this device cannot be measured."""


class TrackingError(FedbudgetError):
    """A tracker cannot log a round; the record of the run is kept."""


class MissingExtraError(FedbudgetError, ImportError):
    """A feature needs a package that is not part of the base install."""

    def __init__(self, feature: str, package: str, extra: str = "lab") -> None:
        super().__init__(
            f"{feature} needs {package}, which is not installed: "
            f"from a clone, pip install '.[{extra}]'"
        )


@contextmanager
def needed(feature: str, package: str, extra: str = "lab") -> Iterator[None]:
    """Turn an ImportError inside the block into a `MissingExtraError`."""
    try:
        yield
    except ImportError:
        raise MissingExtraError(feature, package, extra) from None


class NotPrivateWarning(UserWarning):
    """A value was read from private rows without noise: no guarantee covers it."""


class DataWarning(UserWarning):
    """A cell of a table looks like a typing error; it was used unchanged."""


class OneDeviceWarning(UserWarning):
    """An estimator got no device for each row: nothing is federated."""
