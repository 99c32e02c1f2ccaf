"""What the live view shows: a list of runs, and the report of each, made when it is asked for."""

import hashlib
import html
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from launch.reporting.cells import number
from launch.reporting.page_file import write_report
from launch.rows.stored_task import StoredTasks
from launch.sweeps.point_status import Reader, row_files_of
from pipeline.analysis import summary
from pipeline.analysis.row_files import find
from pipeline.analysis.table import load
from pipeline.spec import SpecError
from pipeline.store.stored_record import attempts_of, read_record

KEPT_PAGES = 8
SECONDS_BETWEEN_READS = 5.0  # of a run that grows: its rows are read again no sooner
UNREADABLE = (SpecError, OSError, ValueError, KeyError, TypeError, AttributeError)
COLUMNS = ("run", "state", "accuracy, pass 1", "rows", "tokens/s", "cost (USD)", "last error")
Sizes = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class RunLine:
    """A line of the list; `key` opens the run's page and is None where it has no rows yet.

    `cost` is in USD, and no more than `at_least` what was spent where an attempt did not say its.
    """

    name: str
    state: str
    accuracy: float | None = None
    rows: str = ""
    tokens_per_second: float | None = None
    cost: float | None = None
    at_least: bool = False
    error: str = ""
    key: str | None = None


class LiveRuns:
    """The runs below some folders. One request is worked on at a time; nothing is written there.

    What was read of a run is kept until the sizes of its files change, and of a growing run for at
    least `SECONDS_BETWEEN_READS`. Pages are kept in a temporary folder, the last few of them.
    """

    def __init__(self, roots: Sequence[Path], by: Sequence[str], rows: int, tasks: StoredTasks):
        """`by`, `rows` and `tasks` are those of `write_report`."""
        self.roots = [root.resolve() for root in roots]
        self._by, self._rows, self._tasks = by, rows, tasks
        self._reader = Reader(self.roots)
        self._lock = threading.Lock()
        self._pages: OrderedDict[str, tuple[Sizes, float, bytes]] = OrderedDict()
        self._lines: dict[Path, tuple[Sizes, RunLine]] = {}
        self._accuracies: dict[Path, tuple[Sizes, float, float | None]] = {}

    def list_page(self) -> bytes:
        """The list as HTML without scripts."""
        with self._lock:
            lines = [self._line(folder) for folder in self._folders()]
        return list_page(lines).encode()

    def run_page(self, key: str) -> bytes | None:
        """The report of the run with a key of the list; None where there is none.

        Raises:
            SpecError: its rows cannot be read, or it has none yet.
        """
        with self._lock:
            folder = next((one for one in self._folders() if key_of_folder(one) == key), None)
            return None if folder is None else self._page(key, folder)

    def _folders(self) -> list[Path]:
        return sorted(folder for folder in self._reader.started() if self._is_inside(folder))

    def _is_inside(self, folder: Path) -> bool:
        """Whether no file that would be read of a run lies, by a link, outside of the roots."""
        files = [folder, *folder.iterdir()]
        return all(any(f.resolve().is_relative_to(r) for r in self.roots) for f in files)

    def _line(self, folder: Path) -> RunLine:
        """The line of a run; one that nobody works on is read again when a file of it changes."""
        sizes = _sizes(folder.iterdir())
        kept = self._lines.get(folder)
        if kept and kept[0] == sizes and kept[1].state != "running":
            return kept[1]
        line = self._read_line(folder)
        self._lines[folder] = (sizes, line)
        return line

    def _read_line(self, folder: Path) -> RunLine:
        name = "/".join(folder.parts[-2:])
        try:
            point = self._reader.point(folder)
            name = point.name
            costs = [(a.get("backend") or {}).get("cost_usd") for a in attempts_of(folder)]
            known = [float(cost) for cost in costs if cost is not None]
            has_rows = any(file.stat().st_size for file in self._files(folder))
            return RunLine(
                name,
                point.state,
                self._accuracy(folder) if has_rows else None,
                f"{point.rows} of {point.wanted}",
                point.tokens_per_second if point.writers else _pace(folder),
                sum(known) if known else None,
                len(known) < len(costs),
                point.error,
                key_of_folder(folder) if has_rows else None,
            )
        except UNREADABLE as error:  # another program's run.json hides no other run
            return RunLine(name, "unreadable", error=f"{type(error).__name__}: {error}")

    def _accuracy(self, folder: Path) -> float | None:
        files, sizes, now = self._files(folder), self._sizes(folder), time.monotonic()
        kept = self._accuracies.get(folder)
        if kept and (kept[0] == sizes or now - kept[1] < SECONDS_BETWEEN_READS):
            return kept[2]
        lines = summary.passes(load(find(files), workers=1), by=("pass",))
        first = lines.loc[lines["pass"] == "pass1", "accuracy"].dropna()
        value = float(first.iloc[0]) if len(first) else None
        self._accuracies[folder] = (sizes, now, value)
        return value

    def _page(self, key: str, folder: Path) -> bytes:
        sizes, now = self._sizes(folder), time.monotonic()
        kept = self._pages.get(key)
        if kept and (kept[0] == sizes or now - kept[1] < SECONDS_BETWEEN_READS):
            self._pages.move_to_end(key)
            return kept[2]
        title = self._reader.point(folder).name
        with TemporaryDirectory() as place:
            output, files = Path(place) / "report.html", list(map(str, self._files(folder)))
            write_report(output, files, (), self._rows, title, self._tasks, self._by)
            page = output.read_bytes()
        self._pages[key] = (sizes, now, page)
        if len(self._pages) > KEPT_PAGES:
            self._pages.popitem(last=False)
        return page

    def _files(self, folder: Path) -> list[Path]:
        return row_files_of(folder, read_record(folder / "run.json", "spec"))

    def _sizes(self, folder: Path) -> Sizes:
        read = [*self._files(folder), folder / "run.json", *folder.glob("attempt-*.json")]
        return _sizes(read)


