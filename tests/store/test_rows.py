"""The row store: whole lines, repair, one writer, last one wins."""

import resource
import signal
from pathlib import Path

import pytest

from pipeline.store.files import (
    StoreError,
    create_once,
    encode,
    read_lines,
    repair,
    write_atomically,
)
from pipeline.store.row_heads import Key
from pipeline.store.rows import open_rows


def row(example: str, sample: int = 0, **more: object) -> dict[str, object]:
    return {"example_id": example, "sample_idx": sample, **more}


def test_rows_come_back_whole_with_any_text(tmp_path: Path) -> None:
    rows = open_rows(tmp_path / "r.jsonl")
    text = 'é 漢 😀 \u2028 "quoted" \\boxed{1}\nnext'
    rows.append(row("a", text=text))
    rows.close()
    again = open_rows(tmp_path / "r.jsonl")
    assert again.read(Key("a", 0))["text"] == text
    assert len((tmp_path / "r.jsonl").read_bytes().splitlines()) >= 1
    again.close()


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_cut_and_the_rest_kept(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r.jsonl"
    whole = encode(row("a")) + encode(row("b"))
    path.write_bytes(whole + encode(row("c"))[:-cut])
    rows = open_rows(path)
    kept = {"a", "b"} | ({"c"} if cut == 1 else set())  # only its newline was missing
    assert {key.example_id for key in rows.lines} == kept
    rows.append(row("d"))
    rows.close()
    assert all(found is not None for _, found in read_lines(path))


def test_repair_handles_a_single_line_and_lines_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"torn": ')
    assert repair(path) == 9 and path.read_bytes() == b""
    long = encode(row("a", text="x" * 200_000))
    path.write_bytes(long + b'{"half": "' + b"y" * 150_000)
    repair(path)
    assert path.read_bytes() == long


def test_a_broken_line_in_the_middle_is_set_aside_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(encode(row("a")) + b"{broken}\n" + encode(row("b")))
    rows = open_rows(path)
    assert rows.index.num_broken == 1 and len(rows.lines) == 2
    rows.settle([Key("a", 0), Key("b", 0)])
    rows.close()
    assert path.read_bytes() == encode(row("a")) + encode(row("b"))
    assert path.with_name("r.jsonl.broken").read_bytes() == b"{broken}\n"


def test_a_later_row_replaces_the_earlier_and_settling_orders_them(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    rows = open_rows(path)
    for item in (row("b"), row("a", v=1), row("a", v=2), row("stranger")):
        rows.append(item)
    rows.settle([Key("a", 0), Key("b", 0)])
    rows.close()
    found = [item for _, item in read_lines(path)]
    assert found == [row("a", v=2), row("b"), row("stranger")]


def test_not_a_number_is_refused_since_no_reader_takes_it() -> None:
    with pytest.raises(ValueError):
        encode({"entropy": float("nan")})


def test_a_full_disk_is_a_sentence_and_leaves_whole_lines(tmp_path: Path) -> None:
    """The file-size limit of this process stands for the full disk."""
    path = tmp_path / "r.jsonl"
    rows = open_rows(path)
    rows.append(row("a"))
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot be written"):
            rows.append(row("b", text="x" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    rows.append(row("c"))
    rows.close()
    assert [item and item["example_id"] for _, item in read_lines(path)] == ["a", "c"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, [b"old"])

    def broken() -> object:
        yield b"new"
        raise RuntimeError("killed here")

    with pytest.raises(RuntimeError):
        write_atomically(path, broken())  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"


def test_half_a_surrogate_pair_leaves_a_file_that_is_utf_8_and_reads_back(tmp_path: Path) -> None:
    rows = open_rows(tmp_path / "r.jsonl")
    rows.append(row("a", text="half \ud83d, é"))
    assert rows.read(Key("a", 0))["text"] == "half \ud83d, é"
    rows.close()
    assert "é" in (tmp_path / "r.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [{"example_id": ["a"]}, {"example_id": None}, {"sample_idx": "0"}])
def test_an_object_without_a_key_is_set_aside_like_a_broken_line(
    tmp_path: Path, name: dict[str, object]
) -> None:
    path = tmp_path / "r.jsonl"
    odd = encode(row("a") | name)
    path.write_bytes(odd + encode(row("b")))
    rows = open_rows(path)
    assert rows.index.num_broken == 1 and set(rows.lines) == {Key("b", 0)}
    rows.settle([Key("b", 0)])
    rows.close()
    assert path.read_bytes() == encode(row("b"))
    assert path.with_name("r.jsonl.broken").read_bytes() == odd


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, [b"old"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(StoreError, match="run.json cannot be written: File too large"):
            write_atomically(path, [b"new" * 10])
        with pytest.raises(StoreError, match="other.json cannot be written"):
            create_once(tmp_path / "other.json", b"new" * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    assert path.read_bytes() == b"old"
