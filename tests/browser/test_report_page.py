"""The report page in headless Chromium. Screenshots: set REPORT_SCREENSHOTS to a folder to look at them."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from launch import report
from tests.browser.runs import BOARD, HOSTILE, write_run

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


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of 5,120 rows, and one that compares two runs."""
    root = tmp_path_factory.mktemp("report")
    made = {"big": root / "big.html", "two": root / "two.html"}
    assert write_run(root / "big", 160, 8) == 5120
    write_run(root / "ours", 20, 2, seed=1)
    write_run(root / "theirs", 20, 2, seed=2, bonus=0.2)
    assert report.main([str(root / "big"), "--rows", "6000", "-o", str(made["big"])]) == 0
    two = [str(root / "ours"), "--compare", str(root / "theirs"), "-o", str(made["two"])]
    assert report.main(two) == 0
    return made


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A browser that remembers every request and every line of the console; neither may go wrong."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or pytest.fail("install chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
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
    return url.startswith(("file:", "data:", "blob:", "chrome:"))


def wait(made: Callable[[], Any]) -> Any:
    end = time.monotonic() + SECONDS
    while not (value := made()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.03)
    return value


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


def index_of(driver: Browser, predicate: str) -> int:
    """The number of the first row that a JavaScript predicate over `row` takes."""
    script = """const done = arguments[0];
        const packed = Uint8Array.from(atob(document.getElementById("piece-index").textContent), (c) => c.charCodeAt(0));
        const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
        new Response(stream).json().then((index) => done(index.rows.findIndex((row) => PREDICATE)));"""
    number: int = driver.execute_async_script(script.replace("PREDICATE", predicate))
    assert number >= 0
    return number


def alpha(token: WebElement) -> float:
    colour = token.value_of_css_property("background-color")
    return float(colour.removesuffix(")").split(",")[3]) if colour.startswith("rgba") else 1.0


def entropy_of(driver: Browser, token: WebElement) -> float:
    script = "arguments[0].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    driver.execute_script(script, token)
    tip = one(driver, ".tip").text
    assert "logprob" in tip
    return float(tip.split("entropy ")[1].split(" nats")[0])


def test_tokens_are_shaded_by_entropy_and_hovering_tells_entropy_and_logprob(
    browser: Browser, pages: dict[str, Path]
) -> None:
    sample = open_sample(browser, pages["big"], 9)
    tokens = every(one(sample, ".pass"), ".token")
    assert len(tokens) > 10
    pairs = sorted((entropy_of(browser, token), alpha(token)) for token in tokens)
    assert [a for _, a in pairs] == sorted(a for _, a in pairs)
    assert pairs[0][1] == 0 and pairs[-1][1] > 0.15
    passes = every(sample, ".pass")
    assert len(passes) == 3
    assert one(passes[1], ".output .cue").text.strip() == "Wait, let me reconsider."
    assert [h.text for h in every(passes[0], "h4")] == ["THINK", "ANSWER"]
    one(passes[1], "summary").click()
    roles = [role.text for role in every(passes[1], ".role")]
    assert roles == ["SYSTEM", "USER", "ASSISTANT", "USER"]
    screenshot(browser, "sample")


def test_markers_stand_out_and_formulas_are_rendered(
    browser: Browser, pages: dict[str, Path]
) -> None:
    open_page(browser, pages["big"], "samples")
    one(browser, "#filter-search").send_keys("reconsider: 🙂")
    wait(lambda: "searching" not in one(browser, "#count").text)
    every(browser, ".option")[2].click()
    sample = wait(lambda: (every(browser, "#sample[data-number]") or [None])[0])
    assert every(sample, ".problem .katex")
    wait(lambda: every(one(browser, "#sample"), ".output .marker"))
    assert not every(sample, ".output .katex")
    one(browser, "#rendered").click()
    wait(lambda: every(browser, ".output .katex"))
    assert every(browser, ".output .marker")
    screenshot(browser, "formulas")


def test_filters_agree_with_the_rows_and_answer_at_once(
    browser: Browser, pages: dict[str, Path]
) -> None:
    open_page(browser, pages["big"], "samples")
    assert one(browser, "#count").text == "5120 of 5120 samples"
    assert len(every(browser, ".option")) < 60
    for name, value, count in (("task", "carpark", 512), ("step", "50", 256), ("temperature", "0.7", 128)):
        one(browser, f"#filter-{name} option[value='{value}']").click()
        wait(lambda count=count: one(browser, "#count").text == f"{count} of 5120 samples")
    milliseconds = []
    shown = {}
    for outcome in ("right", "wrong", "flipped", "gained", "lost", ""):
        one(browser, f"#filter-outcome option[value='{outcome}']").click()
        time.sleep(0.1)
        milliseconds.append(float(one(browser, "#count").get_attribute("data-milliseconds") or "inf"))
        shown[outcome] = int(one(browser, "#count").text.split()[0])
    assert shown["right"] + shown["wrong"] == shown[""] == 128
    assert 0 < shown["flipped"] < 128 and max(shown["gained"], shown["lost"]) <= shown["flipped"]
    assert max(milliseconds) < 100, milliseconds


def test_a_search_reads_outputs_and_leaves_what_matches(
    browser: Browser, pages: dict[str, Path]
) -> None:
    open_page(browser, pages["big"], "samples")
    begun = time.monotonic()
    one(browser, "#filter-search").send_keys("document.title")
    wait(lambda: "searching" not in one(browser, "#count").text and not one(browser, "#count").text.startswith("0 "))
    assert one(browser, "#count").text == "32 of 5120 samples"  # 8 samples at 2 steps, 2 temperatures
    assert time.monotonic() - begun < 15