def _sizes(files: Iterable[Path]) -> Sizes:
    found = []
    for file in sorted(files):
        with suppress(FileNotFoundError):  # a writer may remove its files at any moment
            about = file.stat()
            found.append((file.name, about.st_size, about.st_mtime_ns))
    return tuple(found)


def _pace(folder: Path) -> float | None:
    """Tokens per second over all attempts of a run that nobody works on now."""
    attempts = attempts_of(folder)
    seconds = sum(attempt["seconds"] for attempt in attempts)
    return sum(attempt["tokens"] for attempt in attempts) / seconds if seconds else None


def key_of_folder(folder: Path) -> str:
    """What an address names a run by: no path, so that none can be asked for."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def list_page(lines: Sequence[RunLine]) -> str:
    """The list as HTML; every text is escaped. It asks for itself again every few seconds."""
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in COLUMNS)
    body = "".join(f"<tr>{''.join(_cells(line))}</tr>" for line in lines)
    empty = "" if lines else "<p>No run.json yet below the folders that are watched.</p>"
    return _PAGE.format(heads=heads, body=body, empty=empty, seconds=int(SECONDS_BETWEEN_READS))


def _cells(line: RunLine) -> list[str]:
    name = html.escape(line.name)
    opened = f'<a href="run/{line.key}">{name}</a>' if line.key else name
    accuracy = "–" if line.accuracy is None else f"{number('accuracy', line.accuracy)} %"
    pace = "–" if line.tokens_per_second is None else f"{line.tokens_per_second:.0f}"
    cost = "–" if line.cost is None else f"{'≥ ' if line.at_least else ''}{line.cost:.4g}"
    texts = (line.state, accuracy, line.rows, pace, cost, line.error)
    return [f"<td>{cell}</td>" for cell in (opened, *map(html.escape, texts))]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rethink runs</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="{seconds}">
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1.2rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: 0.35rem 0.8rem; text-align: left; border-bottom: 1px solid #8886;
  overflow-wrap: anywhere; }}
td:nth-child(n+3):nth-child(-n+6) {{ font-variant-numeric: tabular-nums; white-space: nowrap; }}
</style></head>
<body><h1>Runs</h1>{empty}<div class="scroll" role="region" aria-label="Runs" tabindex="0">
<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></body></html>
"""
