"""Everything this package raises on purpose.

    Exception
      FedbudgetError            catch this to catch all of them
        InvalidInputError       an argument is wrong (also a ValueError)
          DataError             a table or a data set is wrong
        InfeasibleBudgetError   the budgets do not buy a single round
        TrainingError           a run cannot go on; its record is kept
        RecordError             a run folder cannot be written or resumed
        MessageError            bytes from the network are not a message
        LedgerError             a device's ledger cannot be written or trusted
        MeasuringError          this device's prices cannot be measured
        TrackingError           a tracker does not take what is logged
        MissingExtraError       an optional package is missing (also an ImportError)

    UserWarning
      NotPrivateWarning         something was read off private rows without noise
      DataWarning               a cell of a table looks like a slip of the pen
      OneDeviceWarning          an estimator was told no devices, and took one

Every message names the thing, its value, the limit, and what to do about it.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class FedbudgetError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidInputError(FedbudgetError, ValueError):
    """An argument is outside what the function can honour.

    Attributes:
        argument: Its name, where one argument is to blame.
        column: The name of the table's column, where the error is about one.
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
    """A run cannot go on; what it has recorded so far is kept."""


class RecordError(FedbudgetError):
    """A run folder cannot be written, read or resumed."""


class MessageError(FedbudgetError):
    """Bytes from the network are not a message, or not from who must have sent it."""


class LedgerError(FedbudgetError):
    """A device's ledger cannot be read, written or trusted."""


class MeasuringError(FedbudgetError):
    """What a step or a round costs on this device cannot be measured."""


class TrackingError(FedbudgetError):
    """A tracker does not take what is logged; the record of the run is kept."""


class MissingExtraError(FedbudgetError, ImportError):
    """A feature needs a package that the base install leaves out."""

    def __init__(self, feature: str, package: str, extra: str = "lab") -> None:
        super().__init__(
            f"{feature} needs {package}, which is not installed: "
            f"from a clone, pip install '.[{extra}]'"
        )


@contextmanager
def needed(feature: str, package: str, extra: str = "lab") -> Iterator[None]:
    """Import what a feature needs inside of this, or say how to get it."""
    try:
        yield
    except ImportError:
        raise MissingExtraError(feature, package, extra) from None


class NotPrivateWarning(UserWarning):
    """A number was read off private rows without noise: no guarantee covers it."""


class DataWarning(UserWarning):
    """A cell of a table looks like a slip of the pen, and was taken as it is."""


class OneDeviceWarning(UserWarning):
    """An estimator was not told the device of each row: nothing is federated."""
