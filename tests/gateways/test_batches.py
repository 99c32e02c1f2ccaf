"""The Batch API: submitted, polled, collected, taken up again after a kill."""

import asyncio
import json
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from components.backends.openai_api.backend import OpenAiBackend
from components.backends.openai_api.failures import GatewayError
from pipeline.protocols import BackendLostError, Generation, Request, StoppedError
from tests.gateways.asking import ask, backend, request
from tests.gateways.service import Body, Reply, Seen, Service, chat, refusal

FAST = (
    "backend.batch.enabled=true",
    "backend.batch.gather_seconds=0.1",
    "backend.batch.poll_seconds=0.05",
)


class BatchService:
    """Files and batches in memory. `polls` is how often a batch says that it is under way."""

    def __init__(self, polls: int = 2) -> None:
        self.files: dict[str, str] = {}
        self.batches: dict[str, Body] = {}
        self.polls = polls
        self.looked: Counter[str] = Counter()
        self.direct = 0
        self.spoil: dict[str, Body] = {}  # content -> the line that answers it, once
        self.refuse = False
        self.lost: set[str] = set()  # files that the service no longer has
        self.torn: str | None = None  # what stands in place of one line of the first output
        self.outage = (0, 0, 500)  # the first and the last look that fails, and the status
        self.refuse_field = ""  # lines that hold it are refused
        self._lock = threading.Lock()

    def __call__(self, seen: Seen) -> Reply:
        with self._lock:
            if seen.path.endswith("/chat/completions"):
                self.direct += 1
                return Reply(self.answer(seen.body))
            if seen.path == "/v1/files":
                return Reply(self.keep(seen.body["raw"]))
            if seen.path == "/v1/batches":
                return Reply(self.create(seen.body) if "endpoint" in seen.body else self.listed())
            name = seen.path.split("/")[3]
            if name in self.lost:
                return Reply(refusal("no such file"), 404)
            if seen.path.endswith("/content"):
                return Reply(text=self.files[name])
            if name not in self.batches:
                return Reply(refusal("no such batch"), 404)
            self.looked[name] += 1
            first, last, status = self.outage
            if first <= self.looked[name] <= last:
                return Reply(refusal("out of order"), status)
            return Reply(self.look(name))

    def answer(self, body: Body) -> Body:
        return chat(f"said {body['messages'][-1]['content']}")

    def keep(self, raw: str) -> Body:
        lines = re.findall(r'^\{"custom_id".*$', raw, flags=re.MULTILINE)
        name = f"file-{len(self.files)}"
        self.files[name] = "\n".join(lines)
        return {"id": name, "object": "file", "bytes": 1, "created_at": 1, "filename": "f"} | {
            "purpose": "batch",
            "status": "processed",
        }

    def create(self, body: Body) -> Body:
        name = f"batch-{len(self.batches)}"
        self.batches[name] = {
            "id": name,
            "object": "batch",
            "endpoint": body["endpoint"],
            "input_file_id": body["input_file_id"],
            "completion_window": body["completion_window"],
            "metadata": body["metadata"],
            "status": "failed" if self.refuse else "in_progress",
            "created_at": 1,
            "errors": {"data": [{"message": "too many tokens in queue"}]},
        }
        return self.batches[name]

    def listed(self) -> Body:
        return {"object": "list", "data": list(self.batches.values()), "has_more": False}

    def look(self, name: str) -> Body:
        batch = self.batches[name]
        if self.looked[name] > self.polls and batch["status"] == "in_progress":
            lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
            made = [json.dumps(self.line(one)) for one in lines]
            if self.torn is not None:
                made[1], self.torn = self.torn, None
            self.files[f"out-{name}"] = "\n".join(made)
            batch |= {"status": "completed", "output_file_id": f"out-{name}"}
        return batch

    def line(self, asked: Body) -> Body:
        content = asked["body"]["messages"][-1]["content"]
        if self.refuse_field in asked["body"]:
            body = refusal(f"Unsupported parameter: '{self.refuse_field}'", self.refuse_field)
            refused = {"response": {"status_code": 400, "body": body}}
            return {"custom_id": asked["custom_id"], "error": None} | refused
        done = {"status_code": 200, "body": self.answer(asked["body"])}
        return {"custom_id": asked["custom_id"], "error": None} | self.spoil.pop(
            content, {"response": done}
        )


def questions(count: int) -> list[Request]:
    return [request(f"q{i}", seed=i, stop=()) for i in range(count)]


def texts(found: list[Generation | BaseException]) -> list[str]:
    assert not [error for error in found if isinstance(error, BaseException)], found
    return [g.text for g in found if isinstance(g, Generation)]


