"""`launch/backfill.py`: which rows get passes, the same ones a run would make, and what stays."""

import fcntl
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from launch import api
from launch import backfill as door
from launch.config.setup import setup_of
from launch.rows import backfill_target
from pipeline.backfill.missing_passes import Selection, scan, split_cues
from pipeline.spec import SpecError
from pipeline.store.files import StoreError
from pipeline.store.leases import Leases
from tests.fakes.configs import ROOT, composed
from tests.fakes.stored_rows import write_rows

WAIT = "Wait, let me reconsider. I will take this step by step."


def config_of(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("backfill", ["backend=echo", *overrides])


def fill(path: Path, *overrides: str) -> int:
    given = ["task=crossword", f"backfill.input={path}", *overrides]
    if not any(o.startswith(("backfill.output", "backfill.inplace")) for o in given):
        given.append("backfill.inplace=true")
    return door.backfill(config_of(*given))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(tmp_path: Path, *overrides: str) -> Path:
    """Rows of a run with the echo backend."""
    line = ["task=crossword", "backend=echo", "run.limit=3", "sampling.num_samples=2", *overrides]
    outcome = api.run(setup_of(composed(*line, f"run.root={tmp_path}"), line))
    assert outcome.status == 0
    return outcome.point.rows_path


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in ("seconds", "backfilled")}
        return value

    return {k: strip(v) for k, v in row.items() if k != "attempt"}


def old(question: Any, sample: Any, **more: Any) -> dict[str, Any]:
    """A row as the original wrote it: text only."""
    output = f"<think>I think of {question}{sample}</think>\n<answer>5</answer>"
    stops = {"stop_reason_think": "stop_token", "stop_reason_answer": "stop_token"}
    first = {"prev_output": None, "output": output, "is_correct_pred": False, **stops}
    row = {"problem": question, "gold_answer": "5", "step": 0, "split": "test"}
    return row | {"sample_idx": sample, "pass1": first, "pass2": None} | more


def said(cue: str) -> dict[str, Any]:
    output = f"<think>{cue} and so on</think>\n<answer>6</answer>"
    return {"output": output, "is_correct_pred": False, "prev_output": "x"}


