"""Reading rows: which files, which lines, which passes; ours and the original's."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.analysis import table
from pipeline.analysis.row_files import find
from pipeline.analysis.row_lines import LineDecoder
from pipeline.analysis.table import Table, load
from pipeline.spec import SpecError
from pipeline.store.row_index import index_rows
from tests.fakes.stored_rows import one, row, write_rows


def passes_of(found: Table) -> list[tuple[str, Any, bool]]:
    frame = found.passes
    cues = [None if cue is np.nan else cue for cue in frame["cue"].astype(object)]
    return list(zip(frame["pass"].astype(str), cues, frame["second"], strict=True))


def loaded(*rows: Any, path: Path, **more: Any) -> Table:
    return load(find([write_rows(path, rows)]), **more)


@pytest.mark.parametrize("folder", ["step50", "step-50", "tuned-step50", "base-step50"])
def test_both_spellings_of_a_step_folder_name_the_run_without_it(
    tmp_path: Path, folder: str
) -> None:
    path = tmp_path / "GRPO-math-temp-0.3" / folder / "step0050_test.jsonl"
    write_rows(path, [row("p", 0, one(True))])
    [file] = find([tmp_path])
    assert (file.run, file.step, file.temperature) == ("GRPO-math-temp-0.3", 50, 0.3)


@pytest.mark.parametrize(
    ("name", "temperature"),
    [("m-temp-0.0", 0.0), ("m-temp005", 0.05), ("m-temp07", 0.7), ("m-temp1", 1.0), ("m", None)],
)
def test_a_temperature_in_a_folder_name_counts_where_rows_have_none(
    tmp_path: Path, name: str, temperature: float | None
) -> None:
    path = tmp_path / name / "step0_test.jsonl"
    found = loaded(row("p", 0, one(True)), path=path)
    assert found.rows["temperature"].iloc[0] == pytest.approx(temperature, nan_ok=True) or (
        temperature is None and np.isnan(found.rows["temperature"].iloc[0])
    )


def test_files_are_found_by_their_path(tmp_path: Path) -> None:
    wanted = write_rows(tmp_path / "a/step-5/step0005_test.jsonl", [])
    write_rows(tmp_path / "a/step-5/journal-host-1.jsonl", [])
    write_rows(tmp_path / "a/step-5/failures.jsonl", [])
    write_rows(tmp_path / "a/step7/failures.jsonl", [])
    write_rows(tmp_path / "a/notes.jsonl", [])
    other = write_rows(tmp_path / "a/step-5/step0005_train.jsonl", [])
    assert [file.path for file in find([tmp_path])] == [wanted, other]
    assert [file.path for file in find([tmp_path], split="train")] == [other]
    with pytest.raises(SpecError, match="'dev' in their name"):
        find([tmp_path], split="dev")


def test_of_rows_with_one_key_in_a_folder_one_counts(tmp_path: Path) -> None:
    folder, both = tmp_path / "run/step-0", (one(True), one(True))
    more = [
        row("p", 0, *both),
        row("q", 0, one(True)),
        row("r", 0, one(False)),
        row("r", 0, one(True)),
    ]
    write_rows(folder / "step0000_test.jsonl", [row("p", 0, one(False)), row("q", 0, one(False))])
    write_rows(folder / "step0000_test.part-a.jsonl", more)
    write_rows(tmp_path / "other/step-0/step0000_test.jsonl", [row("p", 0, one(False))])
    found = load(find([tmp_path / "run"]))
    rights = {r["problem"]: r["pass1"]["is_correct_pred"] for _, r in found.stream()}
    # p: the part has one pass more. q: as many, so the first file's. r: the later line.
    assert rights == {"p": True, "q": False, "r": True}
    assert found.superseded == 3
    assert len(load(find([tmp_path])).rows) == 4  # other folders replace nothing


def test_a_row_keeps_its_own_step_and_falls_back_on_the_path(tmp_path: Path) -> None:
    rows = [
        row("p", 0, one(True), step=7),
        row("q", 0, one(True)),
        row("r", 0, one(True), step=None),
    ]
    found = loaded(*rows, path=tmp_path / "step0003_test.jsonl")
    assert list(found.rows["step"]) == [7, 3, 3]


def test_broken_lines_are_counted_and_blank_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "step0_test.jsonl"
    found = loaded(row("p", 0, one(True)), "", "{torn", "[1]", row("q", 0, one(False)), path=path)
    assert (len(found.rows), found.broken) == (2, 2)
    assert [found.row(index)["problem"] for index in found.rows.index] == ["p", "q"]


def test_three_cues_of_the_original_are_three_passes_and_the_last_is_pass_2(tmp_path: Path) -> None:
    last = one(True, 0.3)
    extra = {"pass2a": one(False, 0.1), "pass2b": one(False, 0.2), "pass2c": last}
    found = loaded(row("p", 0, one(False), last, **extra), path=tmp_path / "step0.jsonl")
    assert passes_of(found) == [
        ("pass1", None, False),
        ("pass2a", "pass2a", False),
        ("pass2b", "pass2b", False),
        ("pass2c", "pass2c", True),
    ]


def test_two_cues_of_the_originals_math_are_pass2a_and_pass2(tmp_path: Path) -> None:
    made = row("p", 0, one(False), one(True, 0.3), pass2a=one(False, 0.1))
    found = loaded(made, path=tmp_path / "step0.jsonl")
    assert [(name, second) for name, _, second in passes_of(found)] == [
        ("pass1", False),
        ("pass2a", False),
        ("pass2", True),
    ]


def test_without_pass2_the_original_takes_c_then_b_then_a(tmp_path: Path) -> None:
    made = row("p", 0, one(False), {}, pass2a=one(False, 0.1), pass2b=one(True, 0.2))
    found = loaded(made, path=tmp_path / "step0.jsonl")
    assert [name for name, _, second in passes_of(found) if second] == ["pass2b"]


def test_our_pass2_is_known_as_a_repetition_by_its_cue_even_when_numbers_differ(
    tmp_path: Path,
) -> None:
    cues = [{"cue": name, "cue_hash": name, "control": name == "n"} for name in "abn"]
    a, b, n = (one(True, i / 10, **cue) for i, cue in enumerate(cues))
    made = row("p", 0, one(False), b | {"entropy": 0.5}, pass2a=a, pass2b=b, pass2c=n)
    found = loaded(made, path=tmp_path / "step0.jsonl")
    assert passes_of(found)[1:] == [
        ("pass2a", "a", False),
        ("pass2b", "b", True),
        ("pass2c", "n", False),
    ]
    assert list(found.passes["control"]) == [False, False, False, True]


def test_soft_reward_with_a_blank_unknown_keys_and_nan_are_read(tmp_path: Path) -> None:
    blank = one(True) | {"soft reward": 0.25, "shift_in_reasoning_v1": True, "new": {"x": [1]}}
    nan = '{"problem": "q", "sample_idx": 1, "pass1": {"entropy": NaN, "soft_reward": 0.5}}'
    found = loaded(row("p", 0, blank), nan, path=tmp_path / "step0.jsonl")
    assert list(found.passes["soft"]) == [0.25, 0.5]
    assert list(found.passes["judged_shift"])[0] == 1
    assert np.isnan(found.passes["entropy"]).all()
    assert found.broken == 0


def test_fields_of_other_types_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    odd = {"is_correct_pred": "1", "entropy": "0.5", "tokens_total": [1], "pred_answer": 12}
    made = row("p", 0, odd, step="7", example_id=3.0)
    found = loaded(made, path=tmp_path / "step0.jsonl")
    assert found.rows["step"].tolist() == [7]
    [fields] = found.passes.to_dict("records")
    assert (fields["correct"], fields["entropy"], fields["no_answer"]) == (1, 0.5, 0)
    assert np.isnan(fields["tokens"])


def test_a_legacy_row_is_one_pass_without_a_verdict(tmp_path: Path) -> None:
    made = {
        "problem": "p",
        "step": 0,
        "split": "train",
        "sample_idx": 0,
        "output": "x",
        "entropy": 1,
    }
    found = loaded(made, path=tmp_path / "step0.jsonl")
    [fields] = found.passes.to_dict("records")
    assert fields["entropy"] == 1 and np.isnan(fields["correct"])


def test_spans_and_processes_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        row(f"clue {i // 3} ü", i % 3, one(i % 2 == 0, i / 7, cue="x" * (i % 40)), one(True, i))
        for i in range(300)
    ]
    path = write_rows(tmp_path / "step0_test.jsonl", [*rows[:150], "{", *rows[150:]])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    whole = load(find([path]))
    monkeypatch.setattr(table, "SPAN_BYTES", 1000)
    for workers in (1, 2):
        cut = load(find([path]), workers=workers)
        assert cut.rows.equals(whole.rows) and cut.broken == whole.broken == 1
        assert cut.passes.astype({"cue": object}).equals(whole.passes.astype({"cue": object}))
    assert [r for _, r in whole.stream()] == rows == [json.loads(json.dumps(r)) for r in rows]


def test_the_lenient_way_reads_what_the_fast_way_reads() -> None:
    made = row("p", 2, one(True, 0.5, tokens_total=3, **{"soft reward": 0.1}), one(False), step=4)
    lines = LineDecoder(("subject",))
    for more in ({}, {"subject": "a"}, {"metadata": {"subject": [1]}}, {"grader": {"a": 1}}):
        encoded = msgspec.json.encode(made | more)
        assert lines.lenient(made | more) == lines.decode(memoryview(encoded))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=5),
        min_size=1,
        max_size=3,
    )
)
def test_the_same_lines_count_for_summaries_and_for_a_run_that_goes_on(
    tmp_path: Path, files: list[list[tuple[str, int]]]
) -> None:
    folder = tmp_path / "step-0"
    shutil.rmtree(folder, ignore_errors=True)
    paths = []
    for number, lines in enumerate(files):
        path = folder / f"step0000_test.part-{number}.jsonl"
        rows = [row(e, 0, one(True, float(i)), example_id=e) for i, (e, _) in enumerate(lines)]
        most: dict[str, int] = {}
        for stored, (example, count) in zip(rows, lines, strict=True):
            # A later line of a file never has fewer passes: runs and backfills add to a row.
            most[example] = max(most.get(example, 0), count)
            stored |= {
                f"pass2{'abc'[n]}": one(False, cue_hash=str(n)) for n in range(most[example])
            }
        paths.append(write_rows(path, rows))
    index = index_rows(paths)
    table = load(find(paths))
    owner = {i: table.files[f].path for i, f in table.rows["file"].items()}
    counted = {(owner[i], int(at)) for i, at in table.rows["offset"].items()}
    assert counted == {(place.path, place.line.offset) for place in index.places.values()}
    assert table.superseded == index.num_superseded
