"""The live view reads run folders alone: what is done, who works, what failed, what is left."""

import asyncio
import io
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from launch.config.setup import setup_of
from launch.status import main, table
from launch.sweeps.listing import write_listing
from launch.sweeps.point_status import Reader
from launch.sweeps.points import SweepPoint
from launch.sweeps.submitted_jobs import NOTE
from pipeline.run.session import open_now
from tests.fakes.configs import ROOT, composed
from tests.run.test_executor import Counting, go, point, rows_of, spec
from tests.store.test_shards import CUES, shard
from tests.test_run import run


def shown(root: Path) -> str:
    text = io.StringIO()
    Console(width=200, file=text).print(table(Reader([root]).points()))
    return text.getvalue()


def test_a_whole_point_one_under_way_and_one_that_stopped_are_told_apart(tmp_path: Path) -> None:
    go(point(spec(tmp_path / "whole/step-0", CUES)))
    session = open_now(shard(tmp_path / "shared/step-0"))
    example, sample = asyncio.run(session.next_trace())
    asyncio.run(session.run_trace(example, sample, 0, Counting()))
    session.folder.record.save()
    whole, shared = sorted(Reader([tmp_path]).points(), key=lambda p: p.state)
    assert (whole.state, whole.rows, whole.wanted) == ("complete", 12, 12)
    assert (shared.state, shared.rows, shared.wanted) == ("running", 1, 48)
    assert len(shared.writers) == 1 and shared.tokens_per_second > 0 and shared.seconds_left
    session.fail(example, 1, ValueError("no such thing"))
    session.close({})
    left = next(p for p in Reader([tmp_path]).points() if p.folder.parent.name == "shared")
    assert left.state == "failed" and left.error == "ValueError: no such thing"
    assert "1 of 2 points, 13 of 60 rows" in shown(tmp_path)
    assert "ValueError: no such thing" in shown(tmp_path)


def test_rows_that_wait_for_an_added_cue_are_still_to_do(tmp_path: Path) -> None:
    """Their lines are there from the start, and each is written once more: 3 lines, then 4 to 6."""
    go(point(spec(tmp_path / "step-0", samples=1, limit=3)))
    session = open_now(point(spec(tmp_path / "step-0", CUES, samples=1, limit=3)))
    for done in range(4):
        [found] = Reader([tmp_path]).points()
        assert (found.state, found.rows, found.wanted) == ("running", done, 3)
        if done < 3:
            example, sample = asyncio.run(session.next_trace())
            asyncio.run(session.run_trace(example, sample, done, Counting()))
    session.close({})
    [found] = Reader([tmp_path]).points()
    assert (found.state, found.rows) == ("complete", 3)


def test_rows_that_were_lost_after_the_end_are_noticed_and_make_a_manifest(tmp_path: Path) -> None:
    made = point(spec(tmp_path / "a/step-0", CUES))
    go(made)
    (made.folder / "overrides.yaml").write_text(
        "- task=math\n- run.manifest=old.tsv\n- run.seed=3\n"
    )
    manifest = tmp_path / "gaps.tsv"
    assert main([str(tmp_path), "--once", "--manifest", str(manifest)]) == 0
    assert manifest.read_text() == ""
    made.rows_path.write_bytes(b"".join(made.rows_path.read_bytes().splitlines(True)[:5]))
    assert main([str(tmp_path), "--once", "--manifest", str(manifest)]) == 0
    assert manifest.read_text() == "task=math\trun.seed=3\n"
    go(made)
    assert len(rows_of(made)) == 12 and Reader([tmp_path]).points()[0].state == "complete"


def test_points_of_a_sweep_that_have_not_begun_are_shown_and_make_a_manifest(
    tmp_path: Path,
) -> None:
    line = ("-m", "task=crossword", "backend=echo", "run.limit=3", "sampling.temperature=0,0.5,1")
    run(*line, f"run.root={tmp_path}/old", "run.name=a/b")
    root = (tmp_path / "old").rename(tmp_path / "moved")
    first, second, _ = (path.parent for path in sorted(root.rglob("run.json")))
    shutil.rmtree(first.parent)
    shutil.rmtree(second)
    second.mkdir()
    (second / NOTE).write_text("[]")
    for folder in (root, root / "a", root / "a/b"):
        states = [(p.state, p.rows, p.wanted) for p in Reader([folder]).points()]
        assert states == [("complete", 3, 3), ("not begun", 0, 3), ("submitted", 0, 3)]
    assert first.parent.name in shown(root) and "1 of 3 points, 3 of 9 rows" in shown(root)
    assert main([str(root), "--once", "--manifest", str(tmp_path / "gaps.tsv")]) == 0
    lines = (tmp_path / "gaps.tsv").read_text().splitlines()
    assert [next(o for o in line.split("\t") if "temperature" in o) for line in lines] == [
        f"sampling.temperature={t}" for t in (0, 0.5)
    ]
    assert Reader([second]).points() == []  # a point's own folder is asked about that point alone


def test_a_point_that_waits_for_its_checkpoint_is_shown_by_its_overrides(tmp_path: Path) -> None:
    config = composed("task=crossword", "backend=echo", "run.missing_checkpoint=wait")
    setup = setup_of(config, ["model.step=5"])
    sweep = tmp_path / ".sweeps/mine"
    sweep.mkdir(parents=True)
    write_listing(sweep, [SweepPoint(setup, problem="model.step must be there")])
    (tmp_path / "mine").mkdir()
    (waiting,) = Reader([tmp_path / "mine"]).points()
    assert (waiting.name, waiting.state) == ("model.step=5", "no checkpoint")
    assert "model.step must be there" in shown(tmp_path / "mine")


def test_an_attempt_that_was_killed_is_called_so(tmp_path: Path) -> None:
    made = point(spec(tmp_path / "a/step-0", CUES))
    go(made)
    record = json.loads((made.folder / "run.json").read_text())
    record["attempts"][-1]["status"] = "killed"
    (made.folder / "run.json").write_text(json.dumps(record))
    (ended,) = Reader([tmp_path]).points()
    assert ended.state == "complete"  # whatever became of its last writer, every row is there
    made.rows_path.write_bytes(b"".join(made.rows_path.read_bytes().splitlines(True)[:5]))
    (ended,) = Reader([tmp_path]).points()
    assert (ended.state, ended.rows, ended.wanted) == ("killed", 5, 12)


def test_into_a_pipe_it_prints_and_returns_while_rows_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    made = point(spec(tmp_path / f"{'long' * 30}/step-0", CUES))
    go(made)
    made.rows_path.write_bytes(b"".join(made.rows_path.read_bytes().splitlines(True)[:5]))
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "0 of 1 points, 5 of 12 rows" in said
    assert max(map(len, said.splitlines())) == 100
    script = f"{sys.executable} launch/status.py {tmp_path} | head -1"
    read = ["bash", "-o", "pipefail", "-c", script]
    done = subprocess.run(read, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_in_a_terminal_it_waits_for_a_first_run_and_ends_when_all_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "launch.status.table_console", lambda: Console(force_terminal=True, width=120)
    )
    made = point(spec(tmp_path / "a/step-0", CUES))
    start = threading.Timer(0.5, go, [made])
    start.start()
    assert main([str(tmp_path), "--seconds", "0.1"]) == 0
    start.join()
    text = capsys.readouterr().out
    assert "waiting for a first run.json" in text and "1 of 1 points" in text


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--once"]) == 2
