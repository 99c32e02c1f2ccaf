"""Runs over a real HTTP service that fails, through the real command line, killed on the way."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateways.faulty import Faulty, write_clues
from tests.gateways.running import KEY, finish, holds_no_key, rows_in, start, wait_for_rows
from tests.gateways.service import Reply, Seen, Service, refusal

SERIAL = re.compile(r"serial (\d+) end")
LEVEL = 64


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
