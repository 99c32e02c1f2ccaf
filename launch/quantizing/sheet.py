"""The rows of a check for a reader: a table in the terminal, a CSV file, and bars to look at."""

import csv
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from launch.running.console import table_console
from pipeline.store.files import write_atomically

Row = dict[str, Any]
_MIB = 1 << 20
COLUMNS = (
    "model",
    "quantization",
    "bytes",
    "bytes_share",
    "kl",
    "kl_95",
    "top1",
    "perplexity",
    "entropy",
    "entropy_shift",
    "tokens_per_second",
    "load_seconds",
    "peak_memory_bytes",
    "positions",
    "device",
    "dtype",
    "decoder",
    "refused",
    "failed",
)
# Columns that are shown: their heading, and how a value is written.
_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "bytes": ("bytes", lambda value: f"{value / _MIB:,.0f} MiB"),
    "bytes_share": ("share", lambda value: f"{100 * value:.0f} %"),
    "kl": ("KL", lambda value: f"{value:.4f}"),
    "top1": ("top-1", lambda value: f"{100 * value:.1f} %"),
    "perplexity": ("perplexity", lambda value: f"{value:.2f}"),
    "entropy_shift": ("entropy", lambda value: f"{value:+.3f}"),
    "tokens_per_second": ("tokens/s", lambda value: f"{value:,.1f}"),
    "load_seconds": ("load", lambda value: f"{value:.1f} s"),
}
_BARS = ("bytes_share", "kl", "top1", "tokens_per_second")
_HEIGHT, _NAME, _WIDTH = 26, 150, 190  # pixels of a line, of its name, of a column of bars


def with_shares(rows: Sequence[Row]) -> list[Row]:
    """The rows with bytes as a share of the first row's, which is the reference."""
    whole = rows[0]["bytes"]
    return [r | {"bytes_share": r["bytes"] / whole} if "bytes" in r else dict(r) for r in rows]


def print_table(rows: Sequence[Row]) -> None:
    """What was measured, then why the others could not be."""
    table = Table()
    table.add_column("quantization")
    for heading, _ in _SHOWN.values():
        table.add_column(heading, justify="right")
    for row in rows:
        if "bytes" in row:
            table.add_row(row["quantization"], *(_SHOWN[name][1](row[name]) for name in _SHOWN))
    console = table_console()
    console.print(table)
    for row in rows:
        for word in ("refused", "failed"):
            if word in row:
                line = f"{word}: {row['quantization']}: {row[word]}"
                console.print(line, markup=False, soft_wrap=True)


def print_sizes(rows: Sequence[Row]) -> None:
    """Bytes by part and type, and of one sequence's cache, of everything that was measured."""
    measured = [row for row in rows if "bytes" in row]
    table = Table(title="bytes by part and type; of one sequence's cache by its tokens")
    for name in ("quantization", "part", "bytes"):
        table.add_column(name, justify="left" if name != "bytes" else "right")
    for row in measured:
        for part, kinds in row["parts"].items():
            for kind, size in kinds.items():
                table.add_row(row["quantization"], f"{part}, {kind}", f"{size:,}")
        for length, size in (row["cache"]["bytes_of_sequence"] or {}).items():
            table.add_row(row["quantization"], f"cache, {length} tokens", f"{size:,}")
        if reason := row["cache"].get("unknown_because"):
            table.add_row(row["quantization"], f"cache: {reason}", "")
    table_console().print(table)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Every row with `COLUMNS`; empty where there is no value."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, [text.getvalue().encode()])


def write_bars(path: Path, rows: Sequence[Row]) -> None:
    """One SVG picture: a line per option, bars of what matters, each with its number."""
    measured = [row for row in rows if "bytes" in row]
    height = (len(measured) + 2) * _HEIGHT
    width = _NAME + len(_BARS) * _WIDTH
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_column_names(),
        *(part for line, row in enumerate(measured) for part in _line(row, line, measured)),
        "</svg>",
    ]
    write_atomically(path, ["\n".join(lines).encode()])


def _column_names() -> list[str]:
    headings = [_SHOWN[name][0] for name in _BARS]
    return [_text(_NAME + n * _WIDTH, 0, heading, "bold") for n, heading in enumerate(headings)]


def _line(row: Row, line: int, measured: Sequence[Row]) -> list[str]:
    parts = [_text(8, line + 1, str(row["quantization"]))]
    for number, name in enumerate(_BARS):
        left, largest = _NAME + number * _WIDTH, max(each[name] for each in measured)
        long = (_WIDTH - 90) * row[name] / largest if largest else 0
        top = (line + 1) * _HEIGHT + 6
        parts.append(
            f'<rect x="{left}" y="{top}" width="{max(long, 1):.1f}" height="{_HEIGHT - 10}" '
            'fill="#4477aa"/>'
        )
        parts.append(_text(left + max(long, 1) + 6, line + 1, _SHOWN[name][1](row[name])))
    return parts


def _text(left: float, line: int, text: str, weight: str = "normal") -> str:
    down = line * _HEIGHT + 19
    said = html.escape(text)
    return f'<text x="{left:.1f}" y="{down}" font-weight="{weight}">{said}</text>'
