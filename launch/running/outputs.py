"""What a run leaves besides its rows, where its spec asks for it."""

from launch.running.inferencer_output import write_inferencer_output
from launch.running.text_output import write_text
from pipeline.run.point import Point


def write_outputs(point: Point) -> None:
    """Write them anew from the rows there are. Raises StoreError where a file cannot be written."""
    write_text(point)
    write_inferencer_output(point)
