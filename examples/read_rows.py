"""Read a run's rows: accuracy of every pass, and the tokens that the model was least sure of.

python examples/read_rows.py outputs/two_pass_example
"""

import sys
from pathlib import Path
from typing import Any

from pipeline.rows import read_lines
from pipeline.summary import summarize


def main(root: Path) -> None:
    """Print one block per rows file below `root`."""
    for path in sorted(root.rglob("step*.jsonl")):
        rows = [row for _, row in read_lines(path) if row is not None]
        print(path.parent)
        for name, found in summarize(rows).items():
            accuracy = "-" if found.accuracy is None else f"{found.accuracy:.0%}"
            print(f"  {name:7} {found.cue or '':10} {accuracy:>5} of {found.rows} right")
        for row in rows[:1]:
            print("  least sure of:", ", ".join(least_sure(row["pass1"])))


def least_sure(fields: dict[str, Any], count: int = 5) -> list[str]:
    """The `count` tokens with the highest entropy, as `text (nats)`."""
    starts = [0, *fields["token_ends"]]
    spans = zip(fields["entropies"], starts, fields["token_ends"], strict=False)
    top = sorted(spans, reverse=True)[:count]
    return [f"{fields['output'][begin:end]!r} ({nats:.2f})" for nats, begin, end in top]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
