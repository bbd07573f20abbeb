"""The evaluation runs, writes its report, and continues where it stopped."""

import hashlib
import json
import os
import re
import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget import paper
from fedbudget.paper import evaluation, lab
from fedbudget.paper.blocks import Heading, to_markdown
from fedbudget.paper.cases import FULL, Maker, Point, Scale, case_named
from fedbudget.paper.evaluation import evaluate
from fedbudget.paper.figures import figure_files
from fedbudget.paper.lab import Entry, Row, Store, read_table
from fedbudget.paper.planners import PLANNERS
from fedbudget.paper.reproduce import read_report
from fedbudget.paper.results import Runs
from fedbudget.reporting import baselines
from tests.cli.running import run
from tests.data.examples import write_mat

ROOT = Path(__file__).parents[2]


def test_the_package_says_which_modules_it_has() -> None:
    (folder,) = paper.__path__
    names = {path.stem for path in Path(folder).glob("*.py")} - {"__init__"}
    listed = re.findall(r"^([a-z]+) +\S", paper.__doc__ or "", flags=re.MULTILINE)
    assert sorted(listed) == sorted(names)


def runs_of(folder: Path) -> Runs:
    return Runs(read_table(folder / "numbers" / "runs.parquet"))


def test_everything_is_written(finished: Path) -> None:
    files = {path.name for path in (finished / "figures").iterdir()}
    names = ("figure1", "figure2-paper", "figure2-fedbudget", "figure3", "figure4")
    for name in (*names, "figure5"):
        assert {f"{name}.{kind}" for kind in ("svg", "pdf", "png")} <= files
    for name in ("runs", "searches", "plans", "baselines"):
        assert (finished / "numbers" / f"{name}.parquet").stat().st_size > 0
        assert (finished / "numbers" / f"{name}.csv").stat().st_size > 0
    page = (finished / "index.html").read_text()
    assert page.count("<figure") == 6
    assert "://" not in page.replace("http://www.w3.org/", "")
    assert not [p for p in finished.rglob("*") if p.name.endswith(".partial")]


def test_the_printed_noise_stands_in_red(finished: Path) -> None:
    page = (finished / "index.html").read_text()
    assert '<span class="bad">70.8</span>' in page
    assert '<span class="bad">93.2</span>' in page


def test_rows_say_what_a_run_of_their_plan_measures(
    finished: Path, tiny: Scale
) -> None:
    rows = runs_of(finished).rows("Adult-2", "joint", 10, 1000)
    case = case_named("Adult-2")
    for row in rows:
        data = case.load(repeat=row["repeat"])
        budget = fb.Budget(epsilon=10, delta=1e-4, cost=1000)
        prices = fb.Prices(communication=100, computation=1)
        plan = fb.plan(data.problem(loss="logistic"), budget, prices)
        assert (plan.tau, plan.rounds) == (row["tau"], row["rounds"])
        run = fb.train(
            plan, fb.SimulatedDevices(data, seed=lab.SCORING + row["repeat"])
        )
        assert run.measured["test_accuracy"] == pytest.approx(
            row["test_accuracy"], abs=2e-3
        )
    assert len(rows) == tiny.repeats


def test_the_grid_is_picked_on_one_noise_and_scored_on_another(
    finished: Path, tiny: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: dict[str, set[int]] = {}
    original = lab.Lab.run

    def record(
        self: lab.Lab, part: str, entries: list[Entry], *, repeats: range, noise: int
    ) -> list[Row]:
        seeds.setdefault(part, set()).update(noise + repeat for repeat in repeats)
        return original(self, part, entries, repeats=repeats, noise=noise)

    monkeypatch.setattr(lab.Lab, "run", record)
    evaluate(tiny, Store(finished / "parts", version="0"))
    scored = seeds.pop("planned") | seeds.pop("curves")
    assert set(seeds) == {"paper-grid", "full-grid", "full-grid-finals", "rates"}
    assert scored.isdisjoint(seed for each in seeds.values() for seed in each)
    # The finals are run on other splits and noise than the screening.
    assert not seeds["full-grid"] & seeds["full-grid-finals"]
    assert lab.SCORING + FULL.repeats <= lab.PICKING


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"tau": 2}, False),
        ({"drift_correction": True}, False),
        ({"momentum": 0.5}, False),
        ({"noise_std": np.array([2.0, 2.0])}, False),
        ({"reasons": ("another",)}, True),
    ],
)
def test_plans_are_told_apart_by_what_they_run(
    change: dict[str, object], same: bool
) -> None:
    problem = fb.Problem(num_samples=[100, 900], dim=5, loss="logistic")
    point = Point(epsilon=4, tau=5, rounds=3, learning_rate=2.0)
    plan = Maker(problem, "gdp").plan(point)
    unique, positions = lab.distinct([plan, replace(plan, **change)])  # type: ignore[arg-type]
    assert (len(unique), positions) == ((1, [0, 0]) if same else (2, [0, 1]))


