"""The live view, asked over HTTP as a browser asks it; nothing is written into the runs."""

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from launch import report
from launch.reporting.live import LiveRuns
from launch.reporting.server import serving
from launch.rows.stored_task import StoredTasks
from tests.fakes.stored_rows import write_rows
from tests.reporting.test_report import unpacked

NAME = "<img src=x onerror=alert(1)>"


def write_run(folder: Path, verdicts: list[bool]) -> Path:
    rows = [
        {"example_id": str(i), "sample_idx": 0, "task": "t", "step": 0}
        | {"pass1": {"is_correct_pred": right, "output": "plain"}}
        for i, right in enumerate(verdicts)
    ]
    write_rows(folder / "step0000_test.jsonl", rows)
    attempt = {"attempt": 1, "status": "stopped", "rows": 2, "tokens": 90, "seconds": 3.0}
    attempt |= {"host": "h", "pid": 1, "backend": {"cost_usd": 0.25}}
    spec = {"run": {"split": "test"}, "cue": {}, "model": {"path": "m"}}
    stored = {"step": 0, "rows_wanted": 8, "spec": spec, "attempts": [attempt]}
    (folder / "run.json").write_text(json.dumps(stored))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "outputs" / NAME / "step-0", [True, False, True, True])
    return tmp_path / "outputs"


@pytest.fixture
def port(root: Path) -> Iterator[int]:
    with serving(LiveRuns([root], (), 100, StoredTasks()), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def asked(port: int, path: str, method: str = "GET", host: str = "localhost") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": host})
    answer = connection.getresponse()
    if answer.status != 501:
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    return answer.status, answer.read().decode()


def key_in(page: str) -> str:
    return page.split('href="run/')[1].split('"')[0]


def test_the_list_tells_state_accuracy_rows_pace_and_cost_and_escapes_names(port: int) -> None:
    status, page = asked(port, "/")
    assert status == 200 and NAME not in page and "&lt;img src=x" in page
    for text in ("stopped", "75.0 %", "4 of 8", "30", "0.25"):
        assert f"<td>{text}</td>" in page


def test_a_cost_that_an_attempt_did_not_say_makes_the_sum_a_lower_bound(
    port: int, root: Path
) -> None:
    """A killed attempt says nothing of what it paid, and one without a price says null."""
    path = root / NAME / "step-0" / "run.json"
    stored = json.loads(path.read_text())
    silent = {"attempt": 2, "status": "killed", "host": "h", "pid": 1}
    silent |= {"rows": 0, "tokens": 0, "seconds": 1.0}
    for more in (silent, silent | {"backend": {"cost_usd": None}}):
        path.write_text(json.dumps(stored | {"attempts": [*stored["attempts"], more]}))
        assert "<td>≥ 0.25</td>" in asked(port, "/")[1]


def test_a_runs_page_follows_its_files_and_nothing_is_written_there(
    port: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.reporting.live.SECONDS_BETWEEN_READS", 0.0)
    before = sorted(root.rglob("*"))
    key = key_in(asked(port, "/")[1])
    status, page = asked(port, f"/run/{key}")
    assert status == 200 and 'id="piece-index"' in page and NAME not in page
    assert asked(port, f"/run/{key}")[1] == page
    write_run(root / NAME / "step-0", [True, False])
    assert asked(port, f"/run/{key}")[1] != page
    assert "50.0 %" in asked(port, "/")[1]
    assert sorted(root.rglob("*")) == before


def test_nothing_outside_of_the_folders_is_served(port: int, root: Path) -> None:
    outside = write_run(root.parent / "private" / "step-0", [True])
    (root / "linked").mkdir()
    for file in outside.iterdir():
        (root / "linked" / file.name).symlink_to(file)
    (root / "folder").symlink_to(outside)
    page = asked(port, "/")[1]
    assert page.count("run/") == 1 and "linked" not in page
    for path in ("/run/", "/run/../../etc/passwd", "/run/%2e%2e", "/etc/passwd", "/run/0" * 9):
        assert asked(port, path)[0] == 404
    assert asked(port, "/", host="evil.example")[0] == 403
    assert asked(port, "/", "POST")[0] == 501


def test_a_record_makes_no_file_outside_of_its_folder_be_read(
    port: int, root: Path, tmp_path: Path
) -> None:
    secret = "the row of somebody else"
    private = root.parent / "private" / "rows.jsonl"
    asked_of = {"path": str(private), "split": "test"}
    told = {"example_id": "e", "sample_idx": 0, "step": 0, "problem": secret, "question": secret}
    write_rows(private, [told | {"pass1": {"is_correct_pred": True, "output": secret}}])
    task = {"_target_": "components.tasks.qa.QuestionAnswering", "name": "qa", "data": asked_of}
    task |= {"columns": {"question": "question", "answer": None}, "system_prompt": None}
    task |= {"grader": "contains", "user_prompt": "{question}", "embedded": str(private)}
    for number, (step, split, node) in enumerate(
        [
            (0, "x/../../../private/rows", None),
            (0, str(private.with_suffix("")), None),
            ("../../private/rows.jsonl", "", None),
            (0, "test", task),
        ]
    ):
        folder = write_run(root / f"hostile{number}" / "step-0", [True])
        (folder / "step0000_x").mkdir()
        stored = json.loads((folder / "run.json").read_text()) | {"step": step}
        stored["spec"] |= {"run": {"split": split}} | ({"task": node} if node else {})
        stored["swept"] = {"path": [str(private)]}
        (folder / "run.json").write_text(json.dumps(stored))
    page = asked(port, "/")[1]
    assert page.count("<td>unreadable</td>") == 3 and "hostile3" in page and secret not in page
    found = 0
    for key in (part.split('"')[0] for part in page.split('href="run/')[1:]):
        status, text = asked(port, f"/run/{key}")
        saved = tmp_path / "page.html"
        saved.write_text(text)
        data = json.dumps([v for v in unpacked(saved).values() if isinstance(v, list | dict)])
        assert status == 200 and secret not in data
        found += "plain" in data
    assert found == 2


def test_a_run_that_cannot_be_read_hides_no_other(port: int, root: Path) -> None:
    (root / "torn").mkdir()
    (root / "torn" / "run.json").write_text('{"step": ')
    page = asked(port, "/")[1]
    assert "<td>unreadable</td>" in page and "75.0 %" in page


@pytest.mark.parametrize("wrong", [["-o", "x.html"], ["--title", "x"], ["--rows", "-1"]])
def test_what_serving_cannot_do_is_refused(
    root: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(root), "--serve", *wrong]) == 2
    assert "--" in capsys.readouterr().err
    assert report.main([str(root), "--port", "80"]) == 2
    assert "without --serve" in capsys.readouterr().err


def test_the_list_tells_runs_of_different_names_apart(root: Path, port: int) -> None:
    for name, folder in (("monday", "monday"), ("by/night", "by/night"), ("mine", "elsewhere")):
        made = write_run(root / folder / "math-m-T0.7-1" / "step-0", [True, False])
        record = json.loads((made / "run.json").read_text())
        record["spec"]["run"]["name"] = name
        (made / "run.json").write_text(json.dumps(record))
    _, page = asked(port, "/")
    for name in ("monday/", "by/night/", "mine: "):
        assert f">{name}math-m-T0.7-1/step-0</a>" in page
