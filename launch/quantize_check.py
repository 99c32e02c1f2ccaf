"""Quality beside size: one model under several quantizations, against its full precision.

`python launch/quantize_check.py model=smollm2 quantization=bf16,bnb_nf4,torchao_int8wo`

Without `quantization` every option is tried. `check.text=FILE` reads your own text; `out=FOLDER`
says where rows, CSV file and picture go. The same line again measures only what is missing.
"""

import os

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load
os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before torch: spinning waits stall a busy machine

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.config_store import ConfigStore

from launch.api import compose, open_backend
from launch.config.command_line import arguments, ended
from launch.config.words import CONF
from launch.quantizing.measure import Checks, CheckSpec, Row, measurable, run_checks
from launch.quantizing.sheet import (
    print_sizes,
    print_table,
    with_shares,
    write_bars,
    write_csv,
)
from pipeline.spec import require

if TYPE_CHECKING:  # it imports Transformers, whose libraries launch.api keeps quiet
    from components.backends.hf.backend import HfBackend

KEY = "quantization="


def main() -> int:
    """Check what the command line names. Returns 0, 1 (an option broke), 2 (refused) or 130."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    said = "interrupted: what is measured is kept, the same line goes on"
    return ended(lambda: check(sys.argv[1:]), said)


def check(words: Sequence[str]) -> int:
    """Check what the words of a command line name. Returns 0, or 1 if an option broke."""
    names = options_of(words)
    rest = arguments([word for word in words if not word.startswith(KEY)])
    setup = compose(*rest, name="quantize_check")
    assert isinstance(setup.spec, CheckSpec)
    require(setup.spec.out != "", "out", "name a folder", setup.spec.out)
    folder, given = Path(setup.spec.out), setup.spec.check
    chosen = {  # all at once: a misspelt name is refused before anything is measured
        name: compose(*rest, f"{KEY}{name}", name="quantize_check")
        for name in dict.fromkeys([given.reference, *names])
    }

    def backend_of(name: str) -> "HfBackend":
        return measurable(open_backend(chosen[name]))

    checks = Checks(folder, given, setup.spec.model.name)
    rows = with_shares(run_checks(checks, names, backend_of, tell))
    write_csv(folder / "checks.csv", rows)
    write_bars(folder / "checks.svg", rows)
    print_sizes(rows)
    print_table(rows)
    print(f"against quantization={given.reference}; rows, CSV and picture in {folder}")
    return 1 if any("failed" in row for row in rows) else 0


def options_of(words: Sequence[str]) -> list[str]:
    """The options that a line names, or all of them but other names of the same.

    A name that there is not is refused when it is composed.
    """
    typed = [word.removeprefix(KEY) for word in words if word.startswith(KEY)]
    if typed:
        names = [name.strip() for name in typed[-1].strip("[]").split(",") if name.strip()]
        require(bool(names), "quantization", "name options, or be left out for all", typed[-1])
        return names
    files = sorted((CONF / "quantization").glob("*.yaml"))
    return [path.stem for path in files if "_target_" in path.read_text(encoding="utf-8")]


def tell(row: Row) -> None:
    """Say on stderr that an option is through."""
    became = next((word for word in ("refused", "failed") if word in row), "measured")
    print(f"{row['quantization']}: {became}", file=sys.stderr)


ConfigStore.instance().store(name="check_spec", node=CheckSpec)

if __name__ == "__main__":
    sys.exit(main())
