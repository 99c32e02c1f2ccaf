"""What `model.path` and `model.step` find under a root of run folders, and what they say else."""

import json
import os
from pathlib import Path

import pytest

from components.models.checkpoint import resolve
from components.models.found_models import found_models
from pipeline.spec import MissingCheckpointError, SpecError
from tests.models.test_checkpoint import model, write_model

HOUR = 3600


def saved(folder: Path, hours: int) -> Path:
    """Let the weights of a folder be written so many hours after the first day of 2026."""
    for file in folder.iterdir():
        os.utime(file, (1767225600 + hours * HOUR,) * 2)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs: one was cut off after two checkpoints, one ended with a model and an adapter."""
    root = tmp_path / "runs"
    for name, hours in (("first/checkpoint-10", 1), ("first/checkpoint-20", 2), ("second", 4)):
        saved(write_model(root / name, name.encode()), hours)
    (root / "second" / "trainer_state.json").write_text('{"global_step": 55}')
    adapter = root / "second" / "checkpoint-50"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"adapter")
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    saved(adapter, 3)
    (root / "first" / "checkpoint-40").mkdir()
    saved(root / "first", 9)
    return root


def test_latest_of_a_root_of_runs_is_the_model_that_was_saved_last(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = resolve(model(root, step="latest"), tmp_path / "cache")
    assert (found.weights.location, found.step) == (str(root / "second"), 55)
    assert f"model.step=latest is {root / 'second'}" in caplog.text
    saved(root / "first" / "checkpoint-10", 5)  # by the time of weights, not by the number
    found = resolve(model(root, step="latest"), tmp_path / "cache")
    assert (Path(found.weights.location).name, found.step) == ("checkpoint-10", 10)


def test_within_a_run_latest_is_still_its_highest_step(root: Path, tmp_path: Path) -> None:
    saved(root / "first" / "checkpoint-10", 9)
    (root / "first" / "checkpoint-40").rmdir()
    assert resolve(model(root / "first", step="latest"), tmp_path / "cache").step == 20


def test_runs_that_were_saved_at_the_same_time_are_refused_with_the_choices(
    root: Path, tmp_path: Path
) -> None:
    saved(root / "first" / "checkpoint-20", 4)
    saved(root / "first" / "checkpoint-10", 4)
    with pytest.raises(SpecError, match="saved at the same time") as caught:
        resolve(model(root, step="latest"), tmp_path / "cache")
    assert str(root / "second") in str(caught.value)
    assert str(root / "first" / "checkpoint-20") in str(caught.value)
    assert str(caught.value).endswith("set model.path to one of these paths")


def test_a_root_without_a_step_is_refused_with_a_table_of_what_it_holds(
    root: Path, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(model(root), tmp_path / "cache")
    first, header, *rows, todo = str(caught.value).splitlines()
    assert first == f"model.path={root} must be a model, and holds several places of them:"
    assert header.split() == ["step", "kind", "saved", "path"]
    cut_off, *whole = [row.split() for row in rows]
    assert cut_off[:3] == ["40", "no", "weights"]
    assert [row[0] for row in whole] == ["55", "50", "20", "10"], "the newest first"
    assert whole[1][1:3] == ["LoRA", "adapter"] and whole[1][-1] == str(
        root / "second" / "checkpoint-50"
    )
    assert "model.step=latest" in todo


@pytest.mark.parametrize("step", [25, "best"])
def test_a_step_that_is_not_there_is_told_with_the_table(
    root: Path, tmp_path: Path, step: int | str
) -> None:
    with pytest.raises(MissingCheckpointError) as caught:
        resolve(model(root / "first", step=step), tmp_path / "cache")
    first, header, *rows, todo = str(caught.value).splitlines()
    assert first.endswith(f"has (10, 20, 40), got {step!r}:")
    assert {row.split()[0] for row in rows} == {"10", "20", "40"}
    assert todo.startswith("set model.step to one of its steps")
    with pytest.raises(MissingCheckpointError, match="there is no model under that folder"):
        (tmp_path / "empty").mkdir()
        resolve(model(tmp_path / "empty", step=step), tmp_path / "cache")


def test_kinds_are_told_from_files_alone(tmp_path: Path) -> None:
    bdh = write_model(tmp_path / "bdh")
    (bdh / "config.json").write_text(
        json.dumps({"n_embd": 8, "mlp_internal_dim_multiplier": 4, "model_type": "bdh"})
    )
    for name in ("model.pt", "checkpoint-0000007.pt", "optimizer.pt"):
        (tmp_path / "bdh" / name).write_bytes(b"")
    both = write_model(tmp_path / "both")
    (both / "config.yaml").write_text("model: {}\nmemory: {}\n")
    (tmp_path / "zero" / "global_step3").mkdir(parents=True)
    (tmp_path / "zero" / "latest").write_text("global_step3")
    (tmp_path / "zero" / "global_step3" / "mp_rank_00_model_states.pt").write_bytes(b"")
    (tmp_path / "q4.gguf").write_bytes(b"")
    (tmp_path / ".hidden").mkdir()
    write_model(tmp_path / ".hidden" / "model")
    kinds = {str(each.path.relative_to(tmp_path)): each.kind for each in found_models(tmp_path)}
    assert kinds == {
        "bdh": "BDH",
        "bdh/checkpoint-0000007.pt": "training file",
        "both": "files of two kinds",
        "zero/global_step3": "DeepSpeed ZeRO",
        "q4.gguf": "GGUF",
    }
