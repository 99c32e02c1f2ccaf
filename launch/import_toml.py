"""The fine-tuner's TOML file as an experiment: `python launch/import_toml.py config.toml`.

Writes `conf/experiment/<name of the file>.yaml`, or `out=FILE` in a folder `experiment`, and prints
the line that runs it. `model=FOLDER` (or a hub id) takes the place of the model that the file
implies: `models/fine_tuned` where it is here, else `<hf_user_id>/<run_name>`, else the newest of
that user. An evaluation that the file asks for becomes a line of `launch/score_text.py`, printed
below. `without=finetuning,evaluation` leaves those steps of its pipeline out; training, which is
none of ours, is refused without it.
HF_TOKEN comes from the environment alone.
"""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.config.command_line import ended, filled
from launch.config.words import CONF
from launch.fine_tuned.config_file import read_config
from launch.fine_tuned.experiment_file import HEADER, experiment_of
from pipeline.spec import SpecError
from pipeline.store.files import write_atomically

SETTINGS = ("out", "model", "without")
STEPS = ("finetuning", "evaluation")


def main(line: Sequence[str] | None = None) -> int:
    """Write one file; status 2 with one sentence when something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=filled, help="the fine-tuner's config.toml")
    parser.add_argument("given", nargs="*", help=f"{', '.join(SETTINGS)}, each as NAME=VALUE")
    found = parser.parse_args(line)
    return ended(lambda: imported(Path(found.file), found.given))


def imported(file: Path, given: Sequence[str]) -> None:
    """Write the experiment. Raises SpecError for what cannot be imported."""
    settings = {}
    for word in given:
        name, equals, value = word.partition("=")
        if name not in SETTINGS or not equals or not value:
            raise SpecError(f"{word} must be one of {', '.join(SETTINGS)} as NAME=VALUE")
        settings[name] = value
    without = tuple(filter(None, settings.get("without", "").split(",")))
    if unknown := [step for step in without if step not in STEPS]:
        raise SpecError(f"without must name steps of {', '.join(STEPS)}, got {unknown[0]}")
    out = Path(settings.get("out", CONF / "experiment" / f"{file.stem}.yaml")).absolute()
    if out.parent.name != "experiment" or out.suffix != ".yaml":
        raise SpecError(f"out must be a .yaml file in a folder named experiment, got {out}")
    experiment = experiment_of(read_config(file), settings.get("model"), without)
    _refuse_another(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, [experiment.text(file).encode()])
    for note in experiment.notes:
        print(note)
    place = out.parent.parent
    search = "" if place == CONF else f"'hydra.searchpath=[file://{place}]' "
    print(f"{out} is written: python launch/run.py {search}experiment={out.stem}")
    if experiment.evaluation:
        print(f"then its evaluation: {experiment.evaluation}")


def _refuse_another(out: Path) -> None:
    """Refuse to write over a file that no import made."""
    if out.exists() and not (out.is_file() and HEADER.encode() in out.read_bytes()):
        raise SpecError(f"out must not name a file that no import wrote, got {out}: choose another")


if __name__ == "__main__":
    sys.exit(main())
