"""Drives the report page in headless Chromium (Debian's `chromium` and `chromium-driver`)."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

Browser = webdriver.Chrome
SECONDS = 30
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1500,1000",
)
PIXELS = Path(__file__).with_name("pixels.js").read_text(encoding="utf-8")
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text(encoding="utf-8")


@contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """A browser; on leaving, its console must be empty and all its requests local."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or pytest.fail("install chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
        assert driver.get_log("browser") == []
        assert [url for url in requests(driver) if not local(url)] == []
    finally:
        driver.quit()


def requests(driver: Browser) -> list[str]:
    found = []
    for entry in driver.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            found.append(event["params"]["request"]["url"])
    return found


def local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:", "chrome:", "http://127.0.0.1:"))


def wait(made: Callable[[], Any]) -> Any:
    end = time.monotonic() + SECONDS
    while True:
        try:
            value = made()
        except StaleElementReferenceException:  # the page has drawn it anew meanwhile
            value = None
        if value:
            return value
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.03)


def open_page(driver: Browser, page: Path, fragment: str) -> None:
    driver.get("about:blank")
    driver.get(f"{page.as_uri()}#{fragment}")
    wait(lambda: not driver.find_elements(By.ID, "loading"))


def open_sample(driver: Browser, page: Path, number: int) -> WebElement:
    open_page(driver, page, f"samples/{number}")
    wait(lambda: one(driver, "#sample").get_attribute("data-number") == str(number))
    return one(driver, "#sample")


def one(place: Browser | WebElement, selector: str) -> WebElement:
    return place.find_element(By.CSS_SELECTOR, selector)


def every(place: Browser | WebElement, selector: str) -> list[WebElement]:
    return place.find_elements(By.CSS_SELECTOR, selector)


def screenshot(driver: Browser, name: str) -> None:
    folder = os.environ.get("REPORT_SCREENSHOTS")
    if folder:
        driver.save_screenshot(str(Path(folder) / f"{name}.png"))


def colours(driver: Browser, places: list[WebElement]) -> list[tuple[float, float, float]]:
    """Mean red, green and blue (0 to 255) of each place, from a screenshot."""
    script = "return arguments[0].map((e) => { const { x, y, width, height } = "
    script += "e.getClientRects()[0]; return { x, y, width, height }; })"
    rectangles = driver.execute_script(script, places)
    picture = driver.get_screenshot_as_base64()
    found = driver.execute_async_script(PIXELS, picture, rectangles)
    return [(red, green, blue) for red, green, blue in found]
