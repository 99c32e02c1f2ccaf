"""What a person gets wrong on a command line ends in one sentence that names it, and status 2."""

import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import quantize_check
from launch.config.command_line import REFUSALS, arguments, ended, error_sentence
from launch.config.compose import build, build_backend, to_spec
from launch.config.words import quoted
from pipeline.analysis.row_files import find
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT, composed

LINE = ("task=math", "backend=echo")


def told(*words: str) -> str:
    """The sentence of a line that a run refuses before anything loads."""
    with pytest.raises(REFUSALS) as caught:
        spec = to_spec(composed(*arguments(words)))
        build("task", spec.task)
        build_backend(spec)
    text = error_sentence(caught.value)
    assert "\n" not in text
    return text


def command(door: str, *words: str) -> tuple[int, str]:
    line = [sys.executable, str(ROOT / "launch" / door), *words]
    environment = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}
    done = subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize("group", ["task", "backend", "model", "sampling", "cue", "cluster"])
@pytest.mark.parametrize("value", ["null", ""])
def test_a_group_set_to_nothing_lists_its_options(group: str, value: str) -> None:
    text = told("task=math", "backend=echo", f"{group}={value}")
    assert text.startswith(f"{group} must be one of ") and text.endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["backend=echo"], ["task must be one of", "crossword", "add task=NAME"]),
        ([*LINE, "experiment=nope"], ["experiment must be one of", "two_pass", "'nope'"]),
        ([*LINE, "cue=[wait,nope]"], ["cue must be one of", "reconsider", "'nope'"]),
        (["tsak=math"], ["tsak=math", "did you mean task?"]),
        ([*LINE, "bacth_size=3"], ["there is no bacth_size", "sampling"]),
        ([*LINE, "+bacth_size=3"], ["there is no bacth_size", "sampling"]),
        ([*LINE, "sampling.temprature=1"], ["sampling.temprature", "did you mean temperature?"]),
        ([*LINE, "sampling.penalty_alpha=1"], ["there is no sampling.penalty_alpha", "remote"]),
        ([*LINE, "sampling.max_tokens=1"], ["sampling.max_tokens", "sampling.max_new_tokens"]),
        ([*LINE, "backend.capacty=1"], ["backend.capacty", "did you mean capacity?"]),
        ([*LINE, "sampling.temperature=hot"], ["sampling.temperature", "hot", "Float"]),
        ([*LINE, "sampling.temperature=0,1"], ["add -m", "sampling.temperature=[0,1]"]),
        ([*LINE, "run.root=${nope}"], ["run.root", "nope"]),
        ([*LINE, "cue={mine:{text:hi}}"], ["cue.mine", "'+cue={mine: {text: ...}}'"]),
        ([*LINE, "model=local"], ["model.path must be given"]),
        ([*LINE, "temperature=0.3"], ["there is no temperature", "sampling.temperature?"]),
        ([*LINE, "model=gpt2"], ["'gpt2'", "model=local model.path=gpt2"]),
        ([*LINE, "+hydra.launcher.partitoin=gpu"], ["partitoin", "did you mean partition?"]),
        (["task=qa", "backend=echo", "task.system_prompt=a: [b"], ["must be quoted", '"a: [b"']),
        ([*LINE, "task.system_prompt=a, b"], ["for a text", '"a, b"']),
        (["task=math", "math"], ["math must be key=value", "task=math"]),
        ([*LINE, "hydra.launcher.timeout_min=soon"], ["hydra.launcher.timeout_min", "soon"]),
    ],
)
def test_a_line_that_does_not_compose_is_told_by_key(words: list[str], parts: list[str]) -> None:
    text = told(*words)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("run.missing_minutes=-1", "be 0 or more"),
        ("run.missing_minutes=inf", "finite"),
        ("run.name=''", "name a folder below run.root"),
        ("run.name=a/../../b", "name a folder below run.root"),
        ("run.root=''", "name a folder"),
        ("backend.capacity=0", "be 1 or more"),
        ("backend.capacity=many", "be a whole number"),
        ("backend.capacity=true", "be a whole number"),
        ("backend.seconds_per_token=-1", "be 0 or more"),
        ("task.user_prompt=null", "be text"),
        ("task.system_prompt=3", "be text or null"),
        ("task.think_cap=0", "be a number of tokens, 1 or more"),
        ("task.think_cap=1.5", "be a whole number"),
        ("task.grading_seconds=0", "be above 0"),
        ("task.grading_workers=0", "be null or 1 or more"),
        ("task.few_shot=[{a: 1}]", "hold entries with texts user and assistant"),
        ("task.few_shot=[{user: 1, assistant: 2}]", "hold entries with texts"),
        ("backend._target_=null", "name a class that can be imported"),
        ("backend._target_=os.system", "name a class that can be imported"),
        ("backend._target_=components.backends.nothere.X", "No module named"),
        ("run=null", "keys of it set one by one"),
        ("hydra.launcher=null", "keys of it set one by one"),
        ("task.few_shot=none", "be a list"),
        ("task.columns=null", "be a mapping"),
    ],
)
def test_a_value_out_of_bounds_or_of_another_kind_names_its_key(override: str, rule: str) -> None:
    key = override.partition("=")[0]
    text = told(*LINE, override)
    assert text.startswith(f"{key} must ") and rule in text, text


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("backend.pace.start=0", "backend.pace.start must lie in 1..most, got 0"),
        ("backend.pace.tolerance=much", "backend.pace.tolerance must be a number, got 'much'"),
        ("+backend.prices.m={input: -1, output: 2}", "backend.prices.m.input must be a number"),
        ("+backend.pace.strat=1", "backend.pace.strat is not a setting of"),
        ("backend.prices=cheap", "backend.prices must be a mapping or null, got 'cheap'"),
    ],
)
def test_a_setting_inside_a_component_is_checked_like_its_own(override: str, text: str) -> None:
    assert told("task=math", "backend=openai", "backend.deployment=m", override).startswith(text)


