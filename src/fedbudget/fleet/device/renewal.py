"""Starting periods of a data set, by the guard or by its owner; see `periods`."""

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.data_file import DeviceRows, read_rows
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.periods import Period
from fedbudget.fleet.device.policy import Policy


def renewed(ledger: LedgerFile, rows: DeviceRows, first_row: int) -> Period:
    """Start a period of the data set at this row; see `LedgerFile.renew`."""
    return ledger.renew(
        first_row, lambda start, count: rows.fingerprint(count, start=start)
    )


def start_period(policy: Policy) -> Period:
    """Let the owner start a period after the rows that the file has now.

    Raises:
        LedgerError: The guard runs, or rows that were used have changed.
    """
    if policy.sums is not None and policy.sums.unit == "device":
        raise InvalidInputError("a device as the unit has one budget for all its rows")
    rows = read_rows(policy.data)
    ledger = LedgerFile(policy.ledger, policy.budget, lineage=policy.data.lineage)
    try:
        check_earlier_rows(ledger, rows, str(policy.data.file))
        return renewed(ledger, rows, len(rows))
    finally:
        ledger.close()


def check_earlier_rows(ledger: LedgerFile, rows: DeviceRows, file: str) -> None:
    """Refuse a file whose rows before the newest period are not the recorded ones.

    Raises:
        InvalidInputError: A row may have moved to another period.
    """
    last = ledger.periods[-1]
    if last.first_row == 0:
        return
    enough = len(rows) >= last.first_row
    if not enough or rows.fingerprint(last.first_row) != last.before:
        raise InvalidInputError(
            f"the first {last.first_row} rows of {file!r} are not those before period "
            f"{last.number} any more, so that a row might count in two periods: "
            "restore them; rows are only added at the end"
        )
