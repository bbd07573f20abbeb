"""Three synthetic tables of small devices, each with its public schema.

alarms()   40 sensors, an alarm in about 3 % of the rows
energy()   60 meters with time stamps, kWh of the next hour
watches()  wearables with six activities
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.data import Categorical, Numeric, Schema

Table = dict[str, NDArray[Any]]

ALARMS = Schema(
    features={
        "heat": Numeric(-10, 60, missing=20, unit="degC"),
        "site": Categorical(("roof", "cellar", "yard"), other="ignore"),
        "volts": Numeric(0, 5, unit="V"),
        "door": Categorical(("open", "shut"), missing="shut"),
        "hum": Numeric(0, 1),
    },
    label="alarm",
    target=Categorical(("no", "yes")),
)

ENERGY = Schema(
    features={
        "outside": Numeric(-20, 40, unit="degC"),
        "people": Numeric(0, 6),
        "before": Numeric(0, 4, unit="kWh"),
        "hour_sin": Numeric(-1, 1),
        "hour_cos": Numeric(-1, 1),
    },
    label="kwh",
    target=Numeric(0, 5, unit="kWh"),
)

ACTIVITIES = ("sit", "stand", "walk", "jog", "stairs", "type")
WATCHES = Schema(
    features={f"x{j}": Numeric(-3, 3) for j in range(8)},
    label="activity",
    target=Categorical(ACTIVITIES),
)


def alarms(rows: int = 8000, devices: int = 40, seed: int = 0) -> Table:
    """Return sensors whose alarm is rare, and can be foretold well but not surely."""
    rng = np.random.default_rng(seed)
    heat = np.clip(rng.normal(20, 8, rows), -10, 60)
    volts = np.clip(rng.normal(3, 0.6, rows), 0, 5)
    hum = rng.beta(2, 5, rows)
    site = rng.choice(["roof", "cellar", "yard"], rows)
    door = rng.choice(["open", "shut"], rows)
    score = 0.13 * (heat - 20) + 1.6 * (volts - 3) + (site == "roof") - 4.9
    score += 0.6 * (door == "open")
    alarm = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
    sensor = np.array([f"s{m:02d}" for m in rng.permutation(np.arange(rows) % devices)])
    columns = {"heat": heat, "site": site, "volts": volts, "door": door, "hum": hum}
    return {"sensor": sensor, **columns, "alarm": alarm}


def energy(rows: int = 6000, devices: int = 60, seed: int = 0) -> Table:
    """Return meters with the hour of a time stamp, and their use in kWh."""
    rng = np.random.default_rng(seed)
    hour = np.arange(rows) // devices % 24
    outside = 8 + 7 * np.sin(2 * np.pi * (hour - 9) / 24) + rng.normal(0, 3, rows)
    people = rng.integers(1, 6, rows).astype(float)
    angle = 2 * np.pi * hour / 24
    base = 0.8 + 0.18 * people - 0.03 * outside - 0.25 * np.cos(angle)
    before = np.clip(base + rng.normal(0, 0.25, rows), 0, 4)
    kwh = np.clip(0.7 * base + 0.3 * before + rng.normal(0, 0.15, rows), 0, 5)
    days = np.arange(rows) // devices // 24
    time = np.array(
        [
            f"2025-01-{1 + d % 28:02d} {h:02d}:00:00"
            for d, h in zip(days, hour, strict=True)
        ]
    )
    return {
        "meter": np.array([f"m{m:02d}" for m in np.arange(rows) % devices]),
        "time": time,
        "outside": outside,
        "people": people,
        "before": before,
        "hour_sin": np.sin(angle),
        "hour_cos": np.cos(angle),
        "kwh": kwh,
    }


def watches(rows: int = 3000, devices: int = 50, seed: int = 0) -> Table:
    """Return wearables with six activities, around six centres."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 0.9, (6, 8))
    activity = rng.integers(0, 6, rows)
    x = np.clip(centres[activity] + rng.normal(0, 0.7, (rows, 8)), -3, 3)
    columns = {f"x{j}": x[:, j] for j in range(8)}
    person = np.array([f"p{m}" for m in np.arange(rows) % devices])
    return {"person": person, **columns, "activity": np.array(ACTIVITIES)[activity]}


def write(path: Path, table: Mapping[str, Any]) -> Path:
    """Write a table as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return path