def test_a_sweep_into_a_root_that_cannot_be_written_says_run_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, text = command("run.py", "-m", *LINE, f"run.root={tmp_path / 'file' / 'out'}")
    assert status == 2 and text.startswith("error: the run folder ") and "set run.root" in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("door", ["run.py", "backfill.py"])
def test_both_doors_end_a_null_task_with_a_sentence_and_status_2(door: str) -> None:
    status, text = command(door, "task=null")
    assert (status, len(text.splitlines())) == (2, 1)
    assert text.startswith("error: task must be one of ")


@pytest.mark.parametrize("key", ["run.plan=true", "run.manifest=points.tsv"])
def test_what_is_for_sweeps_alone_is_refused_without_m(key: str, tmp_path: Path) -> None:
    status, text = command("run.py", *LINE, key, f"run.root={tmp_path}")
    assert status == 2 and text.startswith(f"error: {key.partition('=')[0]} must ")
    assert "-m" in text and len(text.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_hydras_own_switch_shows_the_traceback_of_a_line_that_does_not_compose() -> None:
    line = [sys.executable, str(ROOT / "launch/run.py"), *LINE, "sampling.temperature=hot"]
    switched = os.environ | {"HYDRA_FULL_ERROR": "1"}
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, env=switched)
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_ctrl_c_ends_a_command_with_130_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    assert ended(stopped) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert ended(stopped, "what is measured is kept") == 130
    assert "kept" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nowhere" / "file"
    assert ended(lambda: path.write_text("x")) == 2
    assert capsys.readouterr().err == (
        f"error: {path} cannot be read or written: No such file or directory\n"
    )


def test_a_model_by_hub_id_or_path_is_the_local_model_of_that_path() -> None:
    spec = to_spec(composed(*arguments(["task=math", "model=org/name"])))
    assert spec.model.path == "org/name"


def test_keys_that_other_doors_have_beside_the_groups_are_known() -> None:
    words = ["entropy=true", "backfill.input=rows.jsonl", "check.tokens=64", "out=here"]
    assert arguments(words) == words


def test_models_by_path_are_the_points_of_a_sweep_and_do_not_mix_with_options() -> None:
    words = arguments(["-m", "task=math", "model=org/one,org/two"])
    assert words == ["-m", "task=math", "model=local", "model.path=org/one,org/two"]
    assert arguments(["-m", "model=smollm2,qwen3_4b"]) == ["-m", "model=smollm2,qwen3_4b"]
    with pytest.raises(SpecError, match="model=smollm2,org/two must name options of conf/model/"):
        arguments(["-m", "task=math", "model=smollm2,org/two"])


@pytest.mark.parametrize("name", ["695e0514", "007", "1.50", "true", "null"])
def test_an_id_is_taken_as_it_is_typed(name: str) -> None:
    assert to_spec(composed(*arguments([*LINE, f"run.ids=[{name}]"]))).run.ids == [name]


def test_a_cue_that_yaml_read_as_a_number_is_told_to_be_quoted(tmp_path: Path) -> None:
    (tmp_path / "cue").mkdir()
    (tmp_path / "cue/late.yaml").write_text("late:\n  text: 12:30\n")
    words = [*LINE, f"hydra.searchpath=[file://{tmp_path}]", "cue=late"]
    with pytest.raises(REFUSALS, match="cue.late.text must hold a letter.*750"):
        to_spec(composed(*words))


def test_an_sbatch_option_that_the_schema_lacks_is_settable_without_a_plus() -> None:
    words = arguments(
        [*LINE, "cluster=slurm", "hydra.launcher.additional_parameters.reservation=x"]
    )
    launcher = composed(*words, with_hydra=True).hydra.launcher
    assert launcher.additional_parameters == {"reservation": "x"} and launcher.wckey is None


