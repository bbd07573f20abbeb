"""Reports: made from run folders only, self-contained, clear about what pays off."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.data.dataset import all_rows
from fedbudget.errors import RecordError
from fedbudget.planning.advice import advice_of
from fedbudget.record import RecordedRun, read_run
from fedbudget.reporting.advice import advice
from fedbudget.reporting.baselines import local_only
from fedbudget.reporting.comparison import (
    CENTRAL,
    CONSTANT,
    LOCAL,
    PERSONAL,
    RUN,
    Comparison,
    compare,
    rows_of,
    stored_comparison,
)
from fedbudget.reporting.curves import _apart, epsilon_curve
from fedbudget.reporting.run_report import _plan, run_page
from tests.cli.examples import BUDGET, sensors
from tests.cli.running import assert_one_line, run
from tests.examples import round_of
from tests.ui.browsing import CHROMIUM, chromium


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a small table, made by the command itself."""
    folder = tmp_path_factory.mktemp("report")
    out = folder / "runs" / "first"
    with pytest.raises(SystemExit) as stop:
        from fedbudget.cli import main

        main(["train", *sensors(folder), *BUDGET, "--out", str(out)])
    assert stop.value.code == 0
    return out


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


class Links(HTMLParser):
    """Collects the links that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "iframe", "img"):
            self.fetched.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith(
                "#"
            ):
                self.fetched.append(str(value))
        if tag not in ("meta", "br", "path", "use", "rect", "stop"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag, tag


def test_the_page_is_whole_and_fetches_nothing(folder: Path) -> None:
    page = fb.report(folder)
    assert page == folder / "report.html"
    text = page.read_text()
    links = Links()
    links.feed(text)
    assert links.fetched == []
    assert links.open == []
    assert not re.search(r"url\((?!#)|@import", text)
    assert text.count("<svg") == 3


def test_it_says_what_was_done_promised_and_reached(folder: Path) -> None:
    text = re.sub(r"<[^>]+>", " ", fb.report(folder).read_text())
    plan = read_run(folder).plan
    for words in (
        f"each of 5 devices takes {plan.tau} local step",
        str(read_run(folder).privacy),
        "replace one sample of one device",
        "do not publish this page",
        "devices better / same / worse",
        "s0",
        "s4",
    ):
        assert words in re.sub(r"\s+", " ", text), words


def test_what_was_planned_stands_beside_the_budget(folder: Path) -> None:
    plan = read_run(folder).plan
    text = re.sub(r"<[^>]+>", " ", fb.report(folder).read_text())
    assert (
        f"cost spent, maximum over devices (planned {plan.cost.max():.4g}, budget 1000)"
        in text
    )
    epsilon = "epsilon that devices would spend, maximum over devices"
    assert f"{epsilon} (planned 4, budget 4)" in text
    about = json.loads((folder / "about.json").read_text())
    about["budget"]["cost"] = [500.0, 700.0, 900.0, 900.0, 900.0]
    (folder / "about.json").write_text(json.dumps(about))
    assert ", budget 500 to 900)" in fb.report(folder).read_text()
    (folder / "about.json").write_text(json.dumps(about | {"budget": None}))
    assert "budget 500" not in fb.report(folder).read_text()


def test_devices_stand_in_the_order_of_their_numbers(folder: Path) -> None:
    about = {"fleet": "sensors", "devices": ["s10", "s2", "a", "s1", "b"]}
    (folder / "about.json").write_text(json.dumps(about | {"versions": {}}))
    text = fb.report(folder).read_text()
    assert re.findall(r"<tr><td>(a|b|s\d+)</td>", text) == ["a", "b", "s1", "s2", "s10"]


def test_advice_counts_devices_better_the_same_and_worse(folder: Path) -> None:
    comparison = compared(run=0.8, local=0.7, constant=0.5, central=0.9)
    comparison.per_device[RUN][:] = 0.7, 0.9
    items = advice(read_run(folder), comparison)
    (good,) = (item.text for item in items if item.kind == "good")
    assert "1 device better, 1 the same, 0 worse" in good
    assert comparison.better_off(RUN, CENTRAL) == (0, 1, 1)
    losses = replace(comparison, metric="test_loss")
    assert losses.better_off(RUN, LOCAL) == (0, 1, 1)


def test_it_is_made_from_the_folder_alone(folder: Path) -> None:
    compare(read_run(folder))
    first = fb.report(folder).read_text()
    about = json.loads((folder / "about.json").read_text())
    assert about["schema"]["label"]["name"] == "alarm"  # itself, not where it was
    (folder / "about.json").write_text(json.dumps(about | {"source": "gone.csv"}))
    again = fb.report(folder).read_text()
    assert again.replace("gone.csv", str(about["source"])) == first


def test_rows_that_are_gone_leave_a_page_that_says_so(folder: Path) -> None:
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps(about | {"source": "gone.csv"}))
    text = fb.report(folder).read_text()
    assert "Not compared: the rows cannot be read again" in text
    assert "gone.csv" in text
    (folder / "about.json").write_text(json.dumps({"privacy": ""}))
    assert "does not say where its rows are" in fb.report(folder).read_text()


def test_a_fleet_keeps_its_rows_and_shows_what_it_spent(folder: Path) -> None:
    names = ["north", "east", "south", "west", "<here>"]
    about = {"fleet": "sensors", "devices": names, "versions": {}}
    (folder / "about.json").write_text(json.dumps(about))
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) | {"not_private": {}} for line in lines]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    text = fb.report(folder).read_text()
    assert "Run run on fleet sensors" in text
    assert "the rows are on the devices of a fleet, and stay there" in text
    assert "<td>north</td>" in text and "<td>&lt;here&gt;</td>" in text
    assert text.count("<svg") == 1  # epsilon over cost; nothing was measured
    assert "do not publish" not in text


def test_other_rows_than_the_runs_are_not_compared(folder: Path) -> None:
    about = json.loads((folder / "about.json").read_text())
    rows = Path(about["source"]).read_text().splitlines()
    short = folder / "short.csv"
    short.write_text("\n".join(rows[:-50]))
    (folder / "about.json").write_text(json.dumps(about | {"source": str(short)}))
    with pytest.raises(RecordError, match="no longer holds the rows of this run"):
        rows_of(read_run(folder))


def test_the_comparison_is_the_runs_own_and_is_stored(folder: Path) -> None:
    recorded = read_run(folder)
    comparison = compare(recorded)
    assert set(comparison.means) == {RUN, PERSONAL, LOCAL, CONSTANT, CENTRAL}
    reached = recorded.rounds[-1].measured["test_accuracy"]
    assert comparison.means[RUN] == pytest.approx(reached)
    data, _ = rows_of(recorded)
    alone = local_only(data).per_device["test_accuracy"]
    assert np.array_equal(comparison.per_device[LOCAL], alone, equal_nan=True)
    stored = stored_comparison(recorded)
    assert stored is not None and stored.means == comparison.means
    (folder / "comparison.json").write_text("{")
    with pytest.raises(RecordError, match="damaged"):
        compare(recorded)


def test_a_run_that_was_stopped_is_reported_as_such(folder: Path) -> None:
    (folder / "model.npz").unlink()
    rows = (folder / "rounds.jsonl").read_text().splitlines()[:2]
    (folder / "rounds.jsonl").write_text("\n".join(rows) + "\n")
    text = fb.report(folder).read_text()
    assert "The run stopped after round 2 of" in text
    (folder / "rounds.jsonl").unlink()
    assert "stopped after round 0" in fb.report(folder).read_text()


def test_rounds_that_were_not_measured_are_left_out_of_the_curves(
    folder: Path,
) -> None:
    file = folder / "rounds.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) > 3
    for row in rows[:2]:
        row["not_private"] = {}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recorded = read_run(folder)
    assert len(recorded.series("test_loss")) == len(rows) - 2
    page = run_page(recorded, None)
    assert f"{rows[-1]['not_private']['test_accuracy']:.4f}" in page
    rows[-1]["not_private"] = {}  # a run that was killed between two measured rounds
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = run_page(read_run(folder), None)
    assert f"{rows[-2]['not_private']['test_accuracy']:.4f}" in page


def test_names_from_a_table_cannot_break_the_page(folder: Path) -> None:
    comparison = compare(read_run(folder))
    evil = "<script>alert(1)</script>"
    names = (evil, *comparison.device_names[1:])
    text = run_page(read_run(folder), replace(comparison, device_names=names))
    assert evil not in text
    assert "&lt;script&gt;" in text


def test_many_devices_are_summed_up() -> None:
    data = fb.load("adult", split="iid", num_devices=300)
    plan = fb.plan(
        data.problem(),
        fb.Budget(epsilon=4, cost=300),
        fb.Prices(communication=100, computation=1),
    )
    recorded = read_run_of(plan)
    text = run_page(recorded, None, not_compared="a test")
    for word in ("minimum", "median", "maximum"):
        assert f"<td>{word}</td>" in text
    assert "Not compared: a test." in text


def test_every_sampling_is_described() -> None:
    problem = fb.Problem(num_samples=[100, 100], dim=5)
    plan = fb.plan(
        problem,
        fb.Budget(epsilon=2, cost=500),
        fb.Prices(communication=10, computation=1),
        batch_size=32,
        noise_schedule=False,
    )
    for sampling, words in (
        ("fixed", "32 rows, drawn at random for this step"),
        ("cyclic", "the next of 3 disjoint batches of 32 rows"),
        ("poisson", "32 rows on average, each drawn independently"),
    ):
        text = "".join(map(str, _plan(replace(plan, sampling=sampling))))
        assert f"A step uses {words}" in text


def test_the_planned_epsilon_of_a_figure_is_rounded_up() -> None:
    plan = fb.plan(
        fb.Problem(num_samples=[50] * 300, dim=3),
        fb.Budget(epsilon=2.0, cost=500),
        fb.Prices(communication=10, computation=1),
    )
    run = read_run_of(replace(plan, epsilon=np.full(300, 2.0004)))
    assert "<!-- planned: 2.001 -->" in epsilon_curve(run)


def read_run_of(plan: fb.Plan) -> RecordedRun:
    spent = {"epsilon": np.linspace(1, 3, 300), "cost": np.linspace(1, 3, 300)}
    rounds = [round_of(number, answered=300, **spent) for number in (1, 2)]
    return RecordedRun(path=Path("x"), plan=plan, about={}, rounds=rounds, theta=None)


def compared(**means: float) -> Comparison:
    names = {"run": RUN, "local": LOCAL, "constant": CONSTANT, "central": CENTRAL}
    names |= {"personal": PERSONAL}
    per_device = {names[k]: np.array([v, v]) for k, v in means.items()}
    return Comparison(
        metric="test_accuracy", device_names=("a", "b"), per_device=per_device
    )


@pytest.mark.parametrize(
    ("comparison", "kinds", "expected"),
    [
        (
            compared(run=0.7, local=0.6, constant=0.7, central=0.9),
            {"bad", "good", "fair"},
            "no better than a constant guess",
        ),
        (
            compared(run=0.7, local=0.8, constant=0.5, central=0.9),
            {"fair"},
            "Federation does not pay",
        ),
        (
            compared(run=0.7, local=0.6, constant=0.5, central=0.9, personal=0.8),
            {"good", "fair"},
            "Let devices adapt",
        ),
        (
            compared(run=0.7, local=0.8, constant=0.5, central=0.9, personal=0.8),
            {"fair"},
            "federation adds nothing",
        ),
        (
            compared(run=0.9, local=0.8, constant=0.5, central=0.9),
            {"good"},
            "little is left to gain",
        ),
    ],
)
def test_advice_follows_from_the_numbers(
    folder: Path, comparison: Comparison, kinds: set[str], expected: str
) -> None:
    items = advice(read_run(folder), comparison)
    assert {item.kind for item in items} == kinds
    assert any(expected in item.text for item in items)
    order = ["bad", "fair", "good"]
    assert [item.kind for item in items] == sorted(
        (item.kind for item in items), key=order.index
    )


@pytest.mark.parametrize("run", [0.79, 0.819, 0.82, 0.823, 0.83])
@pytest.mark.parametrize("personal", [0.8, 0.824, 0.84])
def test_a_report_and_its_run_agree_on_whether_federating_paid(
    folder: Path, run: float, personal: float
) -> None:
    means = {"run": run, "local": 0.82, "constant": 0.5, "personal": personal}
    items = advice(read_run(folder), compared(**means, central=0.9))
    report = " ".join(item.text for item in items)
    means["alone"] = means.pop("local")
    names = {f"{n}_test_accuracy": v for n, v in means.items()}
    names["test_accuracy"] = names.pop("run_test_accuracy")
    line = advice_of(names)
    assert line is not None
    assert ("does not pay" in report) == (line != "")
    assert ("Let devices adapt" in report) >= ("only with personal" in line)
    assert ("did not pay" in line) == (max(run, personal) <= 0.825)


def test_advice_on_weak_promises_and_lost_answers(folder: Path) -> None:
    recorded = read_run(folder)
    plan = recorded.plan
    rounds = [replace(r, answered=3, refused={1: "no"}) for r in recorded.rounds]
    weak = replace(
        recorded,
        plan=replace(plan, epsilon=plan.epsilon * 5, delta=np.full(5, 0.5)),
        rounds=rounds,
    )
    text = " ".join(item.text for item in advice(weak, None))
    assert "weak guarantee" in text
    assert "Delta 0.5 is not below one over the" in text
    count = len(rounds)
    assert f"refused {count} requests" in text
    assert f"{count} of {5 * count} answers were paid for" in text
    warned = replace(recorded, plan=replace(plan, advice="federating may not pay"))
    assert "Federating may not pay." in [item.text for item in advice(warned, None)]
    bare = replace(recorded, plan=plan.without_privacy())
    assert advice(bare, None)[0].text.startswith("There is no privacy guarantee")
    assert "NOT PRIVATE" in run_page(bare, None)


def test_labels_are_moved_apart_and_no_further() -> None:
    positions = _apart(np.array([0.0, 0.0, 0.1, 1.0]), 0.2)
    assert (np.diff(positions) >= 0.2 - 1e-12).all()
    assert positions[3] == 1.0  # it overlaps no other
    assert positions[:3].mean() == pytest.approx(np.mean([0.0, 0.0, 0.1]))
    assert _apart(np.array([0.0, 1.0]), 0.2).tolist() == [0.0, 1.0]
    chain = _apart(np.array([0.0, 0.25, 0.3]), 0.2)  # the pair moves into the first
    assert (np.diff(chain) >= 0.2 - 1e-12).all()


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "page.html"
    result = run(capsys, "report", str(folder), "--out", str(out))
    assert (result.code, result.err) == (0, "")
    assert out.exists() and "open it in a browser" in result.words
    result = run(capsys, "report", str(folder), "--json")
    output = json.loads(result.out)
    assert output["finished"] and output["metric"] == "test_accuracy"
    assert set(output["means"]) >= {RUN, LOCAL}
    result = run(capsys, "report", str(folder), "--json", "--no-compare")
    assert json.loads(result.out)["means"] is None


@pytest.mark.parametrize("name", ["plan.json", "about.json", "model.npz"])
def test_what_is_no_run_folder_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (folder / name).write_text("{")
    result = run(capsys, "report", str(folder))
    says = (str(folder), "cannot be read as a run", f"its {name} is damaged", "copy")
    assert_one_line(result, code=1, says=says)
    result = run(capsys, "report", str(folder / "none"))
    assert_one_line(result, code=1, says=("not a run folder", "fedbudget train --out"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 of the"),
        ("garbage\n", "0 of the"),
        ("{}\n", "line 1"),
        ("x\ny\n", "1 is"),
    ],
)
def test_rounds_that_are_gone_or_damaged_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    (folder / "rounds.jsonl").write_text(text)
    result = run(capsys, "report", str(folder), "--no-compare")
    assert_one_line(result, code=1, says=("its rounds.jsonl is damaged", reason))


def test_lines_are_wrapped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("report", "--no-compare"), ("export", str(folder / "m.json"))):
        result = run(capsys, command[0], str(folder), command[1])
        assert result.code == 0
        assert result.out.count("\n") > 3
        words = [line for line in result.out.splitlines() if "/" not in line]
        assert all(len(line) <= 80 for line in words)


def test_a_path_that_cannot_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "report", str(folder), "--out", "/proc/page.html")
    assert_one_line(result, code=1, says=("cannot write /proc/page.html",))


@pytest.mark.skipif(
    CHROMIUM is None, reason="no browser here: the report is NOT opened; install one"
)
@pytest.mark.parametrize("width", [390, 1440])
def test_a_browser_shows_it(folder: Path, width: int) -> None:
    pytest.importorskip("playwright", reason="a browser is driven by playwright")
    page = fb.report(folder)
    events: list[str] = []
    with chromium() as browser:
        shown = browser.new_page(viewport={"width": width, "height": 900})
        shown.on("request", lambda request: events.append(request.url))
        shown.on("console", lambda message: events.append(message.text))
        shown.goto(page.as_uri())
        assert shown.locator("h2").count() >= 7
        assert shown.locator("svg:visible").count() == 3
        # Nothing but tables, in frames of their own, is wider than the screen.
        assert shown.evaluate("document.documentElement.scrollWidth") == width
    assert events == [page.as_uri()]


def test_scores_on_new_devices_are_measured_and_compared(tmp_path: Path) -> None:
    """The devices that are kept out are not among those that train."""
    out = tmp_path / "run"
    arguments = ["train", *sensors(tmp_path), *BUDGET, "--new-devices", "2"]
    with pytest.raises(SystemExit) as stop:
        from fedbudget.cli import main

        main([*arguments, "--out", str(out)])
    assert stop.value.code == 0
    recorded = read_run(out)
    data, held_out = rows_of(recorded)
    assert held_out is not None and held_out.num_devices == 2
    assert data.num_devices == recorded.plan.num_devices == 3
    assert not set(data.device_names) & set(held_out.device_names)
    comparison = compare(recorded)
    assert set(comparison.new_devices) == {RUN, CONSTANT, CENTRAL}
    last = recorded.rounds[-1].measured
    assert comparison.new_devices[RUN] == pytest.approx(last["new_accuracy"])
    theta, part = recorded.theta, all_rows(held_out)
    assert theta is not None
    correct = recorded.plan.model.predictions(part.x @ theta) == part.y
    per_device = np.add.reduceat(correct, part.offsets[:-1]) / part.sizes
    assert last["new_accuracy"] == pytest.approx(per_device.mean())
    assert "On all rows of new devices" in fb.report(out).read_text()


def test_new_devices_do_not_go_with_a_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", *sensors(tmp_path), *BUDGET, "--new-devices", "2")
    released = run(capsys, *arguments, "--release", "--out", str(tmp_path / "run"))
    says: tuple[str, ...] = ("--new-devices 2", "does not go with --release")
    assert_one_line(released, code=2, says=says)
    too_many = run(capsys, *arguments[:-1], "5")
    assert_one_line(too_many, code=2, says=("count is 5", "hold out at most 4"))


def test_the_report_of_a_release_keeps_its_figures_out_of_the_guarantee(
    tmp_path: Path,
) -> None:
    data = fb.load("adult", split="iid", num_devices=4)
    prices = fb.Prices(communication=100, computation=1)
    plan = fb.plan(data.problem(), fb.Budget(epsilon=4, cost=300), prices)
    about = {"source": "adult", "split": "iid", "num_devices": 4, "seed": 0}
    fb.train(
        plan, fb.ReleaseDevices(data), record=fb.Record(tmp_path / "run", about=about)
    )
    says = "for the model, not for this page"
    for comparing in (False, True):
        page = fb.report(tmp_path / "run", comparing=comparing).read_text()
        assert (says in page) == comparing
        assert "release: (4," in page and "simulation" not in page
