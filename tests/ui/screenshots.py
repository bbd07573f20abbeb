"""The pictures in docs/images, of a real page with real runs and a real fleet.

`make screenshots` takes them again, and prints how long the page takes to update after
a slider moved.
"""

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import fedbudget
from fedbudget.fleet.demo import Terms, TrialFleet
from tests.ui.browsing import SLOW, chromium, served, settle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDE, NARROW = 1440, 390
TERMS = Terms(epsilon=4, cost=1000, communication=5, computation=1)
RUNS = {
    "epsilon-4": ("--epsilon", "4"),
    "epsilon-1": ("--epsilon", "1"),
    "paper-planner": ("--epsilon", "4", "--planner", "paper"),
    "expensive-rounds": ("--epsilon", "4", "--communication-price", "200"),
}


# An update that ends before the next look at the page is counted, too.
_COUNT_UPDATES = """() => {
  window.updates = 0;
  const app = document.querySelector("[data-testid=stApp]");
  new MutationObserver(() => {
    if (app.getAttribute("data-test-script-state") === "running") window.updates += 1;
  }).observe(app, {attributeFilter: ["data-test-script-state"]});
}"""


def main() -> None:
    """Take every picture."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        runs = folder / "runs"
        for name, options in RUNS.items():
            _train(runs / name, *options)
        address = stack.enter_context(served(runs))
        browser = stack.enter_context(chromium())
        for scheme in ("light", "dark"):
            _take(browser, address, "explore", scheme, WIDE)
            _take(browser, address, "explore", scheme, NARROW)
        for name in ("run", "results"):
            _take(browser, address, name, "light", WIDE)
            _take(browser, address, name, "dark", NARROW)
        _take_fleet(browser, address, folder / "fleet")
        print(f"a slider updates the page in {_seconds(browser, address):.2f} s")


def _train(out: Path, *options: str) -> None:
    command = [sys.executable, "-m", "fedbudget", "train", "adult", "--split", "iid"]
    budget = ("--cost", "1000", "--out", str(out), "--json")
    subprocess.run([*command, *options, *budget], check=True, capture_output=True)


def _open(browser: "Browser", url: str, scheme: str, width: int) -> "Page":
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=1 if width == WIDE else 2,
    )
    page.goto(url)
    settle(page)
    return page


def _take(browser: "Browser", address: str, name: str, scheme: str, width: int) -> None:
    path = "" if name == "explore" else name
    page = _open(browser, f"{address}/{path}", scheme, width)
    page.get_by_test_id("stVegaLiteChart").locator("canvas, svg").first.wait_for(
        timeout=SLOW
    )
    _save(page, f"{name}-{scheme}{'-narrow' if width == NARROW else ''}")


def _save(page: "Page", name: str) -> None:
    assert page.viewport_size is not None
    width, height = page.viewport_size["width"], page.viewport_size["height"]
    main = page.get_by_test_id("stMain")
    for _ in range(5):  # a page that is still drawn, or drawn again, grows later
        page.wait_for_timeout(1500)  # fonts, and charts that fade in
        height = max(height, int(main.evaluate("node => node.scrollHeight")))
        page.set_viewport_size({"width": width, "height": height})
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()
    print(f"{name}.png")


def _take_fleet(browser: "Browser", address: str, folder: Path) -> None:
    """Start a fleet with cheap communication, so that there are many rounds."""
    data = fedbudget.load("adult", split="by-education", seed=0)
    fleet = TrialFleet(folder, data, TERMS, minimum=1)
    page = _open(browser, f"{address}/fleet", "light", WIDE)
    field = page.get_by_label("Status address of the coordinator")
    field.fill(f"http://127.0.0.1:{fleet.status_port}/status")
    field.press("Enter")
    with ExitStack() as stack:
        fleet.start(stack)
        page.get_by_text(re.compile(r"([4-9]|\d\d) of .* rounds completed")).wait_for(
            timeout=3 * SLOW
        )
        pid = fleet.devices[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # the round waits for it, and so for the picture
        _save(page, "fleet-light")
        os.kill(pid, signal.SIGCONT)


def _seconds(browser: "Browser", address: str) -> float:
    """Return the median seconds from a key press to the last change on the page."""
    page = _open(browser, address, "light", WIDE)
    page.evaluate(_COUNT_UPDATES)
    seconds = []
    # Every press requests a new fleet: no result is cached.
    for name in 3 * ["Per local step"] + 4 * ["Number of devices"]:
        before = page.evaluate("window.updates")
        began = time.perf_counter()
        page.get_by_role("slider", name=name).press("ArrowRight")
        page.wait_for_function(f"window.updates > {before}", timeout=SLOW)
        settle(page)
        seconds.append(time.perf_counter() - began)
    page.close()
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
