"""What one load for many points saves against one job per point, rows being the same.

python benchmarks/packing.py [overrides ...], by default SmolLM2 in float32 at four temperatures.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINE = ("task=crossword", "backend=hf", "quantization=fp32", "cue=wait", "run.limit=6")
CAPS = ("sampling.think_cap=32", "sampling.answer_cap=8", "backend.batch_size=32")
SWEEP = ("sampling.temperature=0,0.05,0.3,0.7", "cluster=debug", "hydra.launcher.timeout_min=60")


def seconds(pack: str, overrides: list[str]) -> float:
    """Wall time of the sweep from the command to its table, one job after the other."""
    with tempfile.TemporaryDirectory() as root:
        line = [*LINE, *CAPS, *SWEEP, *overrides, f"run.pack={pack}", f"run.root={root}"]
        command = [sys.executable, str(ROOT / "launch/run.py"), *line]
        start = time.monotonic()
        subprocess.run(
            [*command, "hydra.launcher.array_parallelism=1"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.monotonic() - start


def main() -> None:
    """Print both times."""
    for name, pack in (("one job per point", "[]"), ("one job, packed", "[temperature]")):
        print(f"{name}: {seconds(pack, sys.argv[1:]):.1f} s", flush=True)


if __name__ == "__main__":
    main()