def test_a_finished_part_is_not_run_again(
    finished: Path, tiny: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(lab, "sweep", refuse)
    again = evaluate(tiny, Store(finished / "parts", version="0"))
    assert again.runs == read_table(finished / "numbers" / "runs.parquet")
    assert again.cached_seconds > 0
    with pytest.raises(AssertionError, match="run again"):
        evaluate(tiny, Store(finished / "parts", version="1"))


def test_baselines_say_what_they_spend_and_measure(finished: Path) -> None:
    rows = read_table(finished / "numbers" / "baselines.parquet")
    spent: dict[str, set[float]] = {}
    for row in rows:
        spent.setdefault(row["baseline"], set()).add(row["epsilon"])
    assert spent == {
        "constant": {0},
        "local only": {0},
        "one shot": {np.inf},
        "centralised": {np.inf},
        "one shot, private": {1, 10},
        "centralised, private": {1, 10},
    }
    case = case_named("Adult-2")
    (row,) = [row for row in rows if row["baseline"] == "constant"]
    direct = baselines.constant(case.load(repeat=row["repeat"]), loss=case.loss)
    assert row["test_accuracy"] == direct.measured["test_accuracy"]


def test_a_damaged_part_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path, version="0")
    made = store.cached("a", ["key"], lambda: [{"x": 1}])
    (part,) = tmp_path.glob("a-*.parquet")
    part.write_bytes(b"half")
    again = store.cached("a", ["key"], lambda: [{"x": 2}])
    # Neither was on disk: its time counts as that of this run.
    assert (made, again) == (([{"x": 1}], False), ([{"x": 2}], False))
    assert store.cached("a", ["key"], lambda: [{"x": 3}]) == ([{"x": 2}], True)


def test_baselines_of_the_standin_are_not_those_of_a_real_file(
    tmp_path: Path, tiny: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = write_mat(tmp_path / "vehicle.mat")
    raw = real.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(raw) + raw).hexdigest()
    monkeypatch.setattr("fedbudget.data.vehicle.GIT_BLOB", digest)
    monkeypatch.setattr(  # all of them would take long on the stand-in
        evaluation,
        "baselines_of",
        lambda lab, data, scale, repeat: iter([{"devices": data.num_devices}]),
    )
    store = Store(tmp_path, version="0")

    def devices(vehicle: str | None) -> tuple[int, bool]:
        case = case_named("Vehicle-1")
        case_lab = lab.Lab(case=case, store=store, vehicle=vehicle)
        (row,) = evaluation.baseline_rows(case_lab, tiny)
        return row["devices"], case_lab.cached_seconds > 0

    assert devices(None) == (23, False)
    assert devices(str(real)) == (3, False)
    assert devices(None) == (23, True)
    assert devices(str(real)) == (3, True)


def test_the_document_is_made_from_the_folder_alone(
    finished: Path, tmp_path: Path
) -> None:
    write = runpy.run_path(str(ROOT / "docs" / "results.py"))["write_results"]
    text = write(finished, tmp_path).read_text()
    figures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert len(figures) == 6
    for target in figures:
        assert (tmp_path / target).exists()
    links = set(re.findall(r"\]\(([^)]+)\)", text)) - set(figures)
    assert links == {"accuracy.md"}
    assert (ROOT / "docs" / "accuracy.md").exists()
    page = (finished / "index.html").read_text()
    numbers = re.findall(r"-?\d+\.\d\d \[", text)
    assert len(numbers) > 20
    for number in numbers:
        assert number in page


def test_a_folder_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fb.RecordError, match="run fedbudget paper --out"):
        read_report(tmp_path)


def test_sentences_say_what_the_folder_says(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "numbers", tmp_path / "numbers")
    about = json.loads((finished / "about.json").read_text()) | {"cores": 7}
    (tmp_path / "about.json").write_text(json.dumps(about))
    blocks, figures = read_report(tmp_path)
    text = to_markdown("", blocks, str(figures))
    assert "minutes of runs on 7 cores" in text
    (spent,) = {
        row["spent_epsilon"]
        for row in runs_of(finished).rows("Adult-2", "printed-sigma", 1, 1000)
    }
    assert f"spends eps = {spent:.1f} where the paper states 1." in text
    # As the equation says: K = tau C / (c1 + c2 tau), in whole rounds.
    assert "10 times as far" in text
    assert "90 steps against 9" in text


def test_the_committed_page_has_the_words_of_this_program(finished: Path) -> None:
    """Its numbers come from a run of half an hour; its words must be up to date."""
    committed = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    blocks, figures = read_report(finished)
    claims = next(i for i, b in enumerate(blocks) if b == Heading("The claims"))
    fixed = [block for block in blocks if isinstance(block, Heading)]
    text = to_markdown("", [*fixed, blocks[claims + 1]], str(figures))
    for line in text.splitlines()[1:]:
        assert line in committed.splitlines()


def test_a_folder_of_an_older_program_is_refused(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished / "numbers", tmp_path / "numbers")
    about = json.loads((finished / "about.json").read_text())
    del about["cores"]
    (tmp_path / "about.json").write_text(json.dumps(about))
    with pytest.raises(fb.RecordError, match="run fedbudget paper --out"):
        read_report(tmp_path)


def test_about_says_what_was_run(finished: Path) -> None:
    about = json.loads((finished / "about.json").read_text())
    assert [case["name"] for case in about["scale"]["cases"]] == ["Adult-2"]
    assert about["seconds"] > 0
    assert np.isfinite(about["seconds"])
    assert about["cores"] == os.cpu_count()


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_says_what_it_found(
    finished: Path,
    tiny: Scale,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fedbudget.paper.reproduce.QUICK", tiny)
    monkeypatch.setattr("fedbudget.__version__", "0")
    monkeypatch.setattr(  # they are drawn already
        "fedbudget.paper.reproduce.draw_all",
        lambda findings, folder, vehicle: figure_files(findings, vehicle=vehicle),
    )
    options = ("--json",) if as_json else ()
    result = run(capsys, "paper", "--quick", "--out", str(finished), *options)
    assert result.code == 0
    assert "Adult-2: paper-grid (from disk)" in result.err
    if as_json:
        about = json.loads(result.out)
        assert [claim["number"] for claim in about["claims"]][:2] == ["1a", "1b"]
        assert {each["planner"] for each in about["regret"]} == set(PLANNERS)
    else:
        assert "reads rows" in result.out
        assert str(finished / "index.html") in result.out.replace("\n", "")
