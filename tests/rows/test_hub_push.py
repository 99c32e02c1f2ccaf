"""`launch/export_rows.py to=hub`: rows go to the hub only when asked, and privately."""

import json
from pathlib import Path

import pytest

from launch import export_rows
from tests.fakes.hub import Hub, local_hub
from tests.fakes.stored_rows import one, row, write_rows

REPOSITORY = "/api/datasets/somebody/answers"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "step0.jsonl", [json.dumps(row("1+1", 0, one(True)))])


def answering(hub: Hub, private: bool) -> None:
    """A hub that takes small files in the commit itself."""
    about = {"id": "somebody/answers", "private": private, "sha": "0" * 40}
    commit = {
        "commitUrl": f"{hub.url}/datasets/somebody/answers/commit/1",
        "commitOid": "1" * 40,
        "success": True,
    }
    files = [
        {
            "path": "data/train-00000-of-00001.parquet",
            "uploadMode": "regular",
            "shouldIgnore": False,
        }
    ]
    hub.answers |= {
        ("POST", "/api/repos/create"): (200, {}, {"url": f"{hub.url}/datasets/somebody/answers"}),
        ("GET", REPOSITORY): (200, {}, about),
        ("POST", f"{REPOSITORY}/preupload/main"): (200, {}, {"files": files}),
        ("POST", f"{REPOSITORY}/commit/main"): (200, {}, commit),
    }


def pushed(rows: Path, *more: str) -> int:
    line = ["to=hub", "out=somebody/answers", "schema=inferencer_documented", *more]
    return export_rows.main([str(rows), *line])


def test_a_push_is_private_and_whole(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with local_hub(monkeypatch, "hf_mine") as hub:
        answering(hub, private=True)
        assert pushed(rows) == 0, capsys.readouterr().err
    assert "pushed 1 rows" in capsys.readouterr().out
    (made,) = [body for _, path, body in hub.requests if path == "/api/repos/create"]
    said = json.loads(made)
    assert said["type"] == "dataset" and (said.get("private") or said["visibility"] == "private")
    assert any(path.startswith(f"{REPOSITORY}/commit/main") for _, path, _ in hub.requests)


def test_a_public_data_set_takes_no_private_rows(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with local_hub(monkeypatch, "hf_mine") as hub:
        answering(hub, private=False)
        assert pushed(rows) == 2
        assert not any("commit" in path for _, path, _ in hub.requests)
    assert "is a public data set: add private=false" in capsys.readouterr().err


def test_a_dry_push_asks_no_network(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with local_hub(monkeypatch) as hub:
        assert pushed(rows, "dry=true") == 0
        assert pushed(rows) == 2
        assert not hub.requests
    said = capsys.readouterr()
    assert "dry: would push 1 rows" in said.out and "private data set somebody/answers" in said.out
    assert "set HF_TOKEN in the environment" in said.err