def test_a_run_folder_is_run_again_by_its_own_line(tmp_path: Path) -> None:
    latest = {"overrides": ["task=math", "backend=echo", "run.seed=3"], "attempts": []}
    (tmp_path / "run.json").write_text(json.dumps(latest))
    (tmp_path / "overrides.yaml").write_text("- task=qa\n")  # the first line, which is not it
    words = arguments([f"rerun={tmp_path}", "run.name=again", "run.seed=4"])
    assert words == ["task=math", "backend=echo", "run.name=again", "run.seed=4"]
    with pytest.raises(SpecError, match=f"rerun={tmp_path}"):
        arguments(["--config-path", str(tmp_path), "--config-name", "config"])
    with pytest.raises(SpecError, match="rerun must name a run folder"):
        arguments([f"rerun={tmp_path}/nowhere"])


def test_shell_completion_is_left_to_hydra() -> None:
    line = [sys.executable, str(ROOT / "launch/run.py"), "-sc", "install=bash"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "complete -o" in done.stdout, done.stderr


def test_the_doors_are_one_command_too() -> None:
    code = "import sys; from launch.rethink import main; sys.exit(main())"
    line = [sys.executable, "-c", code, "run", *LINE, "--cfg", "job"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "temperature: 0.7" in done.stdout, done.stderr


def test_composing_imports_neither_pandas_nor_torch() -> None:
    code = (
        "import sys, runpy; sys.argv = ['launch/run.py', 'task=math', '--cfg', 'job']\n"
        "try: runpy.run_path('launch/run.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(sorted({'pandas', 'torch'} & set(sys.modules)), file=sys.stderr)"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_standard_output_cannot_show_is_printed_as_escapes(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(seen, encoding=encoding))
    assert ended(lambda: print("é half \ud83d")) == 0
    assert seen.getvalue().decode() in ("\\xe9 half \\ud83d\n", "é half \\ud83d\n")


@pytest.mark.parametrize(
    "text", ["a b", r"C:\models\x", r"end\\", 'say "hi"', r"\"", "{a}: [b], c=$"]
)
def test_quoted_text_comes_through_the_command_line_as_it_is(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (parsed,) = OverridesParser.create().parse_overrides([f"key={quoted(text)}"])
    assert parsed.value() == text


@pytest.mark.parametrize(
    "key",
    [
        *("run.dir", "run.text_output", "run.cache_dir", "run.manifest", "model.tokenizer"),
        *("model.chat_template", "model.adapter", "model.checkpoints", "model.architecture"),
        *("model.revision", "model.routing", "task.answer_pattern"),
    ],
)
def test_a_key_that_null_switches_off_takes_no_empty_text(key: str) -> None:
    assert told("task=qa", "backend=echo", f"{key}=") == (
        f"{key} must be null, or not empty, got ''"
    )


def test_an_empty_path_is_not_the_working_folder() -> None:
    assert told(*LINE, "model.path=") == (
        "model.path must name a hub id, a folder or a file, got ''"
    )
    assert told(*LINE, "run.root=") == "run.root must name a folder, got ''"
    hf = ("task=math", "backend=hf")
    assert told(*hf, "backend.assistant_model=").startswith("backend.assistant_model must be null")
    assert told("task=qa", "backend=echo", "task.data.path=").startswith("task.data.path must ")
    with pytest.raises(SpecError, match="out must name a folder, got ''"):
        quantize_check.check(["model=smollm2", "quantization=fp32", "out="])
    with pytest.raises(SpecError, match=r"check\.text must be null, or not empty"):
        quantize_check.check(["model=smollm2", "quantization=fp32", "check.text="])
    status, text = command("export_model.py", "to=safetensors", "model=smollm2", "out=")
    assert (status, text) == (2, "error: out must name a folder, got ''")


@pytest.mark.parametrize(
    ("door", "words"),
    [
        ("summarize", [""]),
        ("summarize", [".", "--save_csv", ""]),
        ("report", [""]),
        ("report", [".", "-o", ""]),
        ("report", [".", "--compare", ""]),
        ("status", [""]),
        ("status", [".", "--manifest", ""]),
        ("score_text", [""]),
        ("score_text", [".", "--out", ""]),
        ("boards", ["solve", ""]),
        ("import_toml", [""]),
    ],
)
def test_an_argument_that_names_nothing_is_refused(
    door: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{door}.py", *words])
    with pytest.raises(SystemExit) as ended_with:
        importlib.import_module(f"launch.{door}").main()
    assert ended_with.value.code == 2
    assert capsys.readouterr().err.endswith("must name a file or a folder, got ''\n")


def test_runs_that_name_nothing_are_refused_in_settings_too() -> None:
    with pytest.raises(SpecError, match="the runs must be folders, or files of rows, got ''"):
        find([""])


def test_a_flag_among_settings_is_refused_in_a_sentence() -> None:
    with pytest.raises(SpecError) as caught:
        quantize_check.check(["-m", "model=smollm2", "quantization=fp32"])
    assert str(caught.value) == (
        "-m must be left out: a line here is settings alone, key=value; launch/run.py sweeps"
    )
    assert told(*LINE, "--nope").startswith("--nope must be key=value, such as task=math (Lexer")
