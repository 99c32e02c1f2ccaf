"""Tells a tracker about points without ever standing in a run's way."""

import csv
import hashlib
import logging
import math
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launch.config.compose import build
from pipeline.protocols import DataSet, Tracker
from pipeline.run.point import Point, labelled
from pipeline.run.session import Session
from pipeline.spec import SpecError
from pipeline.store.row_index import parts_of

if TYPE_CHECKING:  # pandas, which a run without a tracker spares
    from pipeline.analysis.table import Table

PATIENCE = 60.0  # seconds that the end of a run waits for its tracker
IN_A_HURRY = 5.0  # the same for a run that a signal ends
log = logging.getLogger(__name__)


class TrackerThread:
    """A tracker in a thread of its own: one that hangs or fails costs a warning."""

    def __init__(self, tracker: Tracker) -> None:
        """Start the thread, which waits for calls."""
        self.tracker = tracker
        self.lost = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def tell(self, call: Callable[[], None]) -> None:
        """Have something told, after all that was given before."""
        self._calls.put(call)

    def close(self, status: str, patience: float) -> None:
        """End the tracker's run; wait for it as long as `patience` says."""
        self._calls.put(lambda: self.tracker.finish(status))
        self._calls.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self._lose(f"it did not answer for {patience:g} seconds")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self.lost:
                continue
            try:
                call()
            except Exception as error:  # whatever a tracker raises, the run goes on
                self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = True
            name = type(self.tracker).__name__
            log.warning("tracking by %s is lost, the run is not: %s", name, why)


class Tracking(TrackerThread):
    """The tracker of one point."""

    def __init__(self, tracker: Tracker, point: Point) -> None:
        """Tell of the point's parameters and of its data set."""
        from launch.reporting.runs import dotted_keys

        super().__init__(tracker)
        self.point = point
        params = {k: v for k, v in dotted_keys(asdict(point.spec)).items() if v is not None}
        tags = {"fingerprint": point.fingerprint, "folder": str(point.folder)}
        name = labelled(point.folder.parent.name or point.folder.name, point.swept)
        self.tell(lambda: tracker.start(name, params, tags))
        self.tell(lambda: tracker.use(asked(point)))

    def end(self, session: Session) -> None:
        """Tell of the metrics, the summary and the report; wait as long as patience lasts.

        A run that was interrupted may be killed soon, and will go on: it only ends.
        """
        if session.status == "interrupted":
            self.close(session.status, IN_A_HURRY)
            return
        from pipeline.analysis.row_files import find
        from pipeline.analysis.table import load

        files = [p for p in (self.point.rows_path, *parts_of(self.point.rows_path)) if p.exists()]
        with tempfile.TemporaryDirectory() as scratch:
            if files:
                table, folder = load(find(files), workers=1), Path(scratch)
                metrics = metrics_of(table)
                self.tell(lambda: self.tracker.use(written(self.point, files, len(table.rows))))
                self.tell(lambda: self.tracker.log(metrics, self.point.step))
                for path in self._artifacts(table, files, folder):
                    self.tell(lambda path=path: self.tracker.attach(path))  # type: ignore[misc]
            self.close(session.status, PATIENCE)

    def _artifacts(self, table: "Table", rows: Sequence[Path], folder: Path) -> Iterator[Path]:
        from pipeline.analysis import summary

        for name, frame in {"steps": summary.steps(table), "passes": summary.passes(table)}.items():
            frame.to_csv(folder / f"{name}.csv", index=False, quoting=csv.QUOTE_MINIMAL)
            yield folder / f"{name}.csv"
        yield self.point.folder / "run.json"
        yield from rows if self.tracker.rows else ()
        if self.tracker.report:
            from launch.reporting.page_file import write_report
            from launch.rows.stored_task import StoredTasks

            files = [str(file.path) for file in table.files]
            tasks = StoredTasks(classes=[str(self.point.spec.task["_target_"])])
            try:
                write_report(folder / "report.html", files, tasks=tasks)
            except SpecError as error:
                log.warning("the report is not among the artifacts: %s", error)
            else:
                yield folder / "report.html"


def asked(point: Point) -> DataSet:
    """The examples of a point. The digest is over all of them, also those that a slice leaves."""
    data = point.spec.task.get("data")
    source = {k: str(v) for k, v in data.items() if v} if isinstance(data, dict) else {}
    if "hub" not in source and "path" not in source:
        source = {}
    name = source.get("hub") or Path(source.get("path", point.task.name)).name
    return DataSet("testing", name, point.identity["task.data"], len(point.examples), source)


def written(point: Point, files: Sequence[Path], rows: int) -> DataSet:
    """The rows of a point, by the hash of the files that hold them, several beside shards."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    source = {"path": str(point.rows_path)}
    return DataSet("inference_output", point.rows_path.name, digest.hexdigest(), rows, source)


def metrics_of(table: "Table") -> dict[str, float]:
    """The means of every pass, such as `pass1/accuracy`."""
    from pipeline.analysis import summary

    found: dict[str, float] = {}
    for line in summary.passes(table, by=("pass",)).to_dict("records"):
        name = line.pop("pass")
        values = {f"{name}/{column}": float(value) for column, value in line.items()}
        found |= {key: value for key, value in values.items() if math.isfinite(value)}
    return found


@contextmanager
def tracked(points: Sequence[Point]) -> Iterator[Callable[[Sequence[Session]], None]]:
    """Trackers of points. Call what it gives with the sessions when they have ended.

    Raises:
        SpecError: a tracker's library is missing, or a setting is wrong.
    """
    nodes = [(point, point.spec.tracking) for point in points if point.spec.tracking]
    built: list[tuple[Point, Tracker]] = [(p, build("tracking", node)) for p, node in nodes]
    open_ = {id(point): Tracking(tracker, point) for point, tracker in built}

    def end(sessions: Sequence[Session]) -> None:
        for session in sessions:
            tracking = open_.pop(id(session.point), None)
            if tracking is not None:
                tracking.end(session)

    try:
        yield end
    finally:
        for tracking in open_.values():
            tracking.close("failed", IN_A_HURRY)