def test_a_backfilled_file_holds_what_the_run_with_cues_would_have_written(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain")
    whole = run(tmp_path / "whole", "cue=reconsider_control")
    assert fill(plain, "cue=reconsider_control") == 0
    made, wanted = rows_of(plain), rows_of(whole)
    assert [without_time(r) for r in made] == [without_time(r) for r in wanted]
    assert set(made[0]["pass2a"]["backfilled"]) >= {"model", "seed", "temperature", "fingerprint"}


def test_an_added_cue_joins_those_that_are_there(tmp_path: Path) -> None:
    one, both = run(tmp_path / "one", "cue=wait"), run(tmp_path / "both", "cue=[wait,neutral]")
    before = rows_of(one)
    assert fill(one, "cue=[wait,neutral]") == 0
    assert rows_of(one) == before  # nothing lacks pass2
    assert fill(one, "cue=[wait,neutral]", "backfill.add=true") == 0
    assert [without_time(r) for r in rows_of(one)] == [without_time(r) for r in rows_of(both)]
    assert [r["pass2a"] for r in rows_of(one)] == [r["pass2"] for r in before]


def test_a_model_continues_from_the_stored_ids(
    tmp_path: Path, tiny_llama: Callable[..., Path]
) -> None:
    model = f"model.path={tiny_llama(initializer_range=0.1)}"
    line = ["backend=hf", "backend.device=cpu", "model=local", "quantization=fp32", model]
    line += ["sampling.think_cap=16", "sampling.answer_cap=6", "run.seed=3"]
    plain = run(tmp_path / "plain", *line)
    wanted = rows_of(run(tmp_path / "whole", *line, "cue=wait"))
    assert fill(plain, *line, "cue=wait") == 0
    for row, whole in zip(rows_of(plain), wanted, strict=True):
        assert row["pass2"]["token_ids"] == whole["pass2"]["token_ids"]
        assert row["pass2"]["entropy"] == pytest.approx(whole["pass2"]["entropy"], abs=1e-4)
        assert row["pass2"]["output"] == whole["pass2"]["output"]


def test_the_command_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    line = ["task=crossword", "backend=echo", "cue=wait", f"backfill.input={path}"]
    command = [sys.executable, str(ROOT / "launch/backfill.py"), *line]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "error: backfill must have either output=FILE or inplace=true" in refused.stderr
    command.append("backfill.inplace=true")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 rows get passes" in done.stdout and "1 rows with new passes" in done.stdout
    assert rows_of(path)[0]["pass2"]["cue"] == "wait"


def test_text_only_rows_of_the_original_get_passes_and_keep_everything_else(tmp_path: Path) -> None:
    kept = old("done", 0, pass2=said(WAIT), soft=[1, {"x": float("nan")}])
    path = write_rows(
        tmp_path / "step0000_test.jsonl", [old("What is 2+3?", 0, odd={"a": 1}), kept]
    )
    before = path.read_text().splitlines()
    assert fill(path, "cue=wait") == 0
    first, second = path.read_text().splitlines()
    assert second == before[1]
    row = json.loads(first)
    fields = row.pop("pass2")
    assert row == {k: v for k, v in json.loads(before[0]).items() if k != "pass2"}
    assert fields["prev_output"] == row["pass1"]["output"]
    assert fields["output"].startswith(f"<think>{WAIT} ")
    assert fields["cue"] == "wait" and fields["improved_over_pass1"] in (True, False)


def test_three_bars_join_cues(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    phrase = tmp_path / "phrase.txt"
    phrase.write_text(f"Hold on, this may be wrong. ||| ||| Actually, no.|||{WAIT}\n")
    assert fill(path, f"backfill.phrase_file={phrase}") == 0
    [row] = rows_of(path)
    texts = [row[name]["cue_text"] for name in ("pass2a", "pass2b", "pass2c", "pass2")]
    assert texts == ["Hold on, this may be wrong.", "Actually, no.", WAIT, WAIT]
    with pytest.raises(SpecError, match="1 to 26 cues"):
        split_cues(" ||| ")


def test_the_preferred_sample_of_the_group_is_shown_else_the_lowest(tmp_path: Path) -> None:
    rows = [old("q", 2), old("q", 1), old("q", 0, pass2=said("x")), old("r", 3), old("r", 2)]
    rows.append(old("q", 0, model="other", pass2=said("x")))
    path = write_rows(tmp_path / "step0.jsonl", rows)
    assert fill(path, "cue=wait", "run.pass1_sample=0") == 0
    shown = [row["pass2"]["prev_output"] for row in rows_of(path)]
    texts = [None if "think of" not in text else text.split("think of ")[1][:2] for text in shown]
    assert texts == ["q0", "q0", None, "r2", "r2", None]
    told = [row["pass2"].get("backfilled", {}).get("pass1_sample") for row in rows_of(path)]
    assert told == [0, 0, None, 2, 2, None]


def test_without_a_preferred_sample_each_row_reconsiders_its_own(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0), old("q", 1)])
    assert fill(path, "cue=wait") == 0
    assert all(r["pass2"]["prev_output"] == r["pass1"]["output"] for r in rows_of(path))
    assert all("pass1_sample" not in r["pass2"]["backfilled"] for r in rows_of(path))


@pytest.mark.parametrize(
    ("rules", "filled"),
    [
        ({}, [0, 1, 2, 3]),
        ({"filter": {"step": 50}}, [2, 3]),
        ({"filter": ["step=50", "sample_idx=1"]}, [3]),
        ({"filter": {"nothing": None}}, []),
        ({"max_rows": 1}, [0]),
        ({"max_problems": 1}, [0, 2, 3]),
        ({"max_problems": 1, "max_rows": 2}, [0, 2]),
        ({"pass_key": "pass1"}, []),
    ],
)
def test_filters_and_limits_choose_rows(
    tmp_path: Path, rules: dict[str, Any], filled: list[int]
) -> None:
    rows = [old("q", 0), old("r", 0), old("q", 0, step=50), old("q", 1, step=50)]
    path = write_rows(tmp_path / "step0.jsonl", rows)
    starts = [0, *itertools.accumulate(len(line) for line in path.open("rb"))]
    gaps = scan(path, Selection(**rules), split_cues(WAIT)).to_fill
    assert [starts.index(gap.offset) for gap in gaps] == filled


def test_a_filter_is_typed_as_a_mapping(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0), old("q", 0, step=50)])
    assert fill(path, "cue=wait", "backfill.filter={step:50}", "run.dry=true") == 0
    assert fill(path, "cue=wait", "backfill.filter={step:50}") == 0
    assert [bool(row["pass2"]) for row in rows_of(path)] == [False, True]


def test_force_replaces_passes_that_are_there(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0, pass2=said(WAIT), pass2a=said("x"))])
    assert fill(path, "cue=wait", "backfill.force=true") == 0
    [row] = rows_of(path)
    assert "backfilled" in row["pass2"] and row["pass2a"] == said("x")


