"""The live view of many runs in headless Chromium: a list, and each run's page behind its name."""

import threading
from pathlib import Path

from selenium.webdriver.common.by import By

from launch.reporting.live import LiveRuns
from launch.reporting.server import serving
from launch.rows.stored_task import StoredTasks
from tests.browser.driving import every, one, opened, screenshot, wait
from tests.reporting.test_server import NAME, write_run


def test_a_run_of_the_list_opens_its_report(tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    write_run(root / NAME / "step-0", [True, False, True])
    write_run(root / "other" / "step-0", [False])
    runs = LiveRuns([root], (), 100, StoredTasks())
    with serving(runs, "127.0.0.1", 0) as server, opened(tmp_path / "profile") as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.get(f"http://127.0.0.1:{server.server_address[1]}/")
        assert len(every(browser, "tbody tr")) == 2 and not every(browser, "img")
        screenshot(browser, "live")
        next(a for a in every(browser, "a") if "onerror" in a.text).click()
        wait(lambda: not browser.find_elements(By.ID, "loading"))
        assert "3 of 8" in one(browser, ".provenance").text
        screenshot(browser, "live-run")
        server.shutdown()
