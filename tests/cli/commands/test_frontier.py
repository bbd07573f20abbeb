"""`fedbudget frontier`."""

import json

import pytest

from tests.cli.running import assert_one_line, run

FLEET = ("frontier", "--samples", "1628x4", "--dim", "20")
GRID = ("--epsilons", "1,4", "--costs", "50,500,1000")


def test_json_is_the_frontier_of_the_library(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, *FLEET, *GRID, "--json")
    assert (result.code, result.err) == (0, "")
    printed = json.loads(result.out)
    assert printed["epsilons"] == [1, 4]
    assert printed["costs"] == [50, 500, 1000]
    assert [row[0] for row in printed["predicted_loss"]] == [None, None]
    assert printed["predicted_loss"][1][2] < printed["predicted_loss"][0][1]
    assert printed["constants"]["lipschitz"]["source"] == "analytic"
    assert printed["data"].startswith("no data: 4 devices")


def test_the_table_shows_shape_schedule_and_prices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, *FLEET, *GRID)
    assert (result.code, result.err) == (0, "")
    for words in (
        "cost 1000",
        "█",
        "▁",
        "saved per unit of epsilon",
        "saved per unit of cost",
    ):
        assert words in result.out
    assert "does not pay for one round" in result.out


def test_wide_grids_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    costs = ",".join(str(cost) for cost in range(200, 1200, 100))
    result = run(capsys, *FLEET, "--epsilons", "4", "--costs", costs)
    assert "cost 1100" in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines())


def test_synthetic_data_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "frontier", "vehicle", *GRID)
    assert "SYNTHETIC" in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--costs", "5,6"), 1, ("none of the costs", "6", "--costs")),
        (("--costs", "5,x"), 2, ("--costs '5,x'", "1,2,4,10")),
        (("--epsilons", ""), 2, ("--epsilons ''",)),
        (("--epsilons", "0,1"), 2, ("epsilons", "above 0", "got 0")),
        (("--epsilons", "nan"), 2, ("epsilons", "nan")),
        (("--costs", "inf"), 2, ("costs", "inf")),
        (("--delta", "1"), 2, ("delta", "below 1")),
        (("--epsilon", "4"), 2, ("--epsilon", "fedbudget frontier --help")),
    ],
)
def test_bad_grids(
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    says: tuple[str, ...],
) -> None:
    assert_one_line(run(capsys, *FLEET, *arguments), code=code, says=says)
