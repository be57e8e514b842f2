"""Chromium without a window, as tests and pictures of pages use it: started fresh, with nothing of anybody's in it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
MOST_SECONDS = 120
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """Returns why there is no browser here; empty where there is one."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed (pip install selenium)"
    if _chromium() is None or shutil.which("chromedriver") is None:
        return "no Chromium with chromedriver is installed (apt-get install chromium chromium-driver)"
    return ""


def _chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Context that yields a driver of selenium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _chromium()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def load(driver: Any, address: str) -> float:
    """Opens a page of snugfit; returns the seconds until it was drawn."""
    driver.get("about:blank")
    begin = time.perf_counter()
    driver.get(address)
    # Where the machine is busy, the driver may say so before the page is there.
    while not driver.execute_script(
        "return document.readyState === 'complete' && !!document.querySelector('#page h1')"
    ):
        if time.perf_counter() - begin > MOST_SECONDS:
            raise TimeoutError(f"{address} was not drawn within {MOST_SECONDS} s")
        time.sleep(0.01)
    return time.perf_counter() - begin


def see_as(driver: Any, *, width: int, height: int = 900, dark: bool = False) -> None:
    """Sets the window's size in pixels, and whether the person prefers dark pages."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
