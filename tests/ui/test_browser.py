"""The page in a real browser."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedbudget.fleet.coordinator.status import StatusServer
from fedbudget.record import read_run
from tests.cli.examples import write_sensors
from tests.ui.browsing import CHROMIUM, SLOW, chromium, served, settle
from tests.ui.test_fleet import RUNNING
from tests.ui.test_folders import write_run

pytest.importorskip("streamlit", reason="the page needs streamlit: fedbudget[ui]")
pytest.importorskip("playwright", reason="a browser is driven by playwright")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser: the page is NOT tested; install chromium"
)


# Small steps, heterogeneous devices and free communication give 12,000 rounds of one
# step: the run lasts long enough to press a button.
MANY_ROUNDS = """
[data]
table = "sensors.csv"
device = "sensor_id"
public_bounds = true
[budget]
epsilon = 50
cost = 12000
[prices]
communication = 0
computation = 1
[plan]
learning_rate = 0.001
dissimilarity = 10
[label]
name = "alarm"
values = ["no", "yes"]
[features]
volts = { low = 0, high = 5 }
site = { values = ["cellar", "roof"] }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_sensors(folder)
    (folder / "fedbudget.toml").write_text(MANY_ROUNDS)
    write_run(folder / "runs" / "first", done=3)
    write_run(folder / "runs" / "second", done=2)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder / "runs") as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: "Browser") -> Iterator["Page"]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    yield page
    page.close()


def card(page: "Page", name: str) -> "Locator":
    """Return the value of a card."""
    card = page.get_by_test_id("stMetric").filter(has_text=re.compile(f"^{name}"))
    return card.get_by_test_id("stMetricValue")


def process_of_run(folder: Path) -> int:
    """Wait until the run has recorded a round; return the number of its process."""
    end = time.monotonic() + 2 * SLOW / 1000
    while time.monotonic() < end:
        with suppress(OSError):
            if b"\n" in (folder / "rounds.jsonl").read_bytes():
                break
        time.sleep(0.01)
    command = ("ps", "-A", "-ww", "-o", "pid=,args=")
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = (one for one in listed.split("\n") if f"--out {folder}" in one)
    return int(line.split()[0])


def new_text(shown: "Locator", old: str) -> str:
    """Wait until the text changes; return it."""
    from playwright.sync_api import expect

    expect(shown).not_to_have_text(old, timeout=SLOW)
    return shown.inner_text()


def test_sliders_and_fields_change_the_plan(page: "Page", address: str) -> None:
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(address)
    settle(page)
    page.get_by_text(re.compile("Binding: |Neither budget")).wait_for(timeout=SLOW)
    drawn = page.get_by_test_id("stVegaLiteChart").locator("canvas, svg")
    drawn.first.wait_for(timeout=SLOW)
    loss = card(page, "Predicted excess loss")
    before = loss.inner_text()
    page.get_by_role("slider", name="Epsilon").press("ArrowLeft")  # 4 to 2.8
    lower = new_text(loss, before)
    assert float(lower) > float(before)
    settle(page)
    columns = page.get_by_label("Feature columns", exact=True)
    columns.fill("5")
    columns.press("Enter")
    assert float(new_text(loss, lower)) < float(lower)
    assert urls and all(
        url.startswith((address, address.replace("http", "ws"), "data:", "blob:"))
        for url in urls
    )


def test_trust_and_unit_change_the_plan_and_are_compared(
    page: "Page", address: str
) -> None:
    page.goto(address)
    settle(page)
    page.get_by_text("What trust buys").wait_for(timeout=SLOW)
    sums = card(page, "Loss of sums")
    sums.wait_for(timeout=SLOW)
    loss = card(page, "Predicted excess loss")
    before, of_sums = loss.inner_text(), sums.inner_text()
    assert before == card(page, "Loss of uploads").inner_text()
    page.get_by_text("sum", exact=True).click()
    assert new_text(loss, before) == of_sums
    page.get_by_text("device", exact=True).click()
    assert float(new_text(loss, of_sums)) > float(of_sums)
    page.get_by_text("As a command").click()
    command = page.get_by_text("--trust sum --unit device")
    command.first.wait_for(timeout=SLOW)


def test_a_budget_too_small_is_said_in_one_line(page: "Page", address: str) -> None:
    page.goto(address)
    settle(page)
    page.get_by_role("slider", name="Cost").press("Home")
    error = page.get_by_test_id("stAlert").filter(has_text="cost budget 50 is below")
    error.wait_for(timeout=SLOW)
    page.get_by_text("Predicted loss for other budgets").first.wait_for(timeout=SLOW)


def test_a_run_is_started_watched_stopped_and_resumed(
    page: "Page", address: str, folder: Path
) -> None:
    page.goto(f"{address}/run")
    settle(page)
    page.get_by_text("My own table or fedbudget.toml").last.click()  # opens the fields
    fill(page, "Table or fedbudget.toml", "fedbudget.toml")
    fill(page, "Seed", "7")
    fill(page, "Name", "mine")
    page.get_by_role("button", name="Start").click()
    # It pauses after its first rounds: a fast machine ends a run before it is shown.
    run = process_of_run(folder / "runs" / "mine")
    os.kill(run, signal.SIGSTOP)
    page.get_by_text(re.compile(r"round [1-9]\d* of \d{3,}")).wait_for(timeout=2 * SLOW)
    page.get_by_role("button", name="Stop").click(timeout=SLOW)
    os.kill(run, signal.SIGCONT)
    resume = page.get_by_role("button", name="Resume")
    resume.wait_for(timeout=SLOW)
    page.get_by_text("mine: stopped").wait_for(timeout=SLOW)
    assert not (folder / "runs" / "mine" / "model.npz").exists()
    before = len(read_run(folder / "runs" / "mine").rounds)
    assert before > 0
    resume.click()
    page.get_by_text("mine: finished").wait_for(timeout=5 * SLOW)
    settle(page)
    rounds = read_run(folder / "runs" / "mine").rounds
    assert [done.number for done in rounds] == list(range(1, len(rounds) + 1))
    assert len(rounds) > before
    about = json.loads((folder / "runs" / "mine" / "about.json").read_text())
    assert about["seed"] == 7
    assert new_text(card(page, "Epsilon, if released"), "") == "50"
    page.get_by_text("NOT private").wait_for(timeout=SLOW)