def test_requests_go_in_one_file_and_every_answer_comes_back(tmp_path: Path) -> None:
    script = BatchService()
    with Service(script) as service:
        made = backend(service.url, tmp_path, *FAST)
        assert texts(ask(made, *questions(50))) == [f"said q{i}" for i in range(50)]
    assert script.direct == 1, "the first request goes directly, to learn what is refused"
    (batch,) = script.batches.values()
    assert len(script.files[batch["input_file_id"]].splitlines()) == 49
    assert batch["endpoint"] == "/v1/chat/completions" and batch["completion_window"] == "24h"
    assert not list(tmp_path.rglob("batches/*.json"))


def test_batches_cost_half_and_direct_requests_the_full_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with Service(BatchService()) as service:
        line = (*FAST, "backend.deployment=gpt-4o")
        made = backend(service.url, tmp_path, *line, kind="openai")
        found = ask(made, *questions(3))
    costs = [g.backend_columns["cost_usd"] for g in found if isinstance(g, Generation)]
    whole = (11 * 2.5 + 7 * 10) / 1e6
    assert costs == pytest.approx([whole, whole / 2, whole / 2]), "the first one goes directly"


async def until_submitted(made: OpenAiBackend, script: BatchService, asked: list[Request]) -> None:
    """Ask, and die once a batch is under way."""
    async with made:
        work = [asyncio.create_task(made.generate(one)) for one in asked]
        while not script.batches:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


def test_a_batch_under_way_is_taken_up_again_not_submitted_twice(tmp_path: Path) -> None:
    script = BatchService(polls=10**9)
    with Service(script) as service:
        asked = questions(20)
        asyncio.run(until_submitted(backend(service.url, tmp_path, *FAST), script, asked))
        assert len(script.batches) == 1
        script.polls = 0
        found = ask(backend(service.url, tmp_path, *FAST), *asked)
    assert texts(found) == [f"said q{i}" for i in range(20)]
    assert len(script.batches) == 1


def test_a_batch_whose_record_lacks_its_id_is_found_by_its_mark(tmp_path: Path) -> None:
    script = BatchService(polls=10**9)
    with Service(script) as service:
        asked = questions(5)
        asyncio.run(until_submitted(backend(service.url, tmp_path, *FAST), script, asked))
        (record,) = tmp_path.rglob("batches/*.json")
        record.write_text(json.dumps(json.loads(record.read_text()) | {"batch": None}))
        script.polls = 0
        assert len(texts(ask(backend(service.url, tmp_path, *FAST), *asked))) == 5
    assert len(script.batches) == 1


def test_a_batch_that_the_service_forgot_is_submitted_anew(tmp_path: Path) -> None:
    script = BatchService(polls=10**9)
    with Service(script) as service:
        asked = questions(5)
        asyncio.run(until_submitted(backend(service.url, tmp_path, *FAST), script, asked))
        script.batches.clear()
        script.polls = 0
        assert len(texts(ask(backend(service.url, tmp_path, *FAST), *asked))) == 5


@pytest.mark.parametrize(
    "line",
    [
        {"response": {"status_code": 500, "body": {}}},
        {"response": None, "error": {"code": "batch_expired", "message": "late"}},
        {"response": {"status_code": 200, "body": {"error": {"message": "upstream"}}}},
        {"response": {"status_code": 200, "body": chat(None)}},
        {"response": {"status_code": 200, "body": {"choices": []}}},
        {"response": {"status_code": 200, "body": None}},
        {"response": "nonsense"},
    ],
)
def test_a_line_without_an_answer_is_asked_in_the_next_batch(
    tmp_path: Path, line: dict[str, Any]
) -> None:
    script = BatchService()
    script.spoil["q3"] = line
    with Service(script) as service:
        found = ask(backend(service.url, tmp_path, *FAST), *questions(6))
    assert texts(found) == [f"said q{i}" for i in range(6)]
    inputs = [script.files[batch["input_file_id"]] for batch in script.batches.values()]
    assert [len(text.splitlines()) for text in inputs] == [5, 1]


def test_a_line_that_is_refused_fails_its_row_alone(tmp_path: Path) -> None:
    script = BatchService()
    script.spoil["q3"] = {"response": {"status_code": 400, "body": refusal("bad words")}}
    with Service(script) as service:
        found = ask(backend(service.url, tmp_path, *FAST), *questions(6))
    assert isinstance(found[3], GatewayError) and "bad words" in str(found[3])
    assert len(texts([g for g in found if g is not found[3]])) == 5


def test_a_refused_batch_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    script = BatchService()
    script.refuse = True
    with Service(script) as service:
        found = ask(backend(service.url, tmp_path, *FAST), *questions(4))
    assert all(isinstance(error, BackendLostError) for error in found[1:])
    assert "too many tokens in queue" in str(found[1])


