"""Every choice composes; a misspelt key dies with a sentence naming it, before a model loads."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from launch.config.command_line import arguments
from launch.config.compose import build, to_spec
from launch.status import main as status_of
from launch.sweeps.plan import measured
from pipeline.spec import RunSpec, SpecError
from tests.fakes.configs import ROOT, composed

REFUSED = (HydraException, OmegaConfBaseException, SpecError)
GROUPS = ("task", "backend", "model", "sampling", "cue", "quantization")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


@pytest.mark.parametrize("choice", [f"{g}={o}" for g in GROUPS for o in options(g)])
def test_every_option_composes_and_binds_to_its_constructor(choice: str) -> None:
    needed = [] if choice.startswith("task=") else ["task=math"]
    if choice == "model=local":
        needed += ["model.path=/some/folder"]
    spec = to_spec(composed(*needed, choice))
    assert isinstance(spec, RunSpec)


# What makers publish in model cards and generation configs: temperature, top_p, top_k, and the
# tokens that a reasoning model gets. Where the maker names nothing, our default stands.
MAKERS = {
    "Qwen/Qwen3-": (0.6, 0.95, 20, 32768),
    "Qwen/Qwen2.5-Math-": (0.0, 1.0, 0, None),
    "deepseek-ai/DeepSeek-R1-Distill-": (0.6, 0.95, 0, 32768),
    "allenai/Olmo-3-": (0.6, 0.95, 0, 32768),
    "allenai/OLMo-2-": (0.7, 0.95, 0, None),
    "HuggingFaceTB/SmolLM3-": (0.6, 0.95, 0, 32768),
    "openai/gpt-oss-": (1.0, 1.0, 0, 32768),
    "meta-llama/Llama-3": (0.6, 0.9, 0, None),
    "google/gemma-3-": (1.0, 0.95, 64, None),
}


@pytest.mark.parametrize("model", [m for m in options("model") if m not in ("hosted", "local")])
def test_a_named_model_is_sampled_as_its_maker_says(model: str) -> None:
    spec = to_spec(composed("task=math", f"model={model}"))
    if not (ROOT / spec.model.path).exists() and not spec.model.path.startswith("package:"):
        (asked,) = [asked for maker, asked in MAKERS.items() if spec.model.path.startswith(maker)]
        chosen = spec.sampling
        cap = spec.model.reasoning_cap
        assert (chosen.temperature, chosen.top_p, chosen.top_k, cap) == asked
    typed = to_spec(composed("task=math", f"model={model}", "sampling.temperature=0.5"))
    assert typed.sampling.temperature == 0.5


def refusal(*overrides: str, conf: Path = ROOT / "conf") -> str:
    with pytest.raises(REFUSED) as caught:
        to_spec(composed(*overrides, conf=conf))
    causes = [caught.value, caught.value.__cause__]
    return " | ".join(str(error) for error in causes if error)


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("sampling.temprature=0.3", ["temprature"]),
        ("sampling.temperature=hot", ["temperature", "hot"]),
        ("bacth_size=3", ["bacth_size"]),
        ("task=crosswrod", ["crosswrod", "crossword"]),
        ("cluster=slrum", ["slrum", "local"]),
        ("+sampling.temprature=0.3", ["temprature"]),
        ("+bacth_size=3", ["bacth_size"]),
        ("+task.sytem_prompt=x", ["task.sytem_prompt"]),
        ("+backend.bacth_size=3", ["backend.bacth_size"]),
        ("backend.bacth_size=3", ["bacth_size"]),
        ("+backend.model=x", ["backend.model"]),
        ("+quantization.dtpye=x", ["quantization.dtpye"]),
        ("+cue.wait.txet=x", ["txet"]),
        ("+model.nmae=x", ["nmae"]),
        ("+run.lmit=3", ["lmit"]),
        ("sampling.temperature=-1", ["sampling.temperature", "-1"]),
        ("sampling.top_p=0", ["sampling.top_p"]),
        ("run.entropy=some", ["run.entropy", "some"]),
        ("model.step=first", ["model.step", "first"]),
        ("run.pass1_sample=4", ["run.pass1_sample", "num_samples"]),
        ("hydra.launcher.partion=x", ["partion"]),
    ],
)
def test_a_misspelt_or_impossible_value_is_refused_by_name(override: str, names: list[str]) -> None:
    message = refusal("task=math", "backend=echo", override)
    assert all(name in message for name in names), message


@pytest.mark.parametrize(
    ("file", "line", "names"),
    [
        ("sampling/default.yaml", "temprature: 0.3", ["temprature"]),
        ("config.yaml", "bacth_size: 3", ["bacth_size"]),
        ("task/crossword.yaml", "sytem_prompt: x", ["task.sytem_prompt"]),
        ("backend/echo.yaml", "capactiy: 3", ["backend.capactiy"]),
        ("cue/wait.yaml", "wiat:\n  txet: x", ["txet"]),
    ],
)
def test_a_misspelt_key_in_a_yaml_file_is_refused_by_name(
    tmp_path: Path, file: str, line: str, names: list[str]
) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    path = tmp_path / "conf" / file
    path.write_text(path.read_text() + f"\n{line}\n")
    message = refusal("task=crossword", "backend=echo", "cue=wait", conf=tmp_path / "conf")
    assert all(name in message for name in names), message


def test_an_experiment_beats_groups_and_the_command_line_beats_it(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    text = "# @package _global_\ndefaults:\n  - override /task: carpark\nsampling:\n  top_k: 7\n"
    (tmp_path / "conf/experiment/mine.yaml").write_text(text)
    line = ("backend=echo", "experiment=mine")
    spec = to_spec(composed(*line, conf=tmp_path / "conf"))
    assert spec.sampling.top_k == 7 and "carpark" in spec.task["_target_"]
    spec = to_spec(composed(*line, "sampling.top_k=9", conf=tmp_path / "conf"))
    assert spec.sampling.top_k == 9


def test_cues_combine_and_keep_their_order() -> None:
    spec = to_spec(composed("task=math", "backend=echo", "cue=reconsider_control"))
    assert list(spec.cue) == ["hold_on", "restart", "wait", "neutral"]
    assert [cue.control for cue in spec.cue.values()] == [False, False, False, True]
    two = to_spec(composed("task=math", "backend=echo", "cue=[neutral,wait]"))
    assert list(two.cue) == ["neutral", "wait"]


def test_the_schema_is_plain_past_the_door() -> None:
    spec = to_spec(composed("task=math", "backend=echo"))
    assert type(spec.task) is dict and type(spec.cue) is dict
    with pytest.raises(AttributeError):
        spec.sampling.temprature = 1  # type: ignore[attr-defined]


def test_a_missing_task_lists_the_tasks() -> None:
    command = [sys.executable, "launch/run.py", "backend=echo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "task" in done.stderr and "crossword" in done.stderr


@pytest.mark.parametrize(
    "override",
    [
        "sampling.temperature=inf",
        "sampling.repetition_penalty=inf",
        "run.lease_seconds=inf",
        "run.split=a/b",
        "cue.wait.text=' '",
    ],
)
def test_a_value_that_would_fail_later_is_refused_at_once(override: str) -> None:
    key = override.partition("=")[0]
    assert f"{key} must" in refusal("task=math", "cue=wait", override)


@pytest.mark.parametrize("setting", ["grading_seconds=-1", "grading_workers=0", "data=null"])
def test_a_setting_that_a_constructor_refuses_ends_in_a_sentence(setting: str) -> None:
    with pytest.raises(SpecError, match=f"task.{setting.partition('=')[0]} must"):
        build("task", to_spec(composed("task=math", f"task.{setting}")).task)


def test_flags_may_stand_anywhere_and_help_needs_no_task() -> None:
    assert arguments(["task=qa", "-m", "run.seed=1,2"]) == ["-m", "task=qa", "run.seed=1,2"]
    assert arguments(["--help"]) == ["--help", "task=math"]
    assert arguments(["task=qa", "--help"]) == ["--help", "task=qa"]
    assert arguments(["--cfg", "job", "task=qa"]) == ["--cfg", "job", "task=qa"]


@pytest.mark.parametrize("script", ["run.py", "backfill.py"])
def test_help_says_the_choices(script: str) -> None:
    line = [sys.executable, str(ROOT / "launch" / script), "--help"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "crossword" in done.stdout and "num_samples" in done.stdout
    listed, _, _ = done.stdout.partition("Keys (key=value)")
    if script == "run.py":
        assert "\nmodel: bdh_tiny, " in listed and "\nsampling: " in listed
        assert not [word for word in ("legacy", "math-azure", "base", "prices") if word in listed]
        assert max(map(len, listed.splitlines()[1:])) <= 100


def test_a_torn_run_record_is_named_by_the_sweep_and_by_the_table(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/run.json").write_text('{"finger')
    assert status_of([str(tmp_path), "--once"]) == 2
    with pytest.raises(SpecError, match=r"a/run.json is no record of a run"):
        measured(tmp_path)