def test_force_on_our_rows_replaces_the_cue_alone(tmp_path: Path) -> None:
    path = run(tmp_path, "cue=[wait,neutral]")
    before = rows_of(path)
    assert fill(path, "cue=wait", "backfill.force=true", "run.seed=7") == 0
    for was, now in zip(before, rows_of(path), strict=True):
        assert (
            now["pass2b"] == was["pass2b"]
            and now["pass2a"]["token_ids"] != was["pass2a"]["token_ids"]
        )
        assert now["pass2"]["output"] == now["pass2a"]["output"]


def test_a_cue_added_to_old_rows_takes_a_free_name(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0, pass2=said(WAIT), pass2a=said("x"))])
    assert fill(path, "cue=[wait,neutral]", "backfill.add=true") == 0
    [row] = rows_of(path)
    assert (row["pass2"], row["pass2a"]) == (said(WAIT), said("x"))
    assert row["pass2b"]["cue"] == "neutral"
    assert "pass2c" not in row


def test_in_place_keeps_the_first_original_and_no_lock(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0), old("r", 0)])
    original = path.read_bytes()
    assert fill(path, "cue=wait", "backfill.max_rows=1") == 0
    assert fill(path, "cue=wait") == 0
    backup = tmp_path / "step0.jsonl.bak_pass2"
    assert backup.read_bytes() == original
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step0.jsonl", "step0.jsonl.bak_pass2"]


def test_a_new_file_leaves_the_old_one_alone(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    before, out = path.read_bytes(), tmp_path / "new.jsonl"
    assert fill(path, "cue=wait", f"backfill.output={out}") == 0
    assert path.read_bytes() == before and rows_of(out)[0]["pass2"]
    assert fill(out, "cue=wait", f"backfill.output={tmp_path / 'copy.jsonl'}") == 0
    assert (tmp_path / "copy.jsonl").read_bytes() == out.read_bytes()


def test_a_file_that_holds_no_rows_is_not_replaced(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    precious = tmp_path / "thesis.md"
    precious.write_text("# Years of work")
    with pytest.raises(SpecError, match="backfill.output must name a new file, or rows"):
        fill(path, "cue=wait", f"backfill.output={precious}")
    assert precious.read_text() == "# Years of work"


def test_undecodable_lines_are_kept_aside_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "step0.jsonl", ["{torn", old("q", 0), "[1]"])
    assert fill(path, "cue=wait") == 0
    assert len(rows_of(path)) == 1
    assert (tmp_path / "step0.jsonl.broken").read_text() == "{torn\n[1]\n"
    assert "2 undecodable lines" in capsys.readouterr().out


def test_rows_that_lack_a_sample_a_problem_or_a_pass_1_are_counted_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blank = old("b", 0, pass1={"output": "  "})
    rows = [old("q", 0, sample_idx=None), old(3, 1), blank, old("q", "0")]
    path = write_rows(tmp_path / "step0.jsonl", rows)
    assert fill(path, "cue=wait") == 0
    assert "1 of 4 rows get passes; 3 lack them" in capsys.readouterr().out
    assert [bool(row["pass2"]) for row in rows_of(path)] == [False, False, False, True]


def test_gold_that_is_no_text_is_unknown(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0, gold_answer=5)])
    assert fill(path, "cue=wait") == 0
    assert rows_of(path)[0]["pass2"]["is_correct_pred"] is None


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    assert fill(path, "cue=wait", "run.dry=true") == 0
    assert "1 of 1 rows would get passes" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["step0.jsonl"]


def test_a_dry_run_of_several_writes_nothing_either(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    line = ["task=crossword", "backend=echo", "cue=wait,neutral", f"backfill.input={path}"]
    line += ["-m", "backfill.inplace=true", "run.dry=true"]
    command = [sys.executable, str(ROOT / "launch/backfill.py"), *line]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 of 1 rows would get passes") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["step0.jsonl"]


def test_a_cap_that_another_replaces_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    line = ["task=crossword", f"backfill.input={path}", "backfill.inplace=true"]
    line += ["task.think_cap=9", "sampling.think_cap=8"]
    with pytest.raises(SpecError, match=r"task\.think_cap must be left out"):
        door.backfill(config_of(*line), line)


def test_finished_rows_reach_the_file_every_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old(f"q{i}", 0) for i in range(5)])
    written: list[int] = []
    real = backfill_target.write_merged
    monkeypatch.setattr(
        backfill_target, "write_merged", lambda *a: written.append(real(*a)) or written[-1]
    )
    assert fill(path, "cue=wait", "backfill.flush_every=2") == 0
    assert written[-1] == 5 and len(written) == 3 and written[0] >= 2


