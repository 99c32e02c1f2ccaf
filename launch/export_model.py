"""Write a model for elsewhere: `python launch/export_model.py to=gguf model=smollm2 out=FOLDER`."""

import os

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load
os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before torch: spinning waits stall a busy machine

import importlib.metadata
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig

from components.exports.chosen_model import ChosenModel, Export
from components.exports.file_table import WrittenFile, as_text, written_files
from components.exports.whole_folder import whole_folder
from components.models.adapters import EXPORT_RECORD
from components.models.checkpoint import cache_folder, resolve
from launch.config.command_line import ended, run_application
from launch.config.compose import build, check_component, register_schema, to_spec
from pipeline.spec import RunSpec, require

LIBRARIES = ("torch", "transformers", "safetensors", "peft", "bitsandbytes", "torchao", "gguf")


@dataclass(slots=True)
class ExportSpec(RunSpec):
    """A run's spec, of which model and quantization count, and what is written where.

    `to` is an open node of `conf/to/`; `out` is the folder; `overwrite` replaces an older export.
    """

    to: dict[str, Any] = MISSING
    out: str = MISSING
    overwrite: bool = False


@hydra.main(version_base="1.3", config_path="../conf", config_name="export_model")
def main(config: DictConfig) -> None:
    """Export one model."""
    if status := ended(lambda: export(config)):
        sys.exit(status)


def export(config: DictConfig) -> int:
    """Export what a composed config says. Returns 0."""
    spec = to_spec(config)
    assert isinstance(spec, ExportSpec)
    check_component("to", spec.to)
    to: Export = build("to", spec.to)
    quantization = build("quantization", spec.quantization)
    cache = cache_folder(spec.run.cache_dir)
    require(spec.out != "", "out", "name a folder", spec.out)
    target = Path(spec.out)
    with whole_folder(target, spec.overwrite) as folder:
        chosen = ChosenModel(spec.model, quantization, resolve(spec.model, cache), cache)
        to.check(chosen)
        told = to.write(chosen, folder)
        files = written_files(folder)
        record = record_of(to, chosen, files) | told
        text = json.dumps(record, indent=1, ensure_ascii=False)
        (folder / EXPORT_RECORD).write_text(text + "\n", encoding="utf-8")
    print(as_text(files))
    print(f"{target}: to={to.name} of {spec.model.name}; {EXPORT_RECORD} there says how")
    return 0


def record_of(to: Export, chosen: ChosenModel, files: list[WrittenFile]) -> dict[str, Any]:
    """What export.json says of every export: what of which model, with what, and its files."""
    installed = {name: version for name in LIBRARIES if (version := _version(name))}
    return {
        "to": to.name,
        "model": chosen.spec.name,
        "step": chosen.checkpoint.step,
        "source": dict(chosen.checkpoint.identity),
        "quantization": chosen.quantization.identity(),
        "versions": installed,
        "files": [file._asdict() for file in files],
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


ConfigStore.instance().store(name="export_spec", node=ExportSpec)
register_schema()

if __name__ == "__main__":
    sys.exit(run_application(main))
