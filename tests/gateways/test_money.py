"""`run.budget` holds, and whatever was or may have been paid is counted."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.run.budget import Reserved
from tests.gateways.faulty import Faulty, write_clues
from tests.gateways.running import finish, rows_in, start, wait_for_rows
from tests.gateways.service import Reply, Seen, Service, chat, refusal

ONE_USD = (11 * 0.15 + 7 * 0.6) / 1e6  # an answer of the service


def test_the_budget_stops_before_it_is_passed_and_a_larger_one_goes_on(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 40)
    line = (f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7")
    with Service(Faulty(share=0.0)) as service:
        shown = here(service.url, *line, "run.budget=0.0003", status=130)
        rows = rows_in(tmp_path)
        spent = sum(row["cost_usd"] for row in rows)
        assert 0 < len(rows) < 40 and spent == pytest.approx(len(rows) * ONE_USD)
        assert spent <= 0.0003 and len(rows) == len(service.seen)
        assert "run.budget" in shown
        here(service.url, *line, "run.budget=1")
        assert len(service.seen) == 40 == len(rows_in(tmp_path))


def test_a_budget_without_a_price_is_refused(tmp_path: Path, here: Callable[..., str]) -> None:
    line = (f"run.root={tmp_path}", "run.budget=1", "backend.deployment=unheard-of")
    shown = here("http://127.0.0.1:9/v1", *line, status=2)
    assert "run.budget must be null" in shown and "backend.prices" in shown


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
    assert left >= 5 * ONE_USD
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
    assert Reserved.read(reserved).usd >= num_dropped * ONE_USD


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
    assert row["cost_usd"] == pytest.approx(ONE_USD)
    assert row["discarded_usd"] == pytest.approx(2 * ONE_USD)


def test_a_request_that_is_sent_again_stays_below_the_budget(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 2)
    line = (f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7")
    with Service(lambda seen: Reply(chat(None))) as service:
        here(service.url, *line, "run.budget=0.0003", status=130)
        assert len(service.seen) >= 2 and len(service.seen) * ONE_USD <= 0.0003
    (reserved,) = tmp_path.rglob("reserved.jsonl")
    assert Reserved.read(reserved).usd == pytest.approx(len(service.seen) * ONE_USD)


def test_answers_without_a_use_count_where_the_first_request_ends_the_run(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    def script(seen: Seen) -> Reply:
        return Reply(chat(None)) if len(service.seen) < 3 else Reply(refusal("no"), 401)

    with Service(script) as service:
        here(service.url, f"run.root={tmp_path}", "run.budget=1", status=2)
    (reserved,) = tmp_path.rglob("reserved.jsonl")
    assert Reserved.read(reserved).usd == pytest.approx(2 * ONE_USD)


@pytest.mark.parametrize("moment", ["in the body", "before the body"])
def test_a_connection_cut_amid_an_answer_counts_at_its_worst(
    tmp_path: Path, here: Callable[..., str], moment: str
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 1)
    good = Faulty(share=0.0)

    def script(seen: Seen) -> Reply:
        is_cut = len(service.seen) < 2
        if moment == "in the body":
            return Reply(good.answer(seen.body, 4), cut=is_cut)
        return Reply(good.answer(seen.body, 4), dropped=is_cut)

    with Service(script) as service:
        here(service.url, f"task.data.path={data}", f"run.root={tmp_path}")
    (row,) = rows_in(tmp_path)
    assert row["discarded_usd"] > 1000 * 0.6 / 1e6, "the whole cap"


def test_shards_under_a_budget_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 10)
    line = [f"task.data.path={data}", f"run.root={tmp_path}", "run.budget=1", "run.shards=2"]
    with Service(Faulty(share=0.0)) as service:
        shards = [start(service.url, *line, f"run.shard={number}") for number in (0, 1)]
        shown = [finish(process, status=2) for process in shards]
        assert not service.seen
    rule = "run.budget must be null with run.shards above 1"
    assert all(rule in one and "run.shards at 1" in one for one in shown)


def test_processes_that_take_turns_in_a_folder_never_pass_the_budget_together(
    tmp_path: Path,
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 60)
    good = Faulty(share=0.0)
    line = [f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7"]
    line += ["run.budget=0.0003", "run.wait=true", "run.lease_seconds=2"]
    with Service(lambda seen: Reply(good(seen).body, delay=0.2)) as service:
        both = [start(service.url, *line) for _ in range(2)]
        shown = [finish(process, status=130) for process in both]
        num_rows = len(rows_in(tmp_path))
        assert num_rows == len(service.seen)
    assert 0 < num_rows * ONE_USD <= 0.0003
    assert all("run.budget of 0.0003 USD" in one for one in shown)


def test_what_shards_without_a_budget_paid_counts_under_a_later_one(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 60)
    good = Faulty(share=0.0)
    broken = True

    def script(seen: Seen) -> Reply:
        return Reply(refusal("no"), 400) if broken and len(service.seen) > 20 else good(seen)

    line = [f"task.data.path={data}", f"run.root={tmp_path}", "sampling.max_new_tokens=7"]
    with Service(script) as service:
        here(service.url, *line, "run.shards=2", "run.shard=0", "run.max_failed=0", status=1)
        num_paid = len(service.seen)
        broken = False
        budget = 20 * ONE_USD
        here(service.url, *line, f"run.budget={budget}", status=130)
        assert len(service.seen) == num_paid
