"""DeepSpeed's configuration for inference: what may be given, and what follows from the run."""

import copy
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.spec import SpecError, require
from pipeline.store.files import read_text

KEY = "backend.config"
_LOG = logging.getLogger(__name__)
_OURS = {  # keys of DeepSpeed's that other keys of ours decide
    "train_batch_size": "backend.batch_size",
    "train_micro_batch_size_per_gpu": "backend.batch_size",
    "bf16": "quantization",
    "fp16": "quantization",
    "bfloat16": "quantization",
    "optimizer": "nothing: no weight is trained",
    "scheduler": "nothing: no weight is trained",
    "gradient_accumulation_steps": "nothing: no weight is trained",
    "gradient_clipping": "nothing: no weight is trained",
}
_KNOWN = ("zero_optimization", "aio", "steps_per_print", "wall_clock_breakdown")
_PLACES = ("none", "cpu", "nvme")


def settings_of(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """The part of DeepSpeed's configuration that a user chooses: from a mapping or a JSON file.

    Keys about training in a file, such as one that trained the model, are left out by name; in a
    mapping they are refused.

    Raises:
        SpecError: names the key that is unknown, or that another key decides.
    """
    settings = _read(Path(given)) if isinstance(given, str) else copy.deepcopy(dict(given or {}))
    for name in settings:
        rule = f"be left out; it follows from {_OURS.get(name)}"
        require(name not in _OURS, f"{KEY}.{name}", rule, settings[name])
        require(name in _KNOWN, f"{KEY}.{name}", f"be one of {', '.join(_KNOWN)}", settings[name])
    zero = settings.setdefault("zero_optimization", {})
    require(isinstance(zero, dict), f"{KEY}.zero_optimization", "be a mapping", zero)
    stage = zero.setdefault("stage", 3)
    rule = "be 3: the others keep a whole copy of the weights on every rank, as run.shards does"
    require(stage == 3, f"{KEY}.zero_optimization.stage", rule, stage)
    rule = "be left out: there is no optimizer"
    require("offload_optimizer" not in zero, f"{KEY}.zero_optimization.offload_optimizer", rule, "")
    _check_offload(zero)
    _check_names(zero)
    return settings


def engine_settings(chosen: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The whole configuration of an engine whose weights are of a type such as `bfloat16`."""
    return {
        **chosen,
        "train_micro_batch_size_per_gpu": 1,  # asked for, and without a meaning here
        "bf16": {"enabled": dtype == "bfloat16"},
        "fp16": {"enabled": dtype == "float16"},
    }


def _check_offload(zero: dict[str, Any]) -> None:
    """Refuse places that are not there; drop the key where slices stay where they are."""
    offload = zero.get("offload_param")
    if offload is None:
        return
    key = f"{KEY}.zero_optimization.offload_param"
    require(isinstance(offload, dict), key, "be a mapping", offload)
    place, path = offload.get("device", "none"), offload.get("nvme_path")
    require(place in _PLACES, f"{key}.device", f"be one of {', '.join(_PLACES)}", place)
    if place == "nvme":
        there = isinstance(path, str) and Path(path).is_dir()
        require(there, f"{key}.nvme_path", "name a folder on a disk of every node", path)
    else:
        rule = "be null but with offload_param.device=nvme"
        require(path is None, f"{key}.nvme_path", rule, path)
    if place == "none":
        del zero["offload_param"]


def _check_names(zero: Mapping[str, Any]) -> None:
    """Refuse keys that DeepSpeed does not know: it would pass over some of them in silence."""
    try:
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    except ImportError:  # said when the backend is entered
        return
    known: set[str] = set()
    for name, field in DeepSpeedZeroConfig.model_fields.items():
        known |= {name, str(field.alias)}
    strange = sorted(zero.keys() - known)
    rule = "hold keys of DeepSpeed's DeepSpeedZeroConfig alone"
    require(not strange, f"{KEY}.zero_optimization", rule, strange)
    try:
        DeepSpeedZeroConfig(**zero)
    except ValueError as error:
        first = str(error).replace("\n", " ")
        raise SpecError(f"{KEY}.zero_optimization is not what DeepSpeed takes: {first}") from error


def _read(path: Path) -> dict[str, Any]:
    require(path.expanduser().is_file(), KEY, "be a mapping, or name a JSON file", str(path))
    text = read_text(path, KEY)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("//", "#"))]
    try:
        settings = json.loads("\n".join(lines))
    except json.JSONDecodeError as error:
        raise SpecError(f"{KEY}={path} is not JSON: {error}") from error
    require(isinstance(settings, dict), KEY, "be a file with a JSON object", str(path))
    kept = {name: value for name, value in settings.items() if name in _KNOWN}
    zero = kept.get("zero_optimization")
    if isinstance(zero, dict):  # "auto" is a word of Transformers' trainer
        zero = {n: v for n, v in zero.items() if n != "offload_optimizer" and v != "auto"}
        kept["zero_optimization"] = zero
    left = ", ".join(sorted(settings.keys() - kept.keys()))
    _LOG.info("%s=%s: what is about training is left out: %s", KEY, path, left or "nothing")
    return kept
