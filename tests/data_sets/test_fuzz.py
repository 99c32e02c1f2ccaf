"""Data readers on any bytes: records, or an error that names the file."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from components.data_sets.records import DataError, read_file
from tests.fakes.tasks import task

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([".jsonl", ".csv", ".txt", ".parquet", ".json"]), st.binary(max_size=120))
def test_any_bytes_are_records_or_a_named_error(suffix: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data{suffix}"
        path.write_bytes(data)
        try:
            records = read_file(str(path), "task.data.path")
        except DataError as error:
            assert str(path) in str(error)
        else:
            assert all(str(path) in record.where for record in records)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(["question", "answer", "choices", "id", "more"]), JSON))
def test_any_record_is_an_example_or_a_named_error(values: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.jsonl"
        path.write_text(json.dumps(values))
        settings = {"columns": {"choices": "choices"}, "data": {"path": str(path)}}
        try:
            (example,) = task("qa", **settings).examples()
        except DataError as error:
            assert f"{path}:1" in str(error)
        else:
            json.dumps(example.metadata, allow_nan=False).encode()
