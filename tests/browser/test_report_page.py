"""The report page in headless Chromium; REPORT_SCREENSHOTS=FOLDER keeps pictures to look at."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from launch import report
from tests.browser.driving import (
    CONTRASTS,
    Browser,
    colours,
    every,
    one,
    open_page,
    open_sample,
    opened,
    screenshot,
    wait,
)
from tests.browser.runs import BOARD, HOSTILE, write_run
from tests.fakes.stored_rows import write_rows


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
    with opened(tmp_path / "profile") as driver:
        yield driver


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
    ranked = sorted(tokens, key=lambda token: entropy_of(browser, token))
    ends = [*ranked[:3], *ranked[-3:]]
    warmth = [red - blue for red, _, blue in colours(browser, ends)]  # orange: red without blue
    assert min(warmth[3:]) > 25 + max(warmth[:3]), "the screenshot shows no shading"
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
    for name, value, count in (
        ("task", "carpark", 512),
        ("step", "50", 256),
        ("temperature", "0.7", 128),
    ):
        one(browser, f"#filter-{name} option[value='{value}']").click()
        wait(lambda count=count: one(browser, "#count").text == f"{count} of 5120 samples")
    milliseconds = []
    shown = {}
    for outcome in ("right", "wrong", "flipped", "gained", "lost", ""):
        one(browser, f"#filter-outcome option[value='{outcome}']").click()
        time.sleep(0.1)
        milliseconds.append(
            float(one(browser, "#count").get_attribute("data-milliseconds") or "inf")
        )
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
    wait(
        lambda: (
            "searching" not in one(browser, "#count").text
            and not one(browser, "#count").text.startswith("0 ")
        )
    )
    assert (
        one(browser, "#count").text == "32 of 5120 samples"
    )  # 8 samples at 2 steps, 2 temperatures
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
    one(browser, "#filter-task option[value=carpark]").click()
    one(browser, "#filter-outcome option[value=wrong]").click()
    wait(lambda: "AABo" in every(browser, ".option")[0].text)
    every(browser, ".option")[0].click()
    sample = one(browser, "#sample")
    wait(lambda: every(sample, ".piece"))
    assert len(every(sample, ".piece")) == len(set(BOARD) - {"o"})
    status = one(sample, ".status")
    top = lambda letter: one(sample, f"[data-letter={letter}]").value_of_css_property("top")  # noqa: E731
    next_move = one(sample, "[aria-label='next move']")
    assert status.text == "move 0 of 2" and top("B") == "0px"
    next_move.click()
    wait(lambda: top("B") == "46px")
    next_move.click()
    assert status.text == "solved"
    time.sleep(0.4)  # the piece's glide
    right = one(sample, ".board").rect
    red, green, blue = colours(browser, [one(sample, ".piece.target")])[0]
    assert red > 150 and max(green, blue) < 110, "the screenshot shows no red piece"
    target = one(sample, ".piece.target").rect
    assert abs(target["x"] + target["width"] - right["x"] - right["width"]) < 6
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
    ActionChains(browser).drag_and_drop_by_offset(e, 60, 0).perform()
    assert [m.text for m in every(sample, ".moves button")][3:] == ["E>1"]


def test_everything_is_reached_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    open_page(browser, pages["big"], "summary")
    focus = lambda: browser.switch_to.active_element  # noqa: E731
    one(browser, "#tab-summary").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert focus().get_attribute("id") == "tab-samples"
    assert (
        one(browser, "#panel-samples").is_displayed()
        and not one(browser, "#panel-summary").is_displayed()
    )
    reached = []
    for _ in range(10):
        focus().send_keys(Keys.TAB)
        reached.append(focus().get_attribute("id"))
        if reached[-1] == "list":
            break
    assert reached[-1] == "list" and {"filter-task", "filter-outcome", "filter-search"} <= set(
        reached
    )
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
        assert len(every(browser, f"#plot-{name} .errorbar")) == 12, (
            name
        )  # 2 runs x 3 passes x 2 places
    assert every(browser, "#plot-passes .bars .point") and every(
        browser, "#plot-entropies .bars .point"
    )
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


def test_samples_are_filtered_by_swept_keys_and_columns_of_the_data(
    browser: Browser, tmp_path: Path
) -> None:
    for seed in (1, 2):
        folder = tmp_path / f"seed{seed}"
        rows: list[dict[str, Any]] = [
            {"example_id": str(i), "sample_idx": 0, "metadata": {"subject": "ab"[i % 2]}}
            | {"task": "t", "step": 0, "pass1": {"is_correct_pred": True, "output": "plain"}}
            for i in range(6)
        ]
        write_rows(folder / "step0000_test.jsonl", rows)
        stored = {"step": 0, "rows_wanted": 8, "overrides": [f"run.seed={seed}"], "attempts": []}
        stored["spec"] = {"model": {"path": "org/model"}, "run": {"seed": seed}}
        (folder / "run.json").write_text(json.dumps(stored))
    page = tmp_path / "r.html"
    arguments = [str(tmp_path), "-o", str(page), "--by", "subject"]
    assert report.main(arguments) == 0
    open_page(browser, page, "summary")
    facts = one(browser, ".provenance").text
    assert "org/model" in facts and "6 of 8" in facts
    screenshot(browser, "provenance")
    sample = open_sample(browser, page, 0)
    assert [h.text for h in every(sample, "h4")] == ["OUTPUT"]
    one(browser, "[id='filter-by-subject'] option[value='a']").click()
    wait(lambda: one(browser, "#count").text == "6 of 12 samples")
    one(browser, "[id='filter-by-run.seed'] option[value='2']").click()
    wait(lambda: one(browser, "#count").text == "3 of 12 samples")
    open_page(browser, page, "plots")
    wait(lambda: every(browser, "#plot-passes .bars .point"))
    assert not any(f.is_displayed() for f in every(browser, "#plot-accuracy-step"))


def test_a_phone_shows_the_whole_config(browser: Browser, pages: dict[str, Path]) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    for name in ("big", "two"):
        open_page(browser, pages[name], "configs")
        assert all(
            c.rect["x"] + c.rect["width"] <= 390 for c in every(browser, "#panel-configs td")
        )
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        screenshot(browser, f"phone-{name}")
