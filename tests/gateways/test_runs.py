"""Runs over a real HTTP service that fails, through the real command line, killed on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch import api
from launch.config.setup import setup_of
from pipeline.protocols import BackendLostError
from pipeline.run.budget import Reserved
from pipeline.spec import SpecError
from pipeline.store.files import StoreError
from tests.fakes.configs import ROOT
from tests.gateways.asking import configured
from tests.gateways.faulty import Faulty, write_clues
from tests.gateways.service import Reply, Seen, Service, chat, refusal

KEY = "sk-proj-Zq81xVbN0aLmKw73-never-written"
SERIAL = re.compile(r"serial (\d+) end")
LEVEL = 64
BASE = (
    "task=crossword",
    "backend=openai",
    "backend.deployment=gpt-4o-mini",
    "backend.samples_per_request=false",
    "backend.retry.retries=8",
    "backend.retry.backoff=0.02",
    "backend.retry.longest_backoff=0.3",
    "backend.retry.timeout=1",
)


def start(url: str, *overrides: str, key: str = KEY, door: str = "run") -> "subprocess.Popen[str]":
    environment = os.environ | {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": url}
    return subprocess.Popen(
        [sys.executable, str(ROOT / f"launch/{door}.py"), *BASE, *overrides],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", status: int = 0, seconds: float = 400) -> str:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == status, out + err
    return out + err


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`here(url, *overrides, key=, status=)`: the same in this process; returns what it showed."""

    def run(url: str, *overrides: str, key: str = KEY, status: int = 0) -> str:
        monkeypatch.setenv("OPENAI_API_KEY", key)
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        try:
            outcome = api.run(setup_of(configured(*BASE, *overrides), overrides))
            found = outcome.status
        except (SpecError, StoreError, BackendLostError) as error:
            print(f"error: {error}")
            found = 2
        shown = "".join(capfd.readouterr())
        assert found == status, shown
        return shown

    return run


def rows_in(folder: Path) -> list[dict[str, Any]]:
    found = [p for p in folder.rglob("step*.jsonl") if "part" not in p.name]
    return [json.loads(line) for line in found[0].open(encoding="utf-8")] if found else []


def wait_for_rows(folder: Path, count: int, process: "subprocess.Popen[str]") -> None:
    for _ in range(4000):
        files = list(folder.rglob("step*.jsonl"))
        if files and files[0].read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"no {count} rows in {folder}")


def holds_no_key(folder: Path, shown: str) -> None:
    """No file of the run, nor anything shown, has the key or a part of it."""
    parts = (KEY, KEY[:16], KEY[-16:])
    assert not [part for part in parts if part in shown]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not [part for part in parts if part.encode() in data], path


def run_with_kills(tmp_path: Path, requests: int) -> None:
    """Every row right, none doubled, none lost: faults in a fifth of the requests, two kills."""
    examples = requests // 4
    data = write_clues(tmp_path / "clues.jsonl", examples)
    script = Faulty()
    line = [
        f"task.data.path={data}",
        "cue=wait",
        "sampling.num_samples=2",
        f"backend.pace.start={LEVEL}",
        f"backend.pace.most={LEVEL}",
        f"run.root={tmp_path / 'out'}",
        f"run.cache_dir={tmp_path / 'cache'}",
    ]
    with Service(script) as service:
        for share in (0.25, 0.6):
            process = start(service.url, *line)
            wait_for_rows(tmp_path / "out", int(2 * examples * share), process)
            process.kill()
            process.communicate()
        shown = finish(start(service.url, *line))
    rows = rows_in(tmp_path / "out")
    assert len(rows) == 2 * examples == len({(r["example_id"], r["sample_idx"]) for r in rows})
    for row in rows:
        assert row["pass1"]["is_correct_pred"] and row["pass2"]["is_correct_pred"], row
        assert row["pass1"]["valid_tag_structure"] and not row["pass2"]["cue_prefilled"]
        assert row["usage"]["total_tokens"] == 2 * 18
    serials = [SERIAL.search(r[p]["output"])[1] for r in rows for p in ("pass1", "pass2")]  # type: ignore[index]
    assert len(set(serials)) == requests, "an answer was used twice"
    faults = sum(script.faults.values())
    assert faults > 0.15 * requests and len(script.faults) == 11
    assert script.good - requests <= 2 * LEVEL, "answers were paid and lost"
    assert f"{2 * examples} of {2 * examples} rows" in shown
    holds_no_key(tmp_path, shown)


def test_a_fifth_of_requests_fail_the_client_is_killed_twice_and_every_row_is_right(
    tmp_path: Path,
) -> None:
    """tests/servers does the same with 10,000 requests."""
    run_with_kills(tmp_path, 800)


