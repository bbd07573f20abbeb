"""Tables and options that tests of the commands share."""

import json
import random
from pathlib import Path

SCHEMA = {
    "label": {"name": "alarm", "values": ["no", "yes"]},
    "features": {
        "volts": {"low": 0, "high": 5},
        "site": {"values": ["cellar", "roof"]},
    },
}
BUDGET = ("--epsilon", "4", "--cost", "1000")


def write_sensors(folder: Path, *, rows: int = 300, devices: int = 5) -> Path:
    """Write sensors.csv and schema.json; the alarm rings where volts are high."""
    draw = random.Random(0)
    lines = ["sensor_id,volts,site,alarm"]
    for row in range(rows):
        volts, site = 5 * draw.random(), draw.choice(["cellar", "roof"])
        alarm = "yes" if volts + draw.random() > 3 else "no"
        lines.append(f"s{row % devices},{volts:.3f},{site},{alarm}")
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    path = folder / "sensors.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def sensors(folder: Path, **options: int) -> tuple[str, ...]:
    """Write the table and return the arguments that name it."""
    path = write_sensors(folder, **options)
    columns = ("--label", "alarm", "--device", "sensor_id")
    return (str(path), *columns, "--schema", str(folder / "schema.json"))
