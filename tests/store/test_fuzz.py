"""Whatever stands in the files of a run folder, finished rows stay and errors are sentences."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.protocols import Generation
from pipeline.spec import SpecError
from pipeline.store.files import StoreError, encode, read_lines
from pipeline.store.journal import PASS1, Entry, open_journal
from pipeline.store.row_heads import Key, key_of
from pipeline.store.row_index import read_rows
from pipeline.store.rows import open_rows
from pipeline.store.run_record import RunRecord
from pipeline.store.stored_record import attempts_of, read_record

OURS = "f" * 64
ROW = {"example_id": "a", "sample_idx": 0}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
ROWS = st.builds(
    lambda name, sample, more: more | {"example_id": name, "sample_idx": sample},
    st.text(st.characters(), max_size=3),
    st.integers(0, 3),
    st.fixed_dictionaries(
        {"pass1": st.just({"output": "x", "tokens_total": 3})},
        optional={"text": st.text(), "fingerprint": st.just(OURS), "pass2": st.none(), "n": JSON},
    ),
)
GARBAGE = st.one_of(
    st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")),
    st.sampled_from(
        [b"", b"{", b"null", b"[" * 5000, b'{"x":' * 5000, b"\xef\xbb\xbf{}", b"\x00" * 9]
    ),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.builds(
        lambda name, value: json.dumps(
            {"example_id": "a", "sample_idx": 0} | {name: value}
        ).encode(),
        st.sampled_from(["example_id", "sample_idx"]),
        st.none() | st.lists(st.integers(), max_size=1),
    ),
)


def is_finite(row: dict[str, Any]) -> bool:
    try:
        encode(row)
    except ValueError:
        return False
    return True


def in_folder(check: Any, *args: Any) -> None:
    with TemporaryDirectory() as folder:
        check(Path(folder), *args)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS.filter(is_finite) | GARBAGE, max_size=8), st.integers(0, 40))
@example([{"example_id": "\ud83d", "sample_idx": 0, "pass1": {"output": "x"}}, b"[" * 5000], 0)
def test_every_whole_row_survives_whatever_stands_around_it(lines: list[Any], cut: int) -> None:
    in_folder(_rows_survive, lines, cut)


def _rows_survive(folder: Path, lines: list[Any], cut: int) -> None:
    path = folder / "step0000_test.jsonl"
    encoded = [encode(line) if isinstance(line, dict) else line + b"\n" for line in lines]
    torn = encode({"example_id": "torn", "sample_idx": 0, "pass1": {"output": "xyz" * 9}})[:cut]
    path.write_bytes(b"".join(encoded) + torn)
    expected = {key_of(line): line for line in lines if isinstance(line, dict)}
    rows = open_rows(path, fingerprint=OURS)
    kept = {key: rows.read(key) for key in rows.lines}
    assert {key: kept[key] for key in expected} == expected
    rows.append({"example_id": "new", "sample_idx": 0})
    rows.settle(list(expected))
    rows.close()
    settled = [row for _, row in read_lines(path)]
    assert None not in settled and len(settled) == len(kept | {Key("new", 0): None})
    assert {key_of(row): row for row in read_rows(path)} == kept | {
        Key("new", 0): {"example_id": "new", "sample_idx": 0}
    }


GENERATIONS = st.builds(
    Generation,
    token_ids=st.lists(st.integers(0, 9), max_size=3),
    text=st.text(st.characters(), max_size=5),
    finish_reason=st.sampled_from(["stop_token", "eos"]),
    entropies=st.none() | st.lists(st.floats(0, 9), max_size=3),
    backend_columns=st.dictionaries(st.text(max_size=3), st.integers()),
)
TORN_JOURNAL = b'{"example_id":"a","sample_idx":0,"pass":"pass1","pha'


@settings(max_examples=40, deadline=None)
@given(st.lists(GENERATIONS, max_size=4), st.lists(GARBAGE, max_size=3))
def test_a_journal_gives_back_every_generation_or_names_the_line(
    generations: list[Generation], garbage: list[bytes]
) -> None:
    in_folder(_journal_gives_back, generations, garbage)


def _journal_gives_back(folder: Path, generations: list[Generation], garbage: list[bytes]) -> None:
    journal = open_journal(folder, set(), "first")
    entries = [Entry(Key(f"e{index}", 0), PASS1, "think") for index in range(len(generations))]
    for entry, generation in zip(entries, generations, strict=True):
        journal.put(entry, generation)
        journal.put(entry, generation)
    journal.close(everything_finished=False)
    with journal.path.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in garbage) + TORN_JOURNAL)
    content = journal.path.read_bytes()
    try:
        again = open_journal(folder, set(), "second")
    except StoreError as error:
        assert "the line at byte" in str(error) and content.startswith(journal.path.read_bytes())
        return
    assert [again.get(entry) for entry in entries] == generations
    again.close(everything_finished=True)
    assert not list(folder.iterdir())


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_run_record_of_anything_is_read_or_refused_with_a_sentence(content: bytes) -> None:
    in_folder(_record_is_read_or_refused, content)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["attempt", "status", "rows", "x"]), JSON)) | JSON,
    JSON,
)
@example([{"attempt": 1, "status": "running", "rows": None}], None)
@example([{"attempt": 1, "status": "running"}], {"attempt": "x", "status": 1})
@example([{"attempt": 1e99, "status": "running"}], {"attempt": 2, "status": "running"})
def test_attempts_of_anything_are_read_or_refused_with_a_sentence(attempts: Any, own: Any) -> None:
    in_folder(_attempts_are_read_or_refused, attempts, own)


def _attempts_are_read_or_refused(folder: Path, attempts: Any, own: Any) -> None:
    record = {"fingerprint": OURS, "identity": {}, "attempts": attempts}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "attempt-2.json").write_text(json.dumps(own))
    made = RunRecord(folder, {"fingerprint": OURS, "identity": {}})
    try:
        made.open()
        made.start(0)
        made.fold()
        made.amend(set(), True, dict)
    except SpecError as error:
        assert "is no record of a run" in str(error)
    else:
        assert {attempt["status"] for attempt in attempts_of(folder)} & {"running", "killed"}


def _record_is_read_or_refused(folder: Path, content: bytes) -> None:
    (folder / "run.json").write_bytes(content)
    try:
        assert "attempts" in read_record(folder / "run.json")
    except SpecError as error:
        assert "is no record of a run" in str(error)