def test_enter_starts_nothing_and_budgets_are_handed_over(
    page: "Page", address: str, folder: Path
) -> None:
    page.goto(address)
    settle(page)
    field = page.get_by_label("Shape from a file", exact=True)
    field.fill("fedbudget.toml")
    field.press("Enter")
    page.get_by_text("5 devices of 48 to 48 training rows").wait_for(timeout=SLOW)
    page.get_by_role("slider", name="Epsilon").press("ArrowLeft")  # 4 to 2.8
    page.get_by_text("sum", exact=True).click()
    page.get_by_role("radio", name="sum", checked=True).wait_for(timeout=SLOW)
    settle(page)
    page.get_by_role("button", name="Train with these budgets").click()
    page.get_by_text("Train on simulated devices").wait_for(timeout=SLOW)
    settle(page)
    epsilon = page.get_by_label("Epsilon", exact=True)
    assert float(epsilon.input_value()) == 2.8
    server = page.get_by_role("combobox", name="The server sees")
    assert server.input_value() == "sum"
    box = page.get_by_role("checkbox", name="Replace its epsilon, cost")
    assert box.is_checked()  # or the file's budgets would be used
    table = page.get_by_label("Table or fedbudget.toml", exact=True)
    assert table.input_value() == "fedbudget.toml"
    name = page.get_by_label("Name", exact=True)
    name.fill("by-enter")
    name.press("Enter")
    settle(page)
    assert not list((folder / "runs").glob(".by-enter*"))
    page.get_by_role("link", name="Explore").click()
    page.get_by_text("5 devices of 48 to 48 training rows").wait_for(timeout=SLOW)
    assert page.get_by_role("radio", name="sum").is_checked()  # kept meanwhile


def test_a_table_is_explored_and_handed_over(
    page: "Page", address: str, folder: Path
) -> None:
    page.goto(address)
    settle(page)
    for name, text in (
        ("Shape from a file", "sensors.csv"),
        ("Column to predict", "alarm"),
        ("Column of the device", "sensor_id"),
    ):
        field = page.get_by_label(name, exact=True)
        field.fill(text)
        field.press("Enter")
        settle(page)
    page.get_by_text("5 devices of 48 to 48 training rows").wait_for(timeout=SLOW)
    page.get_by_role("button", name="Train with these budgets").click()
    page.get_by_text("Train on simulated devices").wait_for(timeout=SLOW)
    settle(page)
    fill(page, "Name", "from-explore")
    page.get_by_role("button", name="Start").click()
    page.get_by_text("from-explore: finished").wait_for(timeout=3 * SLOW)
    about = json.loads((folder / "runs" / "from-explore" / "about.json").read_text())
    assert about["source"] == "sensors.csv" and about["device"] == "sensor_id"
    assert about["budget"]["epsilon"] == [4.0]
    shutil.rmtree(folder / "runs" / "from-explore")


def fill(page: "Page", label: str, text: str) -> None:
    page.get_by_label(label, exact=True).fill(text)


def test_runs_are_compared(page: "Page", address: str, folder: Path) -> None:
    shutil.rmtree(folder / "runs" / "mine", ignore_errors=True)  # on other data
    page.goto(f"{address}/results")
    settle(page)
    for name in ("first", "second"):
        page.get_by_role("button", name=name).or_(
            page.get_by_text(name)
        ).first.wait_for(timeout=SLOW)
    page.get_by_role("radio", name="epsilon").click()
    page.get_by_text("epsilon spent").wait_for(timeout=SLOW)


def test_a_running_fleet_is_shown(page: "Page", address: str) -> None:
    page.goto(f"{address}/fleet")
    settle(page)
    page.get_by_text("No coordinator answers").wait_for(timeout=SLOW)
    server = StatusServer(lambda: RUNNING, port=0)
    try:
        field = page.get_by_label("Status address of the coordinator")
        field.fill(f"http://127.0.0.1:{server.port}/status")
        field.press("Enter")
        page.get_by_text("run 'alarms': 2 of 9 rounds completed").wait_for(timeout=SLOW)
        assert new_text(card(page, "Online"), "") == "1 of 1"
        assert new_text(card(page, "Epsilon spent"), "") == "1.5"
    finally:
        server.close()
    page.get_by_text("No coordinator answers").wait_for(timeout=SLOW)


@pytest.mark.parametrize("name", ["", "run", "fleet", "results"])
def test_a_telephone_shows_all_of_it(
    browser: "Browser", address: str, name: str
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page.goto(f"{address}/{name}")
    settle(page)
    main = page.get_by_test_id("stMain")
    widths = main.evaluate("node => [node.scrollWidth, node.clientWidth]")
    assert widths[0] <= widths[1] <= 390  # no horizontal scrolling
    background = page.get_by_test_id("stApp").evaluate(
        "node => getComputedStyle(node).backgroundColor"
    )
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 80  # dark
    page.close()


def test_the_keyboard_reaches_the_other_pages(page: "Page", address: str) -> None:
    page.goto(address)
    settle(page)
    page.get_by_role("link", name="Results").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Compare runs").wait_for(timeout=SLOW)
