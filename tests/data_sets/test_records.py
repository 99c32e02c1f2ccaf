"""Data sets: every way in, and every bad input named with its file and line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from components.data_sets.columns import pick
from components.data_sets.records import DataError, Record, examples, load, source
from pipeline.protocols import Example
from pipeline.spec import SpecError
from tests.fakes.tasks import task

GOOD = {"problem": "1+1?", "answer": "2"}


def jsonl(path: Path, rows: list[Any]) -> None:
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), "utf-8"
    )


def csv(path: Path, rows: list[Any]) -> None:
    pd.DataFrame(rows).to_csv(path, index=False)


def parquet(path: Path, rows: list[Any]) -> None:
    pd.DataFrame(rows).to_parquet(path)


WRITERS: dict[str, Callable[[Path, list[Any]], None]] = {
    ".jsonl": jsonl,
    ".csv": csv,
    ".parquet": parquet,
}


@pytest.fixture(params=list(WRITERS))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[Any]], Path]:
    def write(rows: list[Any]) -> Path:
        path = tmp_path / f"data{request.param}"
        WRITERS[request.param](path, rows)
        return path

    return write


def line(path: Path, row: int) -> str:
    """Where row `row` (from 1) stands: the header of a CSV is a line of its own."""
    return f"{path}:{row + (path.suffix == '.csv')}"


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        task("math", data={"path": str(path)}, **settings).examples()
    return str(caught.value)


def test_every_format_gives_the_same_examples(written: Callable[[list[Any]], Path]) -> None:
    path = written([{"id": "a", **GOOD}, {"id": "b", "problem": "Accents: é?", "answer": "3"}])
    loaded = task("math", data={"path": str(path)}).examples()
    assert [(e.id, e.question, str(e.target)) for e in loaded] == [
        ("a", "1+1?", "2"),
        ("b", "Accents: é?", "3"),
    ]


def test_a_wrong_column_is_named(written: Callable[[list[Any]], Path]) -> None:
    path = written([GOOD])
    message = refusal(path, columns={"question": "qestion"})
    assert line(path, 1) in message and "'qestion'" in message
    assert "problem" in message and "task.columns.question" in message


def test_a_null_is_named(written: Callable[[list[Any]], Path]) -> None:
    path = written([GOOD, {"problem": None, "answer": "3"}])
    message = refusal(path)
    assert line(path, 2) in message and "null" in message and "task.columns.question" in message


def test_a_null_answer_is_named(written: Callable[[list[Any]], Path]) -> None:
    path = written([GOOD, GOOD, {"problem": "q", "answer": None}])
    assert line(path, 3) in refusal(path)


def test_mixed_types_are_named_where_text_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    for bad in (7, True, ["q"], {"q": 1}):
        jsonl(path, [GOOD, {"problem": bad, "answer": "3"}])
        message = refusal(path)
        assert f"{path}:2" in message and repr(bad) in message and type(bad).__name__ in message


def test_a_nested_parquet_cell_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    parquet(path, [{"problem": ["q", "r"], "answer": "1"}])
    assert f"{path}:1" in refusal(path)


def test_numbers_are_answers_and_zero_counts(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    jsonl(path, [{"problem": "q", "answer": 0}, {"problem": "r", "answer": 1.5}])
    assert [e.target for e in task("math", data={"path": str(path)}).examples()] == ["0", "1.5"]
    jsonl(path, [{"problem": "q", "answer": True}])
    assert f"{path}:1" in refusal(path)


def test_a_blank_question_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    jsonl(path, [{"problem": "  ", "answer": "1"}])
    assert f"{path}:1" in refusal(path) and "blank" in refusal(path)


@pytest.mark.parametrize("broken", ['{"problem": "q", "ans', "[1, 2]", "not json", '"text"'])
def test_a_broken_line_is_named_with_its_number(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "data.jsonl"
    jsonl(path, [GOOD, "", broken, GOOD])
    message = refusal(path)
    assert f"{path}:3" in message and "JSON object" in message


def test_a_csv_line_with_too_many_or_few_fields_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    for bad in ("c,d,e", "c"):
        path.write_text(f"problem,answer\na,b\n{bad}\n")
        assert f"{path}:3" in refusal(path)


def test_a_csv_with_an_open_quote_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('problem,answer\na,"b\n')
    assert f"{path}:" in refusal(path) and "CSV" in refusal(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.jsonl", None, "no"),
        ("data.xlsx", b"x", "end in"),
        ("data.parquet", b"not parquet", "not a Parquet file"),
        ("data.jsonl", b"", "no record"),
        ("data.jsonl", b"\n\n", "no record"),
        ("data.csv", b"problem,answer\n", "no record"),
        ("data.jsonl", b'{"problem": "\xff"}', "cannot be read"),
    ],
)
def test_a_file_that_cannot_serve_is_named(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    message = refusal(path)
    assert str(path) in message and says in message and "task.data.path" in message


def test_a_hub_id_that_cannot_be_loaded_names_every_mirror(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        task("math", data={"hub": ["nobody/no-such-set", "nobody/no-such-mirror"]}).examples()
    message = str(caught.value)
    assert "nobody/no-such-set" in message and "nobody/no-such-mirror" in message
    assert "task.data.hub" in message


def test_a_hub_set_is_read_and_its_rows_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "owner" / "name" / "data"
    folder.mkdir(parents=True)
    parquet(folder / "test-00000-of-00001.parquet", [GOOD, {"problem": None, "answer": "3"}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"owner/name\[test\]:2.*null"):
        task("math", data={"hub": "owner/name"}).examples()
    mirrors = ["nobody/gone", "owner/name"]
    rows = load(source({"hub": mirrors}))
    assert rows[0].where == "owner/name[test]:1" and rows[0].values["answer"] == "2"


@pytest.mark.parametrize(
    ("data", "names"),
    [({"pth": "x"}, "pth"), ({"path": "x", "hub": "y"}, "not both")],
)
def test_a_misspelt_or_double_source_is_refused(data: dict[str, Any], names: str) -> None:
    with pytest.raises(SpecError, match=names):
        source(data)


def test_a_misspelt_column_key_is_refused() -> None:
    with pytest.raises(SpecError, match="task.columns has no key 'qestion'"):
        task("math", columns={"qestion": "x"})


def test_own_ids_win_and_duplicates_are_marked() -> None:
    drafts = [Example("a", "1"), Example("a", "2"), Example("a#2", "3"), Example("a", "4")]
    assert [e.id for e in examples(drafts)] == ["a", "a#2", "a#2#2", "a#3"]


def test_ids_without_own_come_from_content_and_not_from_place() -> None:
    one, two = Example("", "q1", "a"), Example("", "q2", "a")
    first, second = examples([one, two]), examples([two, one])
    assert [e.id for e in first] == [e.id for e in reversed(second)]
    assert examples([one])[0].id != examples([Example("", "q1", "b")])[0].id
    assert [e.id for e in examples([one, one])][1].endswith("#2")


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (["a.b.c"], 1),
        (["a.b"], {"c": 1}),
        (["x.y"], 2),
        (["none", "a.b.c"], 1),
        (["a.none"], None),
        (["zero"], 0),
        (["nothing", "zero"], 0),
    ],
)
def test_dotted_names_go_into_nested_columns(names: list[str], value: object) -> None:
    record = Record({"a": {"b": {"c": 1}}, "x.y": 2, "zero": 0, "nothing": None}, "here:1")
    assert pick(record, names) == value


@pytest.mark.parametrize(
    "bad",
    [
        '{"problem": "q", "answer": ' + "9" * 5000 + "}",
        "[" * 100_000,
        '{"problem": "half \\ud800", "answer": "1"}',
        '{"id": "\\udfff", "problem": "q", "answer": "1"}',
        '{"problem": "q", "answer": NaN}',
        '{"problem": "q", "answer": 1e999}',
    ],
    ids=["long number", "deep", "half a pair", "half a pair as id", "NaN", "infinity"],
)
def test_json_that_no_run_can_take_is_named_with_its_line(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "data.jsonl"
    jsonl(path, [GOOD, bad])
    assert f"{path}:2" in refusal(path)


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + (json.dumps(GOOD) + "\r\n").encode() * 2)
    made = task("math", data={"path": str(path)}).examples()
    assert [example.question for example in made] == ["1+1?", "1+1?"]


@pytest.mark.parametrize("column", [5, {"a": 1}, [5]])
def test_a_column_that_is_no_name_is_refused(tmp_path: Path, column: Any) -> None:
    path = tmp_path / "data.jsonl"
    jsonl(path, [GOOD])
    with pytest.raises(SpecError, match="task.columns.question"):
        task("math", data={"path": str(path)}, columns={"question": column}).examples()


def test_columns_that_no_field_uses_live_on_in_the_examples_metadata(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    row = {"problem": "q", "answer": "1", "solution": "s", "level": 3, "meta": {"a": [1, None]}}
    path.write_text(json.dumps({**row, "empty": None, "half": "\ud800", "nan": float("nan")}))
    (example,) = task("math", data={"path": str(path)}).examples()
    kept = {"solution": "s", "level": 3, "meta": {"a": [1, None]}, "half": "?"}
    assert example.metadata["metadata"] == kept
    keep = {"keep": ["level", "meta.a"]}
    (example,) = task("math", data={"path": str(path)}, columns=keep).examples()
    assert example.metadata["metadata"] == {"level": 3, "meta.a": [1, None]}
    (example,) = task("math", data={"path": str(path)}, columns={"keep": []}).examples()
    assert "metadata" not in example.metadata
    with pytest.raises(DataError, match=r"d.jsonl:1.*levle.*task.columns.keep"):
        task("math", data={"path": str(path)}, columns={"keep": "levle"}).examples()


def test_half_a_surrogate_pair_in_choices_or_golds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    for name in ("choices", "answer"):
        row = {"question": "q", "answer": "A", "choices": ["a"], name: ["a", "\ud800"]}
        path.write_text(json.dumps(row))
        with pytest.raises(DataError, match=rf"d.jsonl:1.*task.columns.{name}.*surrogate"):
            task("qa", data={"path": str(path)}, columns={"choices": "choices"}).examples()
