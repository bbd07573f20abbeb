"""Trust and unit on the command line and in a config: plans, runs, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.examples import sensors
from tests.cli.running import assert_one_line, run

Capture = pytest.CaptureFixture[str]
SHAPE = ("--samples", "50x8", "--dim", "5")
BUDGET = ("--epsilon", "2", "--cost", "600")
SUM = ("--trust", "sum", "--least-answers", "6", "--colluders", "1")
ALONE = "alone, without the others' noise, a device's share gives epsilon"


def plain(capsys: Capture, *arguments: str) -> dict[str, Any]:
    result = run(capsys, *arguments, "--json")
    assert result.code == 0, result.err
    return dict(json.loads(result.out))


def test_a_plan_for_sums_says_what_it_promises(capsys: Capture) -> None:
    planned = plain(capsys, "plan", *SHAPE, *BUDGET, *SUM)
    assert (planned["trust"], planned["unit"]) == ("sum", "sample")
    assert (planned["least_answers"], planned["colluders"]) == (6, 1)
    shown = run(capsys, "plan", *SHAPE, *BUDGET, *SUM).words
    for words in (
        "for one sample (replace one sample of one device)",
        "the server and up to 1 colluding device, who together see only sums of at "
        "least 6 answers",
        ALONE,
        "accountant gdp",
        "each device's share, per coordinate of an upload",
    ):
        assert words in shown


def test_the_unit_is_a_device_for_both_kinds_of_trust(capsys: Capture) -> None:
    for trust in ("uploads", "sum"):
        planned = plain(
            capsys, "plan", *SHAPE, *BUDGET, "--trust", trust, "--unit", "device"
        )
        assert planned["unit"] == "device"
        assert (
            "for one device (replace all samples of one device)" in planned["privacy"]
        )


def test_a_secure_round_has_its_own_price(capsys: Capture) -> None:
    cheap = plain(capsys, "plan", *SHAPE, *BUDGET, *SUM)
    dear = plain(capsys, "plan", *SHAPE, *BUDGET, *SUM, "--secure-round-price", "290")
    assert dear["rounds"] <= 2 < cheap["rounds"]
    same = plain(capsys, "plan", *SHAPE, *BUDGET, "--secure-round-price", "290")
    assert same["rounds"] == plain(capsys, "plan", *SHAPE, *BUDGET)["rounds"]


def test_a_frontier_of_both_says_what_trust_buys(capsys: Capture) -> None:
    grid = ("--epsilons", "1,4", "--costs", "50,600", "--trust", "both")
    result = run(capsys, "frontier", *SHAPE, *grid)
    assert result.code == 0
    for words in (
        "Predicted excess loss with trust uploads",
        "Predicted excess loss with trust sum",
        "Epsilon at which a sum equals uploads in predicted loss",
        "sums of at least 8 answers",
        "an epsilon of up to",
        "does not pay for one round",
    ):
        assert words in result.words
    printed = plain(capsys, "frontier", *SHAPE, *grid)
    assert set(printed) == {"uploads", "sum", "equal_epsilon", "data", "constants"}
    (first, second) = printed["equal_epsilon"]
    assert first[0] is None and 0 < first[1] < 1 and first[1] < second[1] < 4


def test_a_frontier_of_sums_is_lower(capsys: Capture) -> None:
    grid = ("--epsilons", "1", "--costs", "600")
    own = plain(capsys, "frontier", *SHAPE, *grid)
    shared = plain(capsys, "frontier", *SHAPE, *grid, *SUM)
    assert shared["predicted_loss"][0][0] < own["predicted_loss"][0][0]


def test_sums_are_simulated_and_swept(capsys: Capture, tmp_path: Path) -> None:
    table = sensors(tmp_path, devices=8)
    arguments = (*table, *BUDGET, "--trust", "sum", "--least-answers", "5")
    result = run(capsys, "train", *arguments, "--participation", "0.8", "--personal")
    assert result.code == 0, result.err
    assert "simulation: devices would spend (2," in result.words
    assert ALONE in result.words and "answers from" in result.words
    swept = run(
        capsys,
        *("sweep", *table, "--epsilons", "2", "--costs", "600", "--seeds", "2"),
        *("--trust", "sum", "--unit", "device"),
    )
    assert swept.code == 0, swept.err


def test_a_release_of_sums_is_recorded_reported_and_audited(
    capsys: Capture, tmp_path: Path
) -> None:
    folder, tracked = tmp_path / "run", tmp_path / "logs"
    arguments = (*sensors(tmp_path, devices=8), *BUDGET, *SUM, "--release")
    track = ("--track", f"tensorboard:{tracked}")
    result = run(capsys, "train", *arguments, "--out", str(folder), *track)
    assert result.code == 0, result.err
    assert "release: (2, 0.0001)-differential privacy for one sample" in result.words
    assert list(tracked.rglob("events*"))
    report = run(capsys, "report", str(folder), "--out", str(tmp_path / "r.html"))
    assert report.code == 0, report.err
    page = (tmp_path / "r.html").read_text()
    assert "sums of at least 6 answers" in page and "colluding device" in page
    audit = run(
        capsys, "audit", str(folder), "--seconds", "2", "--confidence", "0.9999999"
    )
    assert audit.code == 0 and "upload by upload" in audit.words


CONFIG = """
[data]
table = "sensors.csv"
device = "sensor_id"
public_bounds = true

