"""The owner's policy: its values, and errors that name the file and the key."""

from pathlib import Path
from typing import Any

import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.policy import read_policy
from tests.fleet.devices import SIGNER, write_device


def test_a_policy_is_read(tmp_path: Path) -> None:
    policy = read_policy(write_device(tmp_path))
    assert policy.device == "sensor-1"
    assert policy.data.file == tmp_path / "rows.npz"
    assert (policy.data.loss, policy.data.lineage) == ("logistic", "roof")
    assert (policy.budget.epsilon, policy.budget.accountant) == (4.0, "gdp")
    assert policy.prices.communication == 100.0
    # By default, the whole budget is public.
    assert (policy.public.epsilon, policy.public.cost) == (4.0, 1000.0)
    assert policy.orders.trusted == (SIGNER.public_key,)
    assert policy.ledger == tmp_path / "ledger.sqlite"
    assert policy.broker is not None and policy.socket is None
    assert (policy.broker.port, policy.broker.identity) == (8883, None)


def test_runs_are_joined_by_pattern(tmp_path: Path) -> None:
    orders = read_policy(write_device(tmp_path)).orders
    assert orders.joins("alarms") and orders.joins("alarms 2026")
    assert not orders.joins("adverts") and not orders.joins("Alarms")


MISTAKES = {
    "no epsilon": ("epsilon = 4.0", "", "budget.epsilon is missing"),
    "no cost": ("cost = 1000.0", "", "budget.cost is missing"),
    "a negative epsilon": ("epsilon = 4.0", "epsilon = -1", "budget.epsilon must be"),
    "an infinite epsilon": ("epsilon = 4.0", "epsilon = inf", "budget.epsilon must be"),
    "an endless cost": ("cost = 1000.0", f"cost = {10**400}", "budget.cost must be"),
    "too many digits": ("epsilon = 4.0", f"epsilon = {'9' * 5000}", "is not TOML"),
    "epsilon as text": ("epsilon = 4.0", 'epsilon = "4"', "budget.epsilon must be a n"),
    "a truth value": ("epsilon = 4.0", "epsilon = true", "budget.epsilon must be a n"),
    "delta of one": ("delta = 1e-4", "delta = 1", "budget.delta must be"),
    "a delta above the limit": (
        "delta = 1e-4",
        "delta = 0.9",
        "delta must be at least",
    ),
    "an absurd epsilon": ("epsilon = 4.0", "epsilon = 1e16", "at most 1e+12"),
    "an absurd price": ("computation = 1", "computation = 1e16", "at most 1e+12"),
    "an absurd noise": ("= 5.0", "= 1e16", "least_noise_multiplier must be above 0"),
    "another accountant": (
        "delta = 1e-4",
        'delta = 1e-4\naccountant = "pld"',
        "budget.accountant 'pld' is not known",
    ),
    "an unknown key": ("delta", "delta = 1e-4\nsigma", "budget.sigma is not known"),
    "an unknown table": ("[broker]", "[extra]\n[broker]", "extra is not known"),
    "no table": ("[prices]", "[price]", "prices is missing"),
    "prices of zero": (
        "communication = 100\ncomputation = 1",
        "communication = 0\ncomputation = 0",
        "prices.communication and computation are both 0",
    ),
    "no device": ('device = "sensor-1"', "", "device is missing"),
    "a device with a slash": ("sensor-1", "a/b", "device must be 1 to 64 letters"),
    "a bad key": ("ed25519:", "rsa:", "orders.trusted is invalid: public key"),
    "no keys": (
        f'["{SIGNER.public_key}"]',
        "[]",
        "orders.trusted must be a li",
    ),
    "half a step": (
        "most_tau = 50",
        "most_tau = 0.5",
        "orders.most_tau must be a whole",
    ),
    "no steps": ("most_tau = 50", "most_tau = 0", "orders.most_tau must be a whole"),
    "no noise": (
        "least_noise_multiplier = 5.0",
        "least_noise_multiplier = 0",
        "orders.least_noise_multiplier must be above 0",
    ),
    "another loss": ("logistic", "deep", "data.loss 'deep' is not known"),
    "a table without schema": ("rows.npz", "rows.csv", "data.schema is missing"),
    "a remote broker without TLS": ("localhost", "example.org", "broker.ca is missing"),
    "one remote broker of two": ("localhost", "::1,b:1", "broker.ca is missing"),
    "a broker's URL": ("localhost", "mqtts://a", "broker.host is invalid: broker 'mq"),
    "broker and socket": (
        "[broker]",
        '[socket]\nfile = "guard.sock"\n[broker]',
        "socket cannot be combined with broker",
    ),
    "half of TLS": ("port", 'ca = "ca.pem"\nport', "broker.certificate is missing"),
    "an invalid port": ("port = 8883", "port = 99999", "broker.port must be"),
    "public above the budget": (
        "[prices]",
        "[public]\nepsilon = 5\n[prices]",
        "public.epsilon must be",
    ),
    "no row": (
        "[broker]",
        "[public]\nnum_samples = 0\n\n[broker]",
        "public.num_samples",
    ),
    "no TOML": ("[prices]", "[prices", "is not TOML"),
}


@pytest.mark.parametrize("old, new, message", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_with_its_file(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = write_device(tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidInputError) as caught:
        read_policy(path)
    assert message in str(caught.value) and "policy.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_policy_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no\.toml.*cannot be read"):
        read_policy(tmp_path / "no.toml")


def sums_of(folder: Path, text: str) -> Any:
    """Return the conditions for sums of a policy with this table."""
    path = write_device(folder)
    path.write_text(f"{path.read_text()}\n[sums]\n{text}\n")
    return read_policy(path).sums


FILES = 'peers = "ca.pem"\ncertificate = "c.pem"\nkey = "c.key"'


def test_conditions_for_sums(tmp_path: Path) -> None:
    assert read_policy(write_device(tmp_path)).sums is None
    sums = sums_of(tmp_path, f"least_answers = 8\ncolluders = 2\n{FILES}")
    assert (sums.trust, sums.unit) == ("any", "sample")
    assert (sums.least_answers, sums.colluders) == (8, 2)
    assert sums.identity.ca == tmp_path / "ca.pem"


@pytest.mark.parametrize(
    "text, message",
    [
        (FILES, "sums.least_answers is missing"),
        (f"least_answers = 1\n{FILES}", "sums.least_answers must be a whole number"),
        (f"least_answers = 4\ncolluders = 4\n{FILES}", "sums.colluders must be below"),
        (f'least_answers = 4\nunit = "house"\n{FILES}', "sums.unit"),
        (f'least_answers = 4\ntrust = "no"\n{FILES}', "sums.trust"),
        ("least_answers = 4", "sums.peers is missing"),
        (f"least_answers = 4\nleast = 3\n{FILES}", "sums.least is not known"),
    ],
)
def test_bad_conditions_for_sums_name_the_key(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        sums_of(tmp_path, text)
