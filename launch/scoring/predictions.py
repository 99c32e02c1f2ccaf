"""Predictions to be scored: rows of runs, or any file that holds responses and references."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.data_sets.columns import has, pick
from components.data_sets.records import DataError, Record, read_file
from pipeline.analysis.row_files import find, parse
from pipeline.analysis.table import load
from pipeline.spec import SpecError

INFERENCER_FILE = "inferencer_output.jsonl"
FIELDS = ("question", "response", "reference")
# Columns of rows of a run, of which PASS is the pass that is scored, and of other files.
OF_ROWS = {
    "question": ("problem",),
    "response": ("PASS.pred_answer", "PASS.output"),
    "reference": ("gold_answer",),
}
OF_FILES = {
    "question": ("user_prompt", "question", "problem"),
    "response": ("assistant_response", "predicted_answer", "response", "prediction"),
    "reference": ("ground_truth", "reference", "gold_answer", "target"),
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """One response, and the texts that it should be like.

    `key` is its own among all that are read together; samples of one `example` share that. `run` is
    the run's or the file's name.
    """

    key: str
    run: str
    example: str
    sample: int
    question: str
    response: str
    references: tuple[str, ...]
    where: str


@dataclass(slots=True)
class Predictions:
    """What was read, and how many rows had nothing to score."""

    rows: list[Prediction] = field(default_factory=list)
    without_pass: int = 0
    broken: int = 0


def read(
    roots: Sequence[str], pass_name: str = "pass1", named: Mapping[str, str] | None = None
) -> Predictions:
    """Predictions of run folders, row files, and files with one prediction a record.

    `named` says which column holds a field, where it is none of those known.

    Raises:
        SpecError: nothing to read, or a record without a response; the message names its line.
    """
    chosen = dict(named or {})
    found = Predictions()
    files, folders = _split([Path(root) for root in roots])
    if folders:
        _read_rows(folders, pass_name, chosen, found)
    for path, name in zip(files, _names(files), strict=True):
        _read_file(path, name, chosen, found)
    if not found.rows:
        left = f"; {found.without_pass} rows have no {pass_name}" if found.without_pass else ""
        raise SpecError(f"there is no prediction in {', '.join(roots)}{left}")
    return found


def _split(roots: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Files with one prediction a record, and what holds rows of runs."""
    files, rows = [], []
    for root in roots:
        if root.is_dir() and not _holds_rows(root) and (root / INFERENCER_FILE).is_file():
            files.append(root / INFERENCER_FILE)
        elif root.is_file() and not _is_of_a_run(root):
            files.append(root)
        else:
            rows.append(root)
    return files, rows


def _holds_rows(folder: Path) -> bool:
    try:
        return bool(find([folder]))
    except SpecError:
        return False


def _is_of_a_run(path: Path) -> bool:
    """Whether the first record of a file has a pass."""
    if path.suffix.lower() not in (".jsonl", ".json", ".ndjson"):
        return False
    with path.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    row = parse(first)
    return row is not None and any(
        name.startswith("pass") and isinstance(value, dict) for name, value in row.items()
    )


def _names(files: Sequence[Path]) -> list[str]:
    """Files by name, by path where names repeat."""
    names = [path.name for path in files]
    return [
        name if names.count(name) == 1 else str(p) for name, p in zip(names, files, strict=True)
    ]


def _read_rows(
    folders: Sequence[Path], pass_name: str, named: Mapping[str, str], found: Predictions
) -> None:
    table = load(find(folders)).with_rows()
    found.broken += table.broken
    keys = _Keys()
    runs = table.rows["run"].astype(str)
    several = runs.nunique() > 1 or table.rows["step"].nunique() > 1
    columns = {name: tuple(c.replace("PASS", pass_name) for c in OF_ROWS[name]) for name in FIELDS}
    for index, row in table.stream():
        fields = row.get(pass_name)
        if not isinstance(fields, dict) or fields.get("answer_status") == "failed":
            found.without_pass += 1
            continue
        step, example = table.rows.at[index, "step"], str(row.get("example_id", index))
        run = f"{runs[index]} step {step}" if several else runs[index]
        sample = row.get("sample_idx")
        where = f"{table.files[int(table.rows.at[index, 'file'])].path}, example {example}"
        number = sample if isinstance(sample, int) else 0
        key = keys.unique(f"{run}/{example}/{number}")
        texts = _fields(Record(row, where), columns, named)
        found.rows.append(Prediction(key, run, example, number, *texts, where))


def _read_file(path: Path, name: str, named: Mapping[str, str], found: Predictions) -> None:
    keys = _Keys()
    for number, record in enumerate(read_file(str(path), "predictions"), start=1):
        own = pick(record, ("id", "example_id"))
        example = str(own) if isinstance(own, str | int) else str(number)
        texts = _fields(record, OF_FILES, named)
        key = keys.unique(f"{name}/{example}")
        found.rows.append(Prediction(key, name, example, 0, *texts, record.where))


class _Keys:
    """Makes keys unique, the second of a name with `#2`."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def unique(self, name: str) -> str:
        self._count[name] = count = self._count.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


def _fields(
    record: Record, known: Mapping[str, Sequence[str]], named: Mapping[str, str]
) -> tuple[str, str, tuple[str, ...]]:
    """Question, response and references; a response that is null is empty, and scores nothing."""
    columns = {name: (named[name],) if name in named else known[name] for name in FIELDS}
    for name in FIELDS:
        asked = name == "response" or name in named
        if asked and not any(has(record.values, column) for column in columns[name]):
            wanted = " or ".join(columns[name])
            there = ", ".join(map(str, record.values))
            raise DataError(
                f"{record.where}: there is no column {wanted} (there are {there}); "
                f"name it with --columns {name}=NAME"
            )
    gold = pick(record, columns["reference"])
    several = gold if isinstance(gold, list) else [] if gold is None else [gold]
    question, response = (pick(record, columns[name]) for name in ("question", "response"))
    references = tuple(_text(item) for item in several if item is not None)
    return _text(question), _text(response), references


def _text(value: Any) -> str:
    """A value as text without halves of surrogate pairs, which no library takes."""
    if value is None:
        return ""
    plain = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return plain.encode(errors="replace").decode()


def as_records(predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
    """Predictions as the data set of a judge (`conf/task/judge/`)."""
    for row in predictions:
        yield {
            "id": row.key,
            "question": row.question,
            "response": row.response,
            "reference": list(row.references),
        }
