"""The doors as one command: `rethink run task=math backend=echo` is `python launch/run.py ...`."""

import runpy
import sys
from pathlib import Path

from launch.config.interrupts import guard

LAUNCH = Path(__file__).resolve().parent


def doors() -> dict[str, Path]:
    """The commands by name: every file beside this one that runs by itself."""
    files = [path for path in sorted(LAUNCH.glob("*.py")) if path != Path(__file__).resolve()]
    return {p.stem: p for p in files if '__name__ == "__main__"' in p.read_text(encoding="utf-8")}


def main() -> int:
    """Run the door that the first word names, with the rest of the line."""
    guard()
    names = ", ".join(doors())
    if not (LAUNCH.parent / "conf").is_dir():
        print(f"error: {LAUNCH.parent} has no conf/: install a checkout of Rethink as editable")
        return 2
    word = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if word in ("-h", "--help"):
        print(f"usage: rethink DOOR ...\n\nDoors: {names}. Each says more with --help.")
        return 0
    if word not in doors():
        print(f"error: {word} must be one of {names}", file=sys.stderr)
        return 2
    path = str(doors()[word])
    sys.argv = [path, *sys.argv[2:]]
    runpy.run_path(path, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
