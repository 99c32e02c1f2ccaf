"""Loads training checkpoints on each rank into slices, and says what came of it.

torchrun sliced.py FOLDER TOKENIZER RESULT NAME:WAY:QUANTIZATION[:KEY=VALUE] ...

FOLDER/NAME is a checkpoint, and RESULT-<rank>.json gets a record for each.
"""

import asyncio
import gc
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from components.backends.zero_inference.backend import DeepSpeedBackend
from launch import api
from launch.config.compose import construct_backend

RANK = int(os.environ["RANK"])


def bytes_of_tensors() -> int:
    """What all tensors of this process hold, each storage once."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def own_copy(folder: Path, result: Path) -> Path:
    """A copy for this rank alone, from which the weights of the others can be taken away."""
    return Path(shutil.copytree(folder, result.with_name(f"{folder.name}-{RANK}")))


def take_away_the_others(folder: Path) -> None:
    for file in folder.glob("*/*_optim_states.pt"):
        if f"rank_{RANK}_mp" not in file.name:
            file.write_bytes(b"")


def load(
    spreads: list[Any], folder: Path, result: Path, way: str, quantization: str, *more: str
) -> dict[str, Any]:
    cache = result.with_name(f"cache-{RANK if way == 'engine' else ''}")
    path = own_copy(folder, result) if way == "engine" else folder
    words = (f"model.path={path}", f"model.tokenizer={sys.argv[2]}", f"run.cache_dir={cache}")
    ours = (f"backend.load_checkpoint={way}", f"quantization={quantization}", *more)
    fixed = ("task=qa", "model=local", "backend=deepspeed", "backend.device=cpu")
    before = bytes_of_tensors()
    backend = construct_backend(api.compose(*fixed, "backend.threads=1", *words, *ours).spec)
    assert isinstance(backend, DeepSpeedBackend)
    spreads.append(backend._spread)
    backend._spread = spreads[0]  # ranks meet once in a process
    asyncio.run(backend.discover())
    backend.identity()
    if way == "engine":
        take_away_the_others(path)
    model: Any = backend.preload()[0]
    held = bytes_of_tensors() - before
    with torch.no_grad():
        logits = model(input_ids=torch.arange(12).view(1, -1)).logits.float()
    greedy = model.generate(
        torch.arange(12).view(1, -1), do_sample=False, max_new_tokens=6, eos_token_id=-1
    )
    models = cache / "models"
    record = {
        "logits": torch.equal(logits, torch.load(folder / "logits.pt")),
        "greedy": greedy.tolist() == torch.load(folder / "greedy.pt").tolist(),
        "slices": sum(w.ds_tensor.numel() * w.element_size() for w in model.parameters()),
        "held": held,
        "engine": type(backend._engine.optimizer).__name__,
        "converted": sorted(path.name for path in models.glob("zero-*") if path.is_dir()),
    }
    del model
    backend._preloaded = None
    backend._unload()
    return record


if __name__ == "__main__":
    folder, result = Path(sys.argv[1]), Path(sys.argv[3])
    records: dict[str, Any] = {}
    met: list[Any] = []
    for case in sys.argv[4:]:
        name, *rest = case.split(":")
        records[case] = load(met, folder / name, result, *rest)
    result.with_name(f"{result.name}-{RANK}.json").write_text(json.dumps(records))
    torch.distributed.barrier()
    os._exit(0)  # no rank takes another for one that has gone
