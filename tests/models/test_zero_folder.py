"""Which tag of a ZeRO checkpoint is meant is known, or asked for, before anything is opened."""

from pathlib import Path

import pytest

from components.models.checkpoint import resolve
from pipeline.spec import MissingCheckpointError, ModelSpec, SpecError

NAMES = [
    f"zero_pp_rank_{r}_mp_rank_00_{kind}_states.pt" for r in (0, 1) for kind in ("model", "optim")
]


def write_tag(folder: Path, tag: str, content: bytes = b"") -> None:
    (folder / tag).mkdir(parents=True)
    for name in NAMES:
        (folder / tag / name).write_bytes(content + name.encode())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Tags global_step10, global_step20 and mine; `latest` names the second."""
    folder = tmp_path / "saved"
    for tag in ("global_step10", "global_step20", "mine"):
        write_tag(folder, tag, tag.encode())
    (folder / "latest").write_text("global_step20")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


def spec_of(path: Path, **fields: object) -> ModelSpec:
    return ModelSpec(name="m", path=str(path), **fields)  # type: ignore[arg-type]


def refusal(spec: ModelSpec, cache: Path) -> str:
    with pytest.raises(SpecError) as caught:
        resolve(spec, cache)
    return str(caught.value)


def test_the_folder_is_its_latest_tag_and_any_tag_can_be_named(saved: Path, tmp_path: Path) -> None:
    for path, fields, tag, step in (
        (saved, {}, "global_step20", 20),
        (saved, {"step": "latest"}, "global_step20", 20),
        (saved, {"step": 10}, "global_step10", 10),
        (saved / "global_step10", {}, "global_step10", 10),
        (saved / "mine", {}, "mine", 0),
    ):
        found = resolve(spec_of(path, **fields), tmp_path)
        assert (Path(found.weights.location).name, found.step) == (tag, step)
        assert found.tokenizer.location == str(saved)


def test_latest_is_what_deepspeed_calls_so_though_a_higher_step_was_cut_off(
    saved: Path, tmp_path: Path
) -> None:
    (saved / "latest").write_text("global_step10\n")
    for fields in ({}, {"step": "latest"}):
        assert resolve(spec_of(saved, **fields), tmp_path).step == 10
    (saved / "latest").write_text("global_step30")
    assert "latest names 'global_step30', which is not there" in refusal(spec_of(saved), tmp_path)
    with pytest.raises(MissingCheckpointError, match="global_step30"):
        resolve(spec_of(saved, step="latest"), tmp_path)


def test_a_tag_that_is_not_there_is_refused_with_those_that_are(
    saved: Path, tmp_path: Path
) -> None:
    said = refusal(spec_of(saved / "global_step15"), tmp_path)
    assert "there is no 'global_step15'; name one of global_step10, global_step20, mine" in said
    (saved / "latest").unlink()
    assert "it has no file latest; name one of global_step10" in refusal(spec_of(saved), tmp_path)


def test_a_missing_rank_is_named(saved: Path, tmp_path: Path) -> None:
    (saved / "global_step20" / NAMES[1]).unlink()
    assert "lacks files of rank 0 (" in refusal(spec_of(saved), tmp_path)
    (saved / "global_step20" / "zero_pp_rank_0_mp_rank_01_model_states.pt").touch()
    assert "cut by ZeRO alone" in refusal(spec_of(saved), tmp_path)


def test_without_a_config_the_base_models_is_taken_or_asked_for(
    saved: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (saved / name).rename(base / name)
    said = refusal(spec_of(saved), tmp_path)
    assert "needs the config.json of its model" in said and "model.checkpoints=" in said
    (base / "model.safetensors").write_bytes(b"weights")
    found = resolve(spec_of(base, checkpoints=str(saved), step=20), tmp_path)
    assert found.weights.config == str(base) and found.tokenizer.location == str(base)


def test_a_model_beside_its_training_state_is_the_model(saved: Path, tmp_path: Path) -> None:
    (saved / "model.safetensors").write_bytes(b"weights")
    assert resolve(spec_of(saved), tmp_path).weights.kind == "folder"


def test_the_content_of_a_tag_is_its_identity(saved: Path, tmp_path: Path) -> None:
    before = resolve(spec_of(saved), tmp_path / "a").identity
    moved = saved.rename(tmp_path / "moved")
    assert resolve(spec_of(moved), tmp_path / "a").identity == before
    (moved / "global_step20" / NAMES[3]).write_bytes(b"other")
    assert resolve(spec_of(moved), tmp_path / "a").identity != before
