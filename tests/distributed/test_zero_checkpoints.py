"""What DeepSpeed's ZeRO saved in training on two ranks is loaded like any other model."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from components.models.checkpoint import prepare, resolve
from components.models.loading import load_model
from launch.config.compose import build, to_spec
from pipeline.spec import ModelSpec, SpecError
from tests.distributed.conftest import TRAINED
from tests.fakes.configs import composed

Trained = Callable[[str], Path]


class Touch:
    """What a pickle calls when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def spec_of(path: Path, tokenizer: Path, **fields: Any) -> ModelSpec:
    return ModelSpec(name="trained", path=str(path), tokenizer=str(tokenizer), **fields)


def logits(spec: ModelSpec, cache: Path, quantization: str) -> torch.Tensor:
    node = to_spec(composed("task=qa", "backend=echo", f"quantization={quantization}")).quantization
    checkpoint = prepare(resolve(spec, cache), cache)
    model = load_model(checkpoint, spec, build("quantization", node), torch.device("cpu"))
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(12).view(1, -1)).logits.float()
    return found


@pytest.mark.parametrize("name", TRAINED)
def test_it_gives_the_logits_of_the_trained_model(
    trained: Trained, smollm2: Path, tmp_path: Path, name: str
) -> None:
    folder = trained(name)
    found = logits(spec_of(folder, smollm2), tmp_path, name.split("-")[1])
    assert torch.equal(found, torch.load(folder / "logits.pt"))


def test_none_is_float32_and_rows_hold_the_step_that_latest_names(
    trained: Trained, smollm2: Path, tmp_path: Path
) -> None:
    latest = resolve(spec_of(trained("3-fp32"), smollm2), tmp_path)
    assert (latest.step, latest.dtype) == (2, "float32")
    first = resolve(spec_of(trained("3-fp32"), smollm2, step=1), tmp_path)
    assert first.step == 1 and first.identity != latest.identity
    assert resolve(spec_of(trained("3-fp32"), smollm2, step="latest"), tmp_path) == latest
    folder = prepare(latest, tmp_path).weights.location
    assert prepare(latest, tmp_path).weights.location == folder  # from the cache
    assert (Path(folder) / "model.safetensors").is_file()


def test_a_lost_last_rank_is_told(trained: Trained, smollm2: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained("3-fp32"), tmp_path / "copy"))
    for file in (copy / "global_step2").glob("zero_pp_rank_1_*"):
        file.unlink()
    with pytest.raises(SpecError, match=r"Expected 2 of '\*_optim_states.pt'"):
        prepare(resolve(spec_of(copy, smollm2), tmp_path / "cache"), tmp_path / "cache")


@pytest.mark.parametrize("file", ["model", "optim"])
def test_a_pickle_that_runs_a_program_is_not_opened(
    trained: Trained, smollm2: Path, tmp_path: Path, file: str
) -> None:
    copy = Path(shutil.copytree(trained("3-fp32"), tmp_path / "copy"))
    made = tmp_path / "made"
    path = copy / f"global_step2/zero_pp_rank_0_mp_rank_00_{file}_states.pt"
    torch.save(torch.load(path, weights_only=False) | {"more": Touch(made)}, path)
    with pytest.raises(SpecError, match="holds more than tensors"):
        prepare(resolve(spec_of(copy, smollm2), tmp_path / "cache"), tmp_path / "cache")
    assert not made.exists()


def test_a_torn_file_is_told(trained: Trained, smollm2: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained("3-fp32"), tmp_path / "copy"))
    path = copy / "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(SpecError, match="global_step2 cannot be put together"):
        prepare(resolve(spec_of(copy, smollm2), tmp_path / "cache"), tmp_path / "cache")
