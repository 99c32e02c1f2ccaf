"""What ZeRO-3 saved in training on two ranks is loaded into slices, with no whole copy anywhere."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from components.backends.zero_inference.checkpoint_loading import refuse_tag
from components.models.zero_universal import universal_folder
from components.ranks.place import Place
from launch import api
from pipeline.spec import SpecError
from tests.distributed.conftest import ENVIRONMENT, HERE, ROOT, on_ranks, said
from tests.distributed.test_zero_checkpoints import Touch

Trained = Callable[[str], Path]
OFFLOAD = "backend.config.zero_optimization.offload_param.device=cpu"
ENGINE = ("3-fp32:engine:fp32", f"3-bf16:engine:bf16:{OFFLOAD}", "3-fp32-groups:engine:none")
UNIVERSAL = ("3-fp32:universal:fp32", "3-bf16:universal:bf16")
SHOWN = {"logits": True, "greedy": True, "engine": "DeepSpeedZeRoOffload"}
FIXED = ("task=qa", "model=local", "backend=deepspeed", "backend.device=cpu", "backend.threads=1")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield


@pytest.fixture
def copy(trained: Trained, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained("3-fp32"), tmp_path / "copy"))


def loaded(
    count: int, folder: Path, tokenizer: Path, result: Path, cases: tuple[str, ...]
) -> list[dict[str, dict[str, Any]]]:
    """What each of `count` ranks says of each case."""
    words = (str(folder), str(tokenizer), str(result), *cases)
    process = on_ranks(count, HERE / "sliced.py", *words)
    text = said(process)
    assert process.returncode == 0, text[-4000:]
    files = [result.with_name(f"{result.name}-{rank}.json") for rank in range(count)]
    return [json.loads(file.read_text()) for file in files]


def refusal(model: Path, *words: str) -> str:
    """Why one rank does not load a model."""
    backend = api.open_backend(api.compose(*FIXED, f"model.path={model}", *words))
    with pytest.raises(SpecError) as caught:
        asyncio.run(backend.__aenter__())
    backend.dismiss()
    return str(caught.value)


def optimizer_file(folder: Path, rank: int) -> Path:
    return folder / f"global_step2/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def test_as_many_ranks_load_their_own_files_and_give_the_trained_model(
    trained: Trained, smollm2: Path, tmp_path: Path
) -> None:
    """Logits and greedy ids; groups, frozen layers; nothing stays but slices of weights.

    Each rank has a copy in which the weights of the other are emptied before it loads.
    """
    folder = trained("3-fp32").parent
    ranks = loaded(2, folder, smollm2, tmp_path / "of", (*ENGINE, UNIVERSAL[0]))
    for records in ranks:
        for case, record in records.items():
            assert record.items() >= SHOWN.items(), case
            assert record["slices"] <= record["held"] < 1.01 * record["slices"], case
            made = len(record["converted"])
            assert made == (case in UNIVERSAL), case


def test_another_number_of_ranks_loads_a_universal_checkpoint_of_weights_alone(
    trained: Trained, smollm2: Path, tmp_path: Path
) -> None:
    folder = trained("3-fp32").parent
    (records,) = loaded(1, folder, smollm2, tmp_path / "of", UNIVERSAL)
    for case, record in records.items():
        assert record.items() >= SHOWN.items(), case
        assert record["slices"] <= record["held"] < 1.01 * record["slices"], case
    made = tmp_path / "cache-/models" / records[UNIVERSAL[0]]["converted"][0]
    files = [path for path in made.rglob("*") if path.is_file()]
    assert {file.name for file in files} == {"fp32.pt", "rethink.json"}
    numbers = sum(file.stat().st_size for file in files) / 4
    assert numbers < 1.1 * (records[UNIVERSAL[0]]["slices"] / 4)


def test_another_number_of_ranks_is_refused_with_both_numbers_and_the_other_ways(
    trained: Trained, smollm2: Path
) -> None:
    words = (f"model.tokenizer={smollm2}", "backend.load_checkpoint=engine")
    text = refusal(trained("3-fp32"), *words)
    assert "engine needs as many ranks as saved the checkpoint: 2 saved" in text
    assert "here is 1. Start 2, or set backend.load_checkpoint=universal or consolidated" in text


@pytest.mark.parametrize("way", ["engine", "universal"])
def test_what_is_not_cut_into_slices_must_be_consolidated(
    trained: Trained, smollm2: Path, way: str
) -> None:
    words = (f"model.tokenizer={smollm2}", f"backend.load_checkpoint={way}")
    rule = "backend.load_checkpoint must be consolidated for"
    assert f"{rule} model.path={smollm2}, which is no" in refusal(smollm2, *words)
    stage_2 = trained("2-bf16")
    assert f"{rule} {stage_2}/global_step2, which is not of stage 3" in refusal(stage_2, *words)


def test_files_that_are_missing_are_named(copy: Path, smollm2: Path) -> None:
    optimizer_file(copy, 1).unlink()
    text = refusal(copy, f"model.tokenizer={smollm2}", "backend.load_checkpoint=universal")
    assert "lacks files of rank 1 (" in text
    for file in (copy / "global_step2").glob("zero_pp_rank_1_*"):
        file.unlink()
    for way in ("engine", "universal"):
        words = (f"model.tokenizer={smollm2}", f"backend.load_checkpoint={way}")
        text = refusal(copy, *words)
        assert "saved by 2 ranks, and lacks zero_pp_rank_1_mp_rank_00_model_states.pt" in text


def test_a_damaged_file_is_named_before_anything_is_loaded(copy: Path, tmp_path: Path) -> None:
    file = optimizer_file(copy, 1)
    file.write_bytes(file.read_bytes()[:-1000])
    tag = copy / "global_step2"
    with pytest.raises(SpecError, match=f"{file} is cut off"):
        refuse_tag("engine", tag, str(copy), Place(1, 2, 1))
    refuse_tag("engine", tag, str(copy), Place(0, 2, 0))  # whose own file is whole
    with pytest.raises(SpecError, match=f"{file} is cut off"):
        universal_folder(tag, "c" * 64, tmp_path)


def test_latest_that_names_no_tag_is_told(copy: Path, smollm2: Path) -> None:
    (copy / "latest").write_text("global_step9")
    text = refusal(copy, f"model.tokenizer={smollm2}", "backend.load_checkpoint=universal")
    assert "latest names 'global_step9', which is not there" in text


def test_universal_refuses_what_deepspeed_leaves_out_of_it(trained: Trained) -> None:
    folder = trained("3-fp32-groups")
    with pytest.raises(SpecError, match="be engine or consolidated .* frozen in training"):
        refuse_tag("universal", folder / "global_step2", str(folder), Place())


def test_universal_refuses_an_optimizer_that_is_not_adam(copy: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        file = optimizer_file(copy, rank)
        states = torch.load(file, weights_only=False)
        states["optimizer_state_dict"]["optimizer_state_dict"]["state"] = {}
        torch.save(states, file)
    with pytest.raises(SpecError, match="cannot be made universal, .* states of Adam"):
        universal_folder(copy / "global_step2", "c" * 64, tmp_path)


def test_a_pickle_that_runs_a_program_is_not_converted(copy: Path, tmp_path: Path) -> None:
    file, made = optimizer_file(copy, 0), tmp_path / "made"
    torch.save(torch.load(file, weights_only=False) | {"more": Touch(made)}, file)
    with pytest.raises(SpecError, match="holds more than tensors"):
        universal_folder(copy / "global_step2", "c" * 64, tmp_path)
    with pytest.raises(SpecError, match="holds more than tensors"):
        refuse_tag("engine", copy / "global_step2", str(copy), Place(0, 2, 0))
    assert not made.exists()


def test_a_conversion_that_was_killed_leaves_nothing_that_is_used(
    trained: Trained, tmp_path: Path
) -> None:
    tag = trained("3-fp32") / "global_step2"
    script = f"""
import os, torch
from pathlib import Path
from components.models.zero_universal import universal_folder
save, saved = torch.save, []
def save_some(state, path):
    save(state, path)
    saved.append(path)
    if len(saved) == 200:  # of fragments and of merged weights
        os.kill(os.getpid(), 9)
torch.save = save_some
universal_folder(Path({str(tag)!r}), "c" * 64, Path({str(tmp_path)!r}))
"""
    environment = os.environ | ENVIRONMENT
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, timeout=200)
    assert killed.returncode == -signal.SIGKILL
    models = tmp_path / "models"
    (half,) = [path.name for path in models.iterdir() if path.suffix != ".lock"]
    assert ".part-" in half
    folder = universal_folder(tag, "c" * 64, tmp_path)
    assert [path for path in models.iterdir() if path.suffix != ".lock"] == [folder]
    weights = sorted(folder.glob("zero/*/fp32.pt"))
    assert len(weights) == 29
    weights[3].unlink()
    assert universal_folder(tag, "c" * 64, tmp_path) == folder
    assert weights[3].is_file()