def test_rows_say_who_answered_at_what_cost_and_why_entropy_is_null(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 3)
    with Service(Faulty(share=0.0)) as service:
        line = (f"task.data.path={data}", f"run.root={tmp_path}", "cue=wait")
        here(service.url, *line)
        url = service.url
    rows = rows_in(tmp_path)
    for row in rows:
        assert (row["backend"], row["endpoint"], row["model"]) == ("openai", url, "gpt-4o-mini")
        assert (row["deployment"], row["api_version"]) == ("gpt-4o-mini", None)
        first = row["pass1"]
        assert first["entropy"] is None and first["entropy_missing"]
        assert first["usage"] == {
            "prompt_tokens": 11,
            "completion_tokens": 7,
            "total_tokens": 18,
        }
        assert first["tokens_total"] == 7 and first["prompt_tokens"] == 11
        assert row["cost_usd"] == pytest.approx(2 * (11 * 0.15 + 7 * 0.6) / 1e6)
        assert (row["phases"], row["max_new_tokens"]) == ("single", 900)
    (path,) = tmp_path.rglob("run.json")
    record = json.loads(path.read_text())
    assert record["entropy"].startswith("null")
    about = record["attempts"][0]["backend"]
    assert about["completion_tokens"] == 6 * 7 and about["requests"] == 6
    assert about["cost_usd"] == pytest.approx(sum(row["cost_usd"] for row in rows))


def test_failed_rows_are_recorded_the_run_goes_on_and_a_rerun_asks_only_them(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 12)
    good = Faulty(share=0.0)
    broken = True

    def script(seen: Seen) -> Reply:
        clue = seen.body["messages"][1]["content"]
        bad = broken and clue.split()[-1].strip("()") in ("3", "7")
        return Reply(refusal(f"flagged; your key is {KEY}"), 400) if bad else good(seen)

    line = (f"task.data.path={data}", f"run.root={tmp_path}")
    with Service(script) as service:
        shown = here(service.url, *line, status=1)
        assert len(rows_in(tmp_path)) == 10
        (path,) = tmp_path.rglob("failures.jsonl")
        failed = [json.loads(row) for row in path.open()]
        assert {row["example_id"] for row in failed} == {"c3", "c7"}
        assert all("HTTP 400: flagged" in row["error"] for row in failed)
        holds_no_key(tmp_path, shown)
        broken = False
        asked = len(service.seen)
        here(service.url, *line)
        assert len(service.seen) == asked + 2
    assert len(rows_in(tmp_path)) == 12


def test_a_cue_added_later_asks_for_the_second_pass_alone(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 6)
    line = (f"task.data.path={data}", f"run.root={tmp_path}")
    with Service(Faulty(share=0.0)) as service:
        shown = here(service.url, *line)
        assert f"cost of this attempt: {6 * (11 * 0.15 + 7 * 0.6) / 1e6:.4g} USD" in shown
        before = {row["example_id"]: row["pass1"] for row in rows_in(tmp_path)}
        here(service.url, *line, "cue=wait")
        assert len(service.seen) == 6 + 6
        assert all(len(seen.body["messages"]) == 4 for seen in service.seen[6:])
    rows = rows_in(tmp_path)
    assert {row["example_id"]: row["pass1"] for row in rows} == before
    for row in rows:
        assert row["pass2"]["usage"]["total_tokens"] == 18 and row["usage"]["total_tokens"] == 36
        assert row["endpoint"] and row["deployment"] == "gpt-4o-mini"


def test_rows_without_a_second_pass_are_backfilled(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 4)
    with Service(Faulty(share=0.0)) as service:
        here(service.url, f"task.data.path={data}", f"run.root={tmp_path / 'out'}")
        (file,) = (tmp_path / "out").rglob("step*.jsonl")
        line = ("cue=wait", f"backfill.input={file}", f"backfill.output={tmp_path / 'all.jsonl'}")
        fixed = (f"task.data.path={data}", f"run.root={tmp_path / 'out'}")
        finish(start(service.url, *fixed, *line, door="backfill"))
        assert len(service.seen) == 4 + 4
    made = [json.loads(row) for row in (tmp_path / "all.jsonl").open(encoding="utf-8")]
    assert [row["pass1"] for row in made] == [row["pass1"] for row in rows_in(tmp_path / "out")]
    assert all(row["pass2"]["is_correct_pred"] for row in made)
    assert all(row["pass2"]["usage"]["total_tokens"] == 18 for row in made)


def test_more_failures_than_max_failed_end_the_run(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 200)
    with Service(lambda seen: Reply(refusal("no"), 400)) as service:
        line = (f"task.data.path={data}", f"run.root={tmp_path}", "run.max_failed=3")
        here(service.url, *line, "backend.pace.start=2", "backend.pace.most=2", status=1)
        assert len(service.seen) < 40