[label]
name = "alarm"
values = ["no", "yes"]

[features]
volts = { low = 0, high = 5 }
site = { values = ["cellar", "roof"] }

[budget]
epsilon = 2.0
cost = 600.0
trust = "sum"
unit = "sample"
least_answers = 6
colluders = 1

[prices]
communication = 100.0
computation = 1.0
secure_round = 120.0
"""


def config(folder: Path, *changes: tuple[str, str], more: str = "") -> str:
    sensors(folder, devices=8)
    text = CONFIG
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "fedbudget.toml").write_text(text + more)
    return str(folder / "fedbudget.toml")


def test_a_config_sets_trust_and_its_price(capsys: Capture, tmp_path: Path) -> None:
    path = config(tmp_path)
    planned = plain(capsys, "plan", path)
    assert (planned["trust"], planned["least_answers"]) == ("sum", 6)
    spent = planned["rounds"] * (120 + planned["tau"])
    assert planned["cost"] == pytest.approx([spent] * 8)
    # An option overrides the file.
    other = plain(capsys, "plan", path, "--least-answers", "8", "--colluders", "0")
    assert other["least_answers"] == 8


def test_single_devices_may_have_their_own_price(
    capsys: Capture, tmp_path: Path
) -> None:
    own = '\n[devices."s1"]\nsecure_round = 200.0\n'
    path = config(tmp_path, ("secure_round = 120.0\n", ""), more=own)
    planned = plain(capsys, "plan", path)
    rounds, tau = planned["device_rounds"], planned["tau"]
    # The dear device stops early, and pays its own price until then.
    assert 0 < rounds[1] < rounds[0]
    for device, price in ((0, 100), (1, 200)):
        spent = rounds[device] * (price + tau)
        assert planned["cost"][device] == pytest.approx(spent)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('trust = "sum"', 'trust = "all"'), ("budget.trust", "'all'", "uploads")),
        (('unit = "sample"', 'unit = "row"'), ("budget.unit", "'row'", "device")),
        (('trust = "sum"', "trust = 1"), ("budget.trust", "must be a text")),
        (
            ("least_answers = 6", "least_answers = 9"),
            ("budget.least_answers", "9", "above the 8 devices"),
        ),
        (
            ("colluders = 1", "colluders = 6"),
            ("budget.colluders", "must be below least_answers 6"),
        ),
        (
            ("least_answers = 6", "least_answers = 2.5"),
            ("budget.least_answers", "must be a whole number"),
        ),
        (
            ("secure_round = 120.0", "secure_round = -1.0"),
            ("prices.secure_round", "at least 0"),
        ),
    ],
)
def test_bad_values_in_a_config_name_their_line(
    capsys: Capture, tmp_path: Path, change: tuple[str, str], says: tuple[str, ...]
) -> None:
    result = run(capsys, "plan", config(tmp_path, change))
    assert_one_line(result, code=2, says=("fedbudget.toml, line", *says))


def test_trust_is_not_set_for_a_single_device(capsys: Capture, tmp_path: Path) -> None:
    path = config(tmp_path, more='\n[devices."s1"]\ntrust = "uploads"\n')
    says = ("'trust', which is not known",)
    assert_one_line(run(capsys, "plan", path), code=2, says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--trust", "everybody"), ("trust", "'everybody'", "uploads", "sum")),
        (("--trust", "both"), ("trust", "'both'")),
        (("--unit", "person"), ("unit", "'person'", "device")),
        (("--least-answers", "3"), ("least_answers 3 is for trust 'sum'",)),
        (("--colluders", "1"), ("colluders 1 is for trust 'sum'",)),
        (
            ("--trust", "sum", "--least-answers", "9"),
            ("least_answers 9 is above the 8 devices", "lower it"),
        ),
        (
            ("--trust", "sum", "--colluders", "8"),
            ("colluders 8 must be below least_answers 8",),
        ),
        (("--trust", "sum", "--least-answers", "0"), ("least_answers", "0")),
        (("--trust", "sum", "--least-answers", "many"), ("'many'", "whole number")),
        (("--trust", "sum", "--colluders", "-1"), ("colluders", "-1")),
        (
            ("--trust", "sum", "--loss", "hinge"),
            ("not smooth", "use loss 'smooth_hinge'"),
        ),
        (
            ("--trust", "sum", "--learning-rate", "9"),
            ("learning_rate 9 is above 8", "lower it"),
        ),
        (("--trust", "sum", "--planner", "paper"), ("use planner 'joint'",)),
        (("--secure-round-price", "-3"), ("secure_round", "-3")),
        (("--trust", "sum", "--secure-round-price", "601"), ("cost", "round")),
    ],
)
def test_bad_input_is_one_line(
    capsys: Capture, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    result = run(capsys, "plan", *SHAPE, *BUDGET, *arguments)
    assert_one_line(result, code=result.code, says=says)
    assert result.code in (1, 2)


def test_a_measurement_of_samples_does_not_protect_devices(
    capsys: Capture, tmp_path: Path
) -> None:
    table = sensors(tmp_path, devices=8)
    options = ("--trust", "sum", "--unit", "device", "--dissimilarity", "measure")
    result = run(capsys, "train", *table, *BUDGET, *options)
    says = ("protects one sample", "state the dissimilarity")
    assert_one_line(result, code=2, says=says)
