"""Read a run's rows: accuracy of every pass, and the tokens that the model was least sure of.

python examples/read_rows.py outputs/two_pass_example
"""

import sys
from pathlib import Path
from typing import Any

from pipeline.analysis.row_files import find
from pipeline.analysis.summary import passes
from pipeline.analysis.table import load


def main(root: Path) -> None:
    """Print a line per pass of the runs below `root`, then one row's least certain tokens."""
    table = load(find([root]))
    for found in passes(table).to_dict("records"):
        right = f"{found['accuracy']:.0%} of {found['rows']} right"
        print(f"{found['run']}  {found['pass']:7} {right}")
    _, row = next(iter(table.stream()))
    print("least sure of:", ", ".join(least_sure(row["pass1"])))


def least_sure(fields: dict[str, Any], count: int = 5) -> list[str]:
    """The `count` tokens with the highest entropy, as `text (nats)`."""
    starts = [0, *fields["token_ends"]]
    spans = zip(fields["entropies"], starts, fields["token_ends"], strict=False)
    top = sorted(spans, reverse=True)[:count]
    return [f"{fields['output'][begin:end]!r} ({nats:.2f})" for nats, begin, end in top]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