def test_a_wrong_key_ends_the_run_with_one_sentence_and_one_request(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    with Service(lambda seen: Reply(refusal(f"Incorrect key {KEY}"), 401)) as service:
        shown = here(service.url, f"run.root={tmp_path}", status=2)
        assert len(service.seen) == 1
    assert "error: openai at" in shown and "check the key" in shown
    assert "Traceback" not in shown
    holds_no_key(tmp_path, shown)


def test_without_a_key_the_run_names_the_variable(tmp_path: Path, here: Callable[..., str]) -> None:
    shown = here("http://127.0.0.1:9/v1", f"run.root={tmp_path}", key="", status=2)
    assert "OPENAI_API_KEY" in shown and "Traceback" not in shown


def test_the_budget_stops_before_it_is_passed_and_a_larger_one_goes_on(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 40)
    line = (f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7")
    one = (11 * 0.15 + 7 * 0.6) / 1e6
    with Service(Faulty(share=0.0)) as service:
        shown = here(service.url, *line, "run.budget=0.0003", status=130)
        rows = rows_in(tmp_path)
        spent = sum(row["cost_usd"] for row in rows)
        assert 0 < len(rows) < 40 and spent == pytest.approx(len(rows) * one)
        assert spent <= 0.0003 and len(rows) == len(service.seen)
        assert "run.budget" in shown
        here(service.url, *line, "run.budget=1")
        assert len(service.seen) == 40 == len(rows_in(tmp_path))


def test_a_budget_without_a_price_is_refused(tmp_path: Path, here: Callable[..., str]) -> None:
    line = (f"run.root={tmp_path}", "run.budget=1", "backend.deployment=unheard-of")
    shown = here("http://127.0.0.1:9/v1", *line, status=2)
    assert "run.budget must be null" in shown and "backend.prices" in shown


def test_a_filter_that_the_service_does_not_take_is_refused(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    line = (f"run.root={tmp_path}", "sampling.min_p=0.1")
    shown = here("http://127.0.0.1:9/v1", *line, status=2)
    assert "sampling.min_p must be 0 (off) with backend openai" in shown


def test_the_response_cache_is_off_and_free_when_on(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 5)
    with Service(Faulty(share=0.0)) as service:
        for name in ("a", "b"):
            line = (f"task.data.path={data}", f"run.root={tmp_path / name}")
            here(service.url, *line)
        assert len(service.seen) == 10
        for name in ("c", "d"):
            line = (f"task.data.path={data}", f"run.root={tmp_path / name}")
            here(service.url, *line, f"backend.response_cache={tmp_path / 'kept'}")
        assert len(service.seen) == 15
        line = (f"task.data.path={data}", f"run.root={tmp_path / 'e'}", "run.seed=7")
        here(service.url, *line, f"backend.response_cache={tmp_path / 'kept'}")
        assert len(service.seen) == 20
    again = rows_in(tmp_path / "d")
    assert [r["pass1"]["output"] for r in again] == [
        r["pass1"]["output"] for r in rows_in(tmp_path / "c")
    ]
    assert all(r["pass1"]["from_cache"] and r["cost_usd"] == 0 for r in again)


def without_usage(seen: Seen) -> Reply:
    body = Faulty(share=0.0).answer(seen.body, 4)
    del body["usage"]
    return Reply(body)


def test_an_answer_without_usage_has_no_cost_and_counts_at_its_worst(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 40)
    line = (f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7")
    with Service(without_usage) as service:
        here(service.url, *line, "run.budget=0.0003", status=130)
        asked = len(service.seen)
        rows = rows_in(tmp_path)
        assert 0 < len(rows) == asked < 40 and all(row["cost_usd"] is None for row in rows)
        here(service.url, *line, "run.budget=0.0003", status=130)
        assert len(service.seen) == asked, "what was set aside is remembered"


def test_requests_that_a_kill_cut_off_count_at_their_worst(tmp_path: Path) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 60)
    good = Faulty(share=0.0)

    def script(seen: Seen) -> Reply:
        return good(seen) if len(service.seen) < 10 else Reply(good(seen).body, hang=60)

    line = [f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7"]
    line += ["run.budget=0.1", "backend.retry.timeout=100"]
    with Service(script) as service:
        process = start(service.url, *line)
        wait_for_rows(tmp_path, 5, process)
        for _ in range(400):
            if service.active >= 5:
                break
            time.sleep(0.05)
        assert service.active >= 5
        process.kill()
        process.communicate()
    (reserved,) = tmp_path.rglob("reserved.jsonl")
    left = Reserved.read(reserved).usd
    assert left >= 5 * (11 * 0.15 + 7 * 0.6) / 1e6
    assert reserved.read_bytes().count(b"\n") == 1 and Reserved.read(reserved).usd == left


def test_the_first_interrupt_waits_for_paid_answers_and_what_the_second_drops_counts(
    tmp_path: Path,
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 60)
    good = Faulty(share=0.0)
    line = [f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7"]
    line += ["run.budget=0.1", "backend.retry.timeout=200"]

    def interrupted(times: int, hang: float) -> int:
        """The first request of a start, which goes alone, is answered at once."""
        num_before = len(service.seen)

        def script(seen: Seen) -> Reply:
            is_first = len(service.seen) == num_before + 1
            return Reply(good(seen).body, hang=0 if is_first else hang)

        service.script = script
        process = start(service.url, *line)
        while service.active < 5:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        finish(process, status=130, seconds=60)
        return len(service.seen) - num_before

    with Service(good) as service:
        num_paid = interrupted(1, hang=3)
        assert len(rows_in(tmp_path)) == num_paid >= 6
        assert not list(tmp_path.rglob("reserved.jsonl"))
        num_dropped = interrupted(2, hang=100) - 1
    assert len(rows_in(tmp_path)) == num_paid + 1
    (reserved,) = tmp_path.rglob("reserved.jsonl")
    assert num_dropped >= 5
    assert Reserved.read(reserved).usd >= num_dropped * (11 * 0.15 + 7 * 0.6) / 1e6


def test_a_price_above_the_table_ends_new_requests_under_a_budget(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 40)
    good = Faulty(share=0.0)

    def script(seen: Seen) -> Reply:
        body = good.answer(seen.body, 4)
        body["usage"]["cost"] = 0.25
        return Reply(body)

    with Service(script) as service:
        line = (f"task.data.path={data}", f"run.root={tmp_path}", "run.budget=0.01")
        shown = here(service.url, *line, status=2)
        assert len(service.seen) == 1
    assert "reports 0.25 USD" in shown and "backend.prices" in shown


def test_answers_that_cannot_be_used_are_counted(tmp_path: Path, here: Callable[..., str]) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 1)
    good = Faulty(share=0.0)

    def script(seen: Seen) -> Reply:
        bad = chat(None) if len(service.seen) < 3 else good.answer(seen.body, 4)
        return Reply(bad)

    with Service(script) as service:
        here(service.url, f"task.data.path={data}", f"run.root={tmp_path}")
    (row,) = rows_in(tmp_path)
    one = (11 * 0.15 + 7 * 0.6) / 1e6
    assert row["cost_usd"] == pytest.approx(one)
    assert row["discarded_usd"] == pytest.approx(2 * one)


def test_a_request_that_is_sent_again_stays_below_the_budget(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 2)
    line = (f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7")
    one = (11 * 0.15 + 7 * 0.6) / 1e6
    with Service(lambda seen: Reply(chat(None))) as service:
        here(service.url, *line, "run.budget=0.0003", status=130)
        assert len(service.seen) >= 2 and len(service.seen) * one <= 0.0003
    (reserved,) = tmp_path.rglob("reserved.jsonl")
    assert Reserved.read(reserved).usd == pytest.approx(len(service.seen) * one)


def test_answers_without_a_use_count_where_the_first_request_ends_the_run(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    def script(seen: Seen) -> Reply:
        return Reply(chat(None)) if len(service.seen) < 3 else Reply(refusal("no"), 401)

    with Service(script) as service:
        here(service.url, f"run.root={tmp_path}", "run.budget=1", status=2)
    (reserved,) = tmp_path.rglob("reserved.jsonl")
    assert Reserved.read(reserved).usd == pytest.approx(2 * (11 * 0.15 + 7 * 0.6) / 1e6)


def test_a_connection_cut_amid_an_answer_counts_at_its_worst(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 1)
    good = Faulty(share=0.0)

    def script(seen: Seen) -> Reply:
        return Reply(good.answer(seen.body, 4), cut=len(service.seen) < 2)

    with Service(script) as service:
        here(service.url, f"task.data.path={data}", f"run.root={tmp_path}")
    (row,) = rows_in(tmp_path)
    assert row["discarded_usd"] > 1000 * 0.6 / 1e6, "the whole cap"


@pytest.mark.parametrize(
    ("address", "overrides"),
    [
        (f"http://127.0.0.1:9/v1?api-key={KEY}", ()),
        ("http://127.0.0.1:9/v1", (f"+backend.connection.headers.Helicone-Auth={KEY}",)),
    ],
)
def test_a_credential_in_the_configuration_is_in_no_file_and_not_shown(
    tmp_path: Path, address: str, overrides: tuple[str, ...]
) -> None:
    shown = finish(start(address, f"run.root={tmp_path}", *overrides, key="k"), status=2)
    assert "must hold no" in shown and KEY not in shown and "Traceback" not in shown
    for path in (one for one in tmp_path.rglob("*") if one.is_file()):
        assert KEY.encode() not in path.read_bytes(), path
