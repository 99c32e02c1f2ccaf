"""`run.text_output`: prompts and answers of a run as plain text, a block for each answer."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.protocols import Example
from pipeline.run.point import Point
from pipeline.spec import RunSpec, SpecError, require
from pipeline.store.files import Row, is_new_or_begins, write_atomically
from pipeline.store.pass_names import stored_passes
from pipeline.store.row_index import index_rows, parts_of, read_place

_HEAD = b"Prompt: "


def refuse_one_file_for_several(specs: Sequence[RunSpec]) -> None:
    """Refuse points that would each write one text file in place of another's. Raises SpecError."""
    named = [spec.run.text_output for spec in specs]
    twice = next((path for path in named if path is not None and named.count(path) > 1), None)
    rule = "name a file of its own for each point of a sweep, such as out-${run.seed}.txt"
    require(twice is None, "run.text_output", rule, twice)


def make_place(point: Point) -> None:
    """See that the text file can be written, before a model is loaded. Raises SpecError."""
    if point.spec.run.text_output is None:
        return
    path = Path(point.spec.run.text_output)
    require(not path.is_dir(), "run.text_output", "name a file, and this is a folder", str(path))
    rule = "name a new file, or the text of an earlier run, which begins with 'Prompt: '"
    try:
        require(is_new_or_begins(path, _HEAD), "run.text_output", rule, str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"run.text_output must name a file that can be written: {error}") from error


def write_text(point: Point) -> None:
    """Write the rows there are, in the order of the prompts, in place of what was there before.

    Raises StoreError where the file cannot be written.
    """
    path = point.spec.run.text_output
    if path is not None:
        texts = (f"{block}\n" for block in blocks(point))
        write_atomically(Path(path), (text.encode("utf-8", "backslashreplace") for text in texts))


def blocks(point: Point) -> Iterator[str]:
    """A block for each row: `Prompt: ...`, `Generated: ...`, and a line for each later pass."""
    by_id = {example.id: example for example in point.examples}
    return (_block(by_id[row["example_id"]], row) for row in rows_in_order(point))


def rows_in_order(point: Point) -> Iterator[Row]:
    """The rows of a point that are there, in the order of its prompts and samples."""
    places = index_rows([point.rows_path, *parts_of(point.rows_path)]).places
    return (read_place(places[key]) for key in point.canonical_order() if key in places)


def _block(example: Example, row: Row) -> str:
    lines = [f"Prompt: {example.question}", f"Generated: {row['pass1']['output']}"]
    later = stored_passes(row)
    lines += [f"Generated after {fields['cue']}: {fields['output']}" for fields in later]
    return "\n".join([*lines, ""])