def test_a_refused_batch_is_submitted_anew_by_a_rerun(tmp_path: Path) -> None:
    script = BatchService()
    script.refuse = True
    with Service(script) as service:
        ask(backend(service.url, tmp_path, *FAST), *questions(4))
        script.refuse = False
        assert len(texts(ask(backend(service.url, tmp_path, *FAST), *questions(4)))) == 4
    assert len(script.batches) == 2


def test_a_batch_that_a_person_cancelled_is_told_and_not_submitted_anew_at_once(
    tmp_path: Path,
) -> None:
    script = BatchService(polls=10**9)
    with Service(script) as service:
        asked = questions(5)
        asyncio.run(until_submitted(backend(service.url, tmp_path, *FAST), script, asked))
        script.batches["batch-0"]["status"] = "cancelled"
        found = ask(backend(service.url, tmp_path, *FAST), *asked[1:])
        assert all(isinstance(error, BackendLostError) for error in found)
        assert "batch-0" in str(found[0]) and "cancelled at the service" in str(found[0])
        assert len(script.batches) == 1
        script.polls = 0
        assert len(texts(ask(backend(service.url, tmp_path, *FAST), *asked))) == 5


def test_the_rows_of_a_lost_output_file_are_asked_again(tmp_path: Path) -> None:
    script = BatchService()
    script.lost.add("out-batch-0")
    with Service(script) as service:
        assert len(texts(ask(backend(service.url, tmp_path, *FAST), *questions(6)))) == 6
    assert len(script.batches) == 2 and not list(tmp_path.rglob("batches/*.json"))


@pytest.mark.parametrize("torn", ["", '{"custom_id": "', "null", '{"custom_id": 7}', "\x00"])
def test_a_blank_or_torn_line_costs_its_row_alone_which_is_asked_again(
    tmp_path: Path, torn: str
) -> None:
    script = BatchService()
    script.torn = torn
    with Service(script) as service:
        found = ask(backend(service.url, tmp_path, *FAST), *questions(6))
    assert texts(found) == [f"said q{i}" for i in range(6)]
    inputs = [script.files[batch["input_file_id"]] for batch in script.batches.values()]
    assert [len(text.splitlines()) for text in inputs] == [5, 1]


@pytest.mark.parametrize("status", [500, 429])
def test_an_outage_while_polling_is_waited_for_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    script = BatchService(polls=3)
    script.outage = (1, 12, status)
    with Service(script) as service:
        made = backend(service.url, tmp_path, *FAST, "backend.retry.retries=1")
        assert len(texts(ask(made, *questions(4)))) == 4
    assert len(script.batches) == 1
    if status == 500:
        assert "batch batch-0 cannot be looked at" in caplog.text


def test_a_refusal_that_teaches_does_not_hang_a_batch(tmp_path: Path) -> None:
    script = BatchService()
    script.refuse_field = "seed"
    with Service(script) as service:
        found = ask(backend(service.url, tmp_path, *FAST), *questions(12))
    assert texts(found) == [f"said q{i}" for i in range(12)]
    assert len(script.batches) == 2


def test_the_first_request_is_not_paid_twice_when_it_lies_in_a_batch(tmp_path: Path) -> None:
    script = BatchService(polls=10**9)
    with Service(script) as service:
        asked = questions(5)
        asyncio.run(until_submitted(backend(service.url, tmp_path, *FAST), script, asked))
        script.polls = 0
        assert len(texts(ask(backend(service.url, tmp_path, *FAST), *asked[1:]))) == 4
    assert script.direct == 1 and len(script.batches) == 1


def test_a_damaged_record_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gateways" / "batches"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"where": "http')
    with Service(BatchService()) as service:
        assert len(texts(ask(backend(service.url, tmp_path, *FAST), *questions(3)))) == 3
    assert "a.json is damaged" in caplog.text


def test_a_run_that_ends_leaves_its_batch_at_the_service(tmp_path: Path) -> None:
    script = BatchService(polls=10**9)

    async def ended(made: OpenAiBackend) -> list[Any]:
        async with made:
            tasks = [asyncio.create_task(made.generate(one)) for one in questions(12)]
            while not script.batches:
                await asyncio.sleep(0.01)
            made.send_no_more()
            return await asyncio.gather(*tasks, return_exceptions=True)

    with Service(script) as service:
        found = asyncio.run(ended(backend(service.url, tmp_path, *FAST)))
        assert [type(one) for one in found[1:]] == [StoppedError] * 11
        script.polls = 0
        again = ask(backend(service.url, tmp_path, *FAST), *questions(12)[1:])
    assert texts(again) == [f"said q{i}" for i in range(1, 12)] and len(script.batches) == 1
