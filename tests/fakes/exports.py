"""Exports through the real door, in this process."""

import json
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

from components.models.checkpoint import prepare, resolve
from components.models.loading import load_model
from components.quantization.precision import Precision
from launch.export_model import export
from pipeline.spec import ModelSpec
from tests.fakes.configs import ROOT


def exported(out: Path, *words: str) -> dict[str, Any]:
    """Export to `out` as a command line says. Returns its export.json."""
    line = ["task=prompts", *words, f"out={out}"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("export_model", line)
    assert export(config) == 0
    record: dict[str, Any] = json.loads((out / "export.json").read_text())
    return record


def loaded(folder: Path, dtype: str | None = None, **model: Any) -> Any:
    """The model that `model.path=FOLDER` loads."""
    spec = ModelSpec(path=str(folder), **model)
    cache = folder.parent / "cache"
    checkpoint = prepare(resolve(spec, cache), cache)
    return load_model(checkpoint, spec, Precision(dtype), torch.device("cpu"))


def logits(model: Any, count: int = 20, vocabulary: int = 49152) -> Tensor:
    """Logits [count, vocabulary] of ids drawn by a fixed seed, in float32."""
    ids = torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        result: Tensor = model(input_ids=ids).logits[0].float()
    return result
