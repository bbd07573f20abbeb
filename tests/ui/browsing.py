"""A real server and a real browser, for tests and for the documents' pictures."""

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedbudget.fleet.demo import HeldPort

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
SLOW = 60_000  # milliseconds: generous for a busy machine


@contextmanager
def served(runs: Path, *options: str) -> Iterator[str]:
    """Run `fedbudget ui` as a user does; yield its address."""
    held = HeldPort()
    command = [sys.executable, "-m", "fedbudget", "ui", "--no-browser"]
    log = runs.parent / "ui.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*command, "--port", str(held.number), "--runs", str(runs), *options],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=runs.parent,
            env=os.environ | {"HOME": str(runs.parent)},  # no user settings
        )
    address = f"http://127.0.0.1:{held.number}"
    try:
        _wait_for(f"{address}/_stcore/health", process, log)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)
        held.release()


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
    raise AssertionError(f"no page at {url}: {log.read_text()}")


@contextmanager
def chromium() -> Iterator["Browser"]:
    """Start the system's Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(_FLAGS)
        )
        try:
            yield browser
        finally:
            browser.close()


def settle(page: "Page") -> None:
    """Wait until the page is drawn."""
    page.get_by_role("heading", level=1).wait_for(timeout=SLOW)
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for(
        timeout=SLOW
    )
