"""`run.inferencer_output`: a run's answers as the fine-tuner's inferencer leaves them."""

from pathlib import Path

from launch.rows.inferencer_schemas import documented, system_and_user, written
from launch.running.text_output import rows_in_order
from pipeline.run.point import Point
from pipeline.store.files import Row, encode, write_atomically

FILE = "inferencer_output.jsonl"
PASS = "pass1"


def write_inferencer_output(point: Point) -> None:
    """Write the rows there are into the run folder, in place of what was there before.

    Raises:
        StoreError: the file cannot be written.
    """
    schema = point.spec.run.inferencer_output
    if schema is not None:
        write_atomically(output_of(point), map(encode, results(point, schema)))


def output_of(point: Point) -> Path:
    """Where the file lies."""
    return point.folder / FILE


def results(point: Point, schema: str) -> list[Row]:
    """The point's rows in a schema of `INFERENCER_SCHEMAS`, in the order of its data."""
    if schema == "inferencer_documented":
        return [documented(row, PASS) for row in rows_in_order(point)]
    examples = {example.id: example for example in point.examples}
    rows = list(rows_in_order(point))
    prompts = [point.task.prompt(examples[row["example_id"]]) for row in rows]
    pairs = zip(rows, prompts, strict=True)
    return [written(row, PASS, *system_and_user(prompt)) for row, prompt in pairs]
