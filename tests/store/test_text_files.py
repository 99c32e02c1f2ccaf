"""Text files that a key names."""

from pathlib import Path

import pytest

from launch.import_toml import _refuse_another
from launch.quantizing.measure import Check, Checks
from pipeline.spec import SpecError
from pipeline.store.files import read_text


def test_a_file_of_other_bytes_is_refused_with_its_key_and_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "latin [1]\n.txt"
    file.write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(SpecError, match="^run.manifest must name a file of UTF-8 text: convert it"):
        read_text(file, "run.manifest")
    with pytest.raises(SpecError, match="^check.text must name a file of UTF-8 text"):
        Check(text=str(file)).read()
    with pytest.raises(SpecError, match="^model.chat_template must name a file of text"):
        read_text(tmp_path, "model.chat_template")


def test_an_import_leaves_alone_what_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"\xff")
    with pytest.raises(SpecError, match="no import wrote"):
        _refuse_another(file)
    with pytest.raises(SpecError, match="no import wrote"):
        _refuse_another(tmp_path)


def test_lines_of_a_check_that_are_no_rows_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "checks.jsonl").write_text('{"key": ["a"]}\n[1]\n{"key": "k", "kl": 1}\n{"ke')
    assert list(Checks(tmp_path, Check(), "m").rows) == ["k"]