def test_hostile_text_stays_text(browser: Browser, pages: dict[str, Path]) -> None:
    sample = open_sample(browser, pages["big"], 0)
    assert HOSTILE.split()[0] in sample.text
    assert browser.title == "Rethink report"
    assert not every(browser, "#sample img") and not every(browser, "#sample script")


def test_boards_are_played_move_by_move_and_illegal_moves_are_told(
    browser: Browser, pages: dict[str, Path]
) -> None:
    open_page(browser, pages["big"], "samples")
    number = index_of(browser, "row.task === 'carpark' && row.passes[0].right === false")
    sample = open_sample(browser, pages["big"], number)
    assert len(every(sample, ".piece")) == len(set(BOARD) - {"o"})
    status = one(sample, ".status")
    top = lambda letter: one(sample, f"[data-letter={letter}]").value_of_css_property("top")  # noqa: E731
    next_move = one(sample, "[aria-label='next move']")
    assert status.text == "move 0 of 2" and top("B") == "0px"
    next_move.click()
    wait(lambda: top("B") == "46px")
    next_move.click()
    assert status.text == "solved"
    screenshot(browser, "board")
    select = one(sample, ".player select")
    one(select, "option[value='1']").click()  # what pass 1 answered: A would leave the board
    one(sample, "[aria-label='last position']").click()
    assert status.text == "illegal: A>3 leaves the board"
    assert [b.text for b in every(sample, ".moves .illegal")] == ["A>3"]
    one(sample, "[aria-label='first position']").click()
    b, e = one(sample, "[data-letter=B]"), one(sample, "[data-letter=E]")
    b.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert status.text == "Bv1 is blocked by E at row 4, column 3"
    e.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert [m.text for m in every(sample, ".moves button")] == ["Bv1", "E>1", "E<2"]


def test_everything_is_reached_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    open_page(browser, pages["big"], "summary")
    focus = lambda: browser.switch_to.active_element  # noqa: E731
    one(browser, "#tab-summary").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert focus().get_attribute("id") == "tab-samples"
    assert one(browser, "#panel-samples").is_displayed() and not one(browser, "#panel-summary").is_displayed()
    reached = []
    for _ in range(10):
        focus().send_keys(Keys.TAB)
        reached.append(focus().get_attribute("id"))
        if reached[-1] == "list":
            break
    assert reached[-1] == "list" and {"filter-task", "filter-outcome", "filter-search"} <= set(reached)
    wait(lambda: one(browser, "#sample").get_attribute("data-number") == "0")
    focus().send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    wait(lambda: one(browser, "#sample").get_attribute("data-number") == "2")
    focus().send_keys(Keys.END)
    wait(lambda: one(browser, "#sample").get_attribute("data-number") == "5119")
    assert every(browser, ".option[aria-selected=true]")
    output = one(browser, "#sample .output")
    output.send_keys(Keys.ARROW_RIGHT)
    assert one(browser, ".tip").text.startswith("token 1: entropy")
    output.send_keys(Keys.ESCAPE)
    assert not one(browser, ".tip").is_displayed()


def test_plots_are_drawn_with_error_bars_and_follow_choices(
    browser: Browser, pages: dict[str, Path]
) -> None:
    open_page(browser, pages["two"], "plots")
    wait(lambda: len(every(browser, ".plot .main-svg")) >= 7)
    for name in ("accuracy-step", "accuracy-temperature", "entropy-step", "entropy-temperature"):
        assert len(every(browser, f"#plot-{name} .errorbar")) == 12, name  # 2 runs x 3 passes x 2 places
    assert every(browser, "#plot-passes .bars .point") and every(browser, "#plot-entropies .bars .point")
    assert every(browser, "#plot-flips .sankey-link")
    assert "wrong to right" in one(browser, "#plot-flips + p").text
    screenshot(browser, "plots")


def test_two_runs_stand_side_by_side_with_the_difference_of_their_configs(
    browser: Browser, pages: dict[str, Path]
) -> None:
    sample = open_sample(browser, pages["two"], 3)
    where = [w.text.split(" · ") for w in every(sample, ".column h2 .where")]
    assert [w[0] for w in where] == ["ours", "theirs"] and where[0][1:] == where[1][1:]
    screenshot(browser, "compared")
    one(browser, "#tab-configs").click()
    cells = [c.text for c in every(browser, "#panel-configs tbody td")]
    assert cells == ["run.seed", "1", "2", "differs"]
    one(browser, "#tab-samples").click()
    one(browser, "#filter-disagree").click()
    wait(lambda: 0 < int(one(browser, "#count").text.split()[0]) < 320)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    chosen = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", chosen)
    sample = open_sample(browser, pages["two"], 0)
    pairs: list[Any] = browser.execute_script(CONTRASTS, sample)
    assert pairs
    assert {text: ratio for text, ratio in pairs if ratio < 4.5} == {}
    screenshot(browser, scheme)


# The contrast of every text in view with what lies behind it (WCAG's ratio), translucent layers joined.
CONTRASTS = """
const parse = (c) => { const v = c.match(/[\\d.]+/g).map(Number); return [v[0], v[1], v[2], v[3] ?? 1]; };
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => {
  const s = c[i] / 255; return sum + w * (s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4); }, 0);
const ground = (node) => { const layers = [];
  for (let n = node; n; n = n.parentElement) layers.unshift(parse(getComputedStyle(n).backgroundColor));
  return layers.reduce((below, top) => over(top, below), [0, 0, 0, 1]); };
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest("script, .katex-mathml")) continue;
  const behind = ground(node), [a, b] = [light(over(parse(getComputedStyle(node).color), behind)), light(behind)].sort((x, y) => y - x);
  found.push([walker.currentNode.data.slice(0, 40) + " in " + node.className, (a + 0.05) / (b + 0.05)]);
}
return found;
"""