def test_a_failed_backfill_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.backends.echo import Echo

    path = write_rows(tmp_path / "step0.jsonl", [old(f"q{i}", 0) for i in range(4)])
    calls: list[str] = []
    real = Echo.generate

    async def counting(self: Echo, request: Any) -> Any:
        calls.append(request.group.id)
        if len(calls) == 6:
            raise RuntimeError("down")
        return await real(self, request)

    monkeypatch.setattr(Echo, "generate", counting)
    assert fill(path, "cue=wait", "backend.capacity=1") == 1
    assert sum(bool(row["pass2"]) for row in rows_of(path)) == 3
    assert fill(path, "cue=wait", "backend.capacity=1") == 0
    assert all(row["pass2"] for row in rows_of(path))
    assert len(calls) == 4 * 2 + 1  # two phases a row, and the one that failed


def test_rows_of_another_model_are_refused_unless_allowed(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0, model="big")])
    with pytest.raises(SpecError, match="model must be big"):
        fill(path, "cue=wait")
    assert fill(path, "cue=wait", "backfill.other_model=true") == 0


def test_a_backfill_whose_run_folder_was_taken_over_while_it_was_paused_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(tmp_path)
    real, before = door.keep_original, path.read_bytes()

    def taken_over(*given: Any) -> Path:
        lease = max((path.parent / ".leases").glob("all.*"))
        next_one = lease.with_name(f"all.{int(lease.suffix[1:]) + 1}")
        next_one.write_text(json.dumps({"writer": "another-1-ab", "state": "held"}))
        return real(*given)

    monkeypatch.setattr(door, "keep_original", taken_over)
    with pytest.raises(StoreError, match="another process has taken .* over"):
        fill(path, "cue=wait")
    assert path.read_bytes() == before


def test_a_file_in_a_folder_that_shards_write_to_is_not_replaced(tmp_path: Path) -> None:
    path = run(tmp_path)
    writer = Leases(path.parent, 60)
    writer.enter()
    with pytest.raises(SpecError, match="is being written by process"):
        fill(path, "cue=wait")
    writer.close()
    assert fill(path, "cue=wait") == 0


def test_two_backfills_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    with (tmp_path / "step0.jsonl.backfill_pass2.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SpecError, match="is being backfilled"):
            fill(path, "cue=wait")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["cue=wait", "backfill.inplace=false"], "output=FILE or inplace"),
        (["cue=wait", "backfill.output=x"], "output=FILE or inplace"),
        (["cue=none"], "cue must name at least one cue"),
        (["cue=wait", "backfill.flush_every=0"], "flush_every"),
        (["cue=wait", "backfill.filter=[step]"], "backfill.filter"),
        (["cue=wait", "backfill.filter=3"], "backfill.filter must be"),
        (["cue=wait", "backfill.group_by=[]"], "backfill.group_by"),
        (["cue=wait", "backfill.inplace=false", "backfill.output=INPUT"], "backfill.output must"),
        (["backfill.phrase_file=nothing.txt"], "backfill.phrase_file must name a file"),
        (["cue=wait", "backfill.max_rows=0"], "backfill.max_rows"),
        (["cue=wait", "backfill.input=nothing.jsonl"], "backfill.input must name a file"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, line: list[str], sentence: str
) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    line = [word.replace("INPUT", str(path)) for word in line]
    with pytest.raises(SpecError, match=sentence):
        door.backfill(
            config_of("task=crossword", f"backfill.input={path}", "backfill.inplace=true", *line)
        )


def test_a_file_without_rows_is_refused_and_no_lock_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("no row\n")
    with pytest.raises(SpecError, match="backfill.input must hold rows"):
        fill(path, "cue=wait")
    assert list(tmp_path.iterdir()) == [path]


def test_the_groups_are_those_of_a_run() -> None:
    lists = [OmegaConf.load(ROOT / f"conf/{name}.yaml").defaults for name in ("config", "backfill")]
    of_run = [group for group in lists[0] if group != {"tracking": "none"}]
    assert of_run[1:] == list(lists[1])[1:]


def test_rules_default_to_the_originals() -> None:
    assert Selection().pass_key == "pass2"
    assert Selection().group_by == ["model", "suite", "temperature", "step", "split", "problem"]
