"""Logs of a coordinator and of a device: lines for people, or JSON for machines.

    FEDBUDGET_LOG=json    one JSON object per line: time, level, event, and the facts of
                          the event, such as run, round, charge and reason

Facts are given to a logger as ``extra={"facts": {...}}``. Nothing private is logged but
for the owner: a device's log has its charges, and stays on the device.
"""

import datetime
import json
import logging
import os
import sys
from typing import Any

VARIABLE = "FEDBUDGET_LOG"


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "module": record.name.removeprefix("fedbudget."),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line | getattr(record, "facts", {}), default=str)


def start_logging() -> None:
    """Log to stderr, in the form that the environment asks for."""
    handler = logging.StreamHandler(sys.stderr)
    if os.environ.get(VARIABLE) == "json":
        handler.setFormatter(JsonLines())
    else:
        text = "%(asctime)s %(levelname)s: %(message)s"
        handler.setFormatter(logging.Formatter(text))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
