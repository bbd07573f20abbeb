"""Small example messages for tests."""

from typing import Any

import numpy as np

from fedbudget.fleet.wire.messages import (
    WIRE,
    Declaration,
    Notice,
    Reply,
    RoundOrder,
    RunOffer,
)

RUN = bytes(range(16))


def theta(dim: int = 4, precision: str = "<f8") -> bytes:
    return np.linspace(-1, 1, dim).astype(precision).tobytes()


def declaration(**changes: Any) -> Declaration:
    fields: dict[str, Any] = {
        "device": "sensor-1",
        "num_samples": 100,
        "dim": 4,
        "loss": "logistic",
        "num_classes": 1,
        "epsilon": 4.0,
        "delta": 1e-4,
        "cost": 1000.0,
        "communication_price": 100.0,
        "computation_price": 1.0,
        "accountant": "gdp",
        "least_noise_multiplier": 1.0,
        "info": "roof",
        "wire": WIRE,
        "software": "0.1.0",
        "ledger": "0" * 32,
    }
    return Declaration(**(fields | changes))


def offer(**changes: Any) -> RunOffer:
    fields: dict[str, Any] = {
        "run": RUN,
        "name": "alarms",
        "device": "sensor-1",
        "tau": 5,
        "rounds": 8,
        "learning_rate": 1.0,
        "sampling": "full",
        "num_samples": 100,
        "batch_size": 100,
        "noise_std": 0.2,
        "loss": "logistic",
        "num_classes": 1,
        "l2": 0.0,
        "dim": 4,
        "precision": "float64",
    }
    return RunOffer(**(fields | changes))


def order(**changes: Any) -> RoundOrder:
    fields: dict[str, Any] = {"run": RUN, "round": 1, "theta": theta()}
    return RoundOrder(**(fields | changes))


def reply(**changes: Any) -> Reply:
    fields: dict[str, Any] = {
        "device": "sensor-1",
        "run": RUN,
        "round": 1,
        "code": "answered",
        "theta": theta(),
    }
    return Reply(**(fields | changes))


def notice(**changes: Any) -> Notice:
    fields: dict[str, Any] = {"device": "sensor-1", "reason": "other columns"}
    return Notice(**(fields | changes))
