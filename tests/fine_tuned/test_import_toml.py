"""`launch/import_toml.py`: the fine-tuner's TOML file as an experiment of ours."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import api, import_toml, score_text
from launch.fine_tuned.config_file import read_config
from launch.fine_tuned.experiment_file import experiment_of
from pipeline.spec import RunSpec, SpecError
from tests.fakes.hub import local_hub

INFERENCER = {
    "max_sequence_length": "4096",
    "dtype": '"null"',
    "load_in_4bit": "false",
    "load_in_8bit": "false",
    "testing_data_id": '"org/questions"',
    "question_column": '"ask"',
    "ground_truth_column": '"gold"',
    "system_prompt_column": '"null"',
    "system_prompt_override_text": '"null"',
    "max_new_tokens": "512",
    "use_cache": "true",
    "temperature": "0.7",
    "min_p": "0.1",
    "hf_user_id": '"somebody"',
    "run_name": '"null"',
    "run_name_prefix": '""',
    "run_name_suffix": '""',
}
STEPS = {
    "enable_finetuning": "false",
    "enable_inference": "true",
    "enable_evaluation": "false",
    "stop_after_finetuning": "false",
    "stop_after_inference": "false",
}
ODD = (
    'Be "brief", \\"at\\" ${5} \\${oc.env:HOME}\\'  # a prompt that OmegaConf and Hydra may misread
)
MLFLOW = {"tracking_uri": '"http://x:1"', "experiment_name": '"tries"'} | {
    key: INFERENCER[key] for key in INFERENCER if key.startswith("run_name")
}


def section(name: str, values: dict[str, str]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())


def toml(folder: Path, rest: str = "", **changes: str | None) -> Path:
    """A configuration file with some keys of the section changed, or left out (None)."""
    values = {key: value for key, value in (INFERENCER | changes).items() if value is not None}
    path = folder / "config.toml"
    path.write_text(section("inferencer", values) + rest)
    return path


def spec_of(path: Path, model: str | None = "org/model", without: tuple[str, ...] = ()) -> RunSpec:
    return api.compose(*experiment_of(read_config(path), model, without).overrides).spec


def test_every_key_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOST_TOKENS", "64")
    monkeypatch.setenv("TEST_SET", "org/other")
    path = toml(
        tmp_path,
        section("mlflow", MLFLOW),
        max_sequence_length="1000",
        dtype='"bfloat16"',
        load_in_4bit="true",
        testing_data_id='"${TEST_SET}"',
        system_prompt_column='"system"',
        system_prompt_override_text=f"'{ODD}'",
        max_new_tokens='"${MOST_TOKENS}"',
        use_cache="false",
        temperature="0",
        run_name='"third"',
        run_name_prefix='"my"',
    )
    spec = spec_of(path, None)
    assert (spec.model.path, spec.model.max_length) == ("somebody/my_third", 1000)
    assert spec.quantization["name"] == "bnb_nf4"
    assert spec.quantization["arguments"]["bnb_4bit_compute_dtype"] == "bfloat16"
    assert spec.task["data"]["hub"] == "org/other" and spec.task["data"]["split"] == "train"
    assert spec.task["columns"]["question"] == "ask" and spec.task["columns"]["answer"] == "gold"
    assert spec.task["columns"]["system_prompt"] == "system"
    assert spec.task["system_prompt"] == ODD
    sampling = spec.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.min_p) == (64, 0, 0.1)
    assert (sampling.top_p, sampling.top_k) == (1, 0)
    assert spec.backend["decoder"] == "generate" and spec.backend["use_cache"] is False
    assert spec.tracking["uri"] == "http://x:1" and spec.tracking["experiment"] == "tries"
    assert spec.run.name == "my_third"


@pytest.mark.parametrize(
    ("changes", "rest", "said"),
    [
        ({"temprature": "1"}, "", "unknown key temprature: did you mean temperature?"),
        ({"min_p": None, "dtype": None}, "", "[inferencer] lacks dtype, min_p"),
        ({"temperature": '"hot"'}, "", "inferencer.temperature must be a number, got 'hot'"),
        ({"question_column": '"null"'}, "", "inferencer.question_column must be text, got 'null'"),
        ({"min_p": '"${NO_SUCH}"'}, "", "the environment has no NO_SUCH: set it"),
        ({"dtype": '"int3"'}, "", "dtype must be float16, bfloat16 or null, got int3"),
        ({"load_in_8bit": "true", "load_in_4bit": "true"}, "", "load_in_8bit must be false"),
        ({"run_name": '"a$b"'}, "", "run_name must hold none of $#@&*!, got '$'"),
        ({}, "[infernecer]\n", "unknown section infernecer: did you mean inferencer?"),
        ({}, "a = ", "is no TOML"),
        ({}, section("pipeline", STEPS | {"enable_inference": "false"}), "no inference to import"),
        ({}, section("pipeline", STEPS | {"enable_finetuning": "true"}), "add without=finetuning"),
        ({}, section("pipeline", {"enable_inference": "true"}), "[pipeline] lacks enable_fine"),
    ],
)
def test_what_cannot_be_imported_is_named(
    tmp_path: Path, changes: dict[str, str | None], rest: str, said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(toml(tmp_path, rest, **changes))
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_no_hub_id(tmp_path: Path) -> None:
    data = spec_of(toml(tmp_path, testing_data_id='"data/test.jsonl"')).task["data"]
    assert data["path"] == "data/test.jsonl" and data["hub"] is None


def test_steps_of_others_are_left_out_in_so_many_words(tmp_path: Path) -> None:
    both = STEPS | {"enable_finetuning": "true", "enable_evaluation": "true"}
    path = toml(tmp_path, section("pipeline", both))
    with pytest.raises(SpecError, match="add without=finetuning"):
        spec_of(path, without=("evaluation",))
    assert spec_of(path, without=("finetuning", "evaluation")).task["name"] == "qa"
    stops = toml(tmp_path, section("pipeline", both | {"stop_after_inference": "true"}))
    assert spec_of(stops, without=("finetuning",)).task["name"] == "qa"


EVALUATOR = {
    "metrics": '["bleu_score", "answer_accuracy", "semantic_similarity"]',
    "llm": '"gpt-4o-mini"',
    "embedding": '"models/minilm"',
    "cost_per_million_input_tokens": "0.15",
    "cost_per_million_output_tokens": "0.6",
} | {key: INFERENCER[key] for key in INFERENCER if key.startswith(("run_name", "hf_user"))}
EVALUATED = section("pipeline", STEPS | {"enable_evaluation": "true"})


def test_an_evaluation_becomes_a_line_that_scores_what_the_run_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = EVALUATED + section("evaluator", EVALUATOR) + section("mlflow", MLFLOW)
    path, out = toml(tmp_path, rest, run_name='"a run"'), tmp_path / "experiment/mine.yaml"
    assert import_toml.main([str(path), f"out={out}", "model=org/model"]) == 0
    begin = "then its evaluation: python launch/score_text.py "
    (said,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith(begin)]
    given = score_text.parser().parse_args(shlex.split(said.removeprefix(begin)))
    assert list(map(str, given.paths)) == ["outputs/a run"] and given.embedding == "models/minilm"
    assert given.metrics == ["bleu_score", "answer_accuracy", "semantic_similarity"]
    assert given.judge == ["backend=openai", "backend.deployment=gpt-4o-mini"]
    assert score_text.prices_of(given) == (0.15, 0.6)
    assert given.tracking == ["tracking=mlflow", "tracking.uri=http://x:1",
                              "tracking.experiment=tries"]  # fmt: skip
    assert score_text.chosen_metrics(given) == given.metrics
    assert said.removeprefix("then its evaluation: ") in out.read_text()
    left_out = experiment_of(read_config(path), "org/model", ("evaluation",))
    assert left_out.evaluation is None


def test_metrics_of_the_text_alone_need_neither_judge_nor_embedding(tmp_path: Path) -> None:
    plain = EVALUATOR | {"metrics": '["rouge_score"]', "llm": '"null"', "embedding": '"null"'}
    path = toml(tmp_path, EVALUATED + section("evaluator", plain))
    line = experiment_of(read_config(path), "org/model").evaluation
    assert line == "python launch/score_text.py outputs/inferencer --metrics rouge_score"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": '["bleu", "rouge_score"]'}, "evaluator.metrics must hold names of"),
        ({"metrics": '"bleu_score"'}, "evaluator.metrics must be a list of texts, one or more"),
        ({"llm": '"null"'}, "evaluator.llm must be set: one of its metrics is judged by a model"),
        ({"embedding": '"null"'}, "evaluator.embedding must be set"),
        ({"lm": '"x"'}, "[evaluator] has an unknown key lm"),
        (None, "must have a section [evaluator] for pipeline.enable_evaluation=true"),
    ],
)
def test_an_evaluation_that_cannot_be_is_named(
    tmp_path: Path, changes: dict[str, str] | None, said: str
) -> None:
    rest = "" if changes is None else section("evaluator", EVALUATOR | changes)
    with pytest.raises(SpecError) as caught:
        experiment_of(read_config(toml(tmp_path, EVALUATED + rest)), "org/model")
    assert said in str(caught.value)


def test_an_imported_run_and_the_same_run_by_groups_are_one(
    tiny_llama: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "test.jsonl"
    data.write_text(json.dumps({"question": "Why?", "answer": "so"}) + "\n")
    path = toml(tmp_path, testing_data_id=f'"{data}"', question_column='"question"',
                ground_truth_column='"answer"')  # fmt: skip
    out = tmp_path / "conf/experiment/mine.yaml"
    assert import_toml.main([str(path), f"out={out}", f"model={tiny_llama()}"]) == 0
    said = capsys.readouterr().out
    assert f"experiment={out.stem}" in said and f"model.path={tiny_llama()}" in said
    search = f"hydra.searchpath=[file://{tmp_path}/conf]"
    imported = api.compose(search, "experiment=mine", f"run.root={tmp_path}")
    groups = api.compose(
        *["task=qa", f"model.path={tiny_llama()}", f"task.data.path={data}"],
        *["experiment=inferencer", "model.max_length=4096", f"run.root={tmp_path}"],
    )
    points = [api.point_of(setup, api.open_backend(setup)) for setup in (imported, groups)]
    assert points[0].fingerprint == points[1].fingerprint
    assert points[0].folder == points[1].folder


def test_a_text_is_a_text_in_the_file_too(tmp_path: Path) -> None:
    path = toml(tmp_path, system_prompt_override_text=f"'{ODD}'")
    out = tmp_path / "conf/experiment/odd.yaml"
    assert import_toml.main([str(path), f"out={out}", "model=org/model"]) == 0
    search = f"hydra.searchpath=[file://{tmp_path}/conf]"
    assert api.compose(search, "experiment=odd").spec.task["system_prompt"] == ODD


def test_an_import_writes_over_imports_alone(tmp_path: Path) -> None:
    path, out = toml(tmp_path), tmp_path / "experiment/mine.yaml"
    line = [str(path), f"out={out}", "model=org/model"]
    assert import_toml.main(line) == 0 and import_toml.main(line) == 0
    out.write_text("mine: 1\n")
    assert import_toml.main(line) == 2
    assert out.read_text() == "mine: 1\n"
    assert import_toml.main([str(path), f"out={tmp_path}/mine.yaml", "model=x/y"]) == 2
    assert import_toml.main([str(path), "output=x"]) == 2


def test_the_model_is_the_fine_tuners_folder_then_the_users_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = toml(tmp_path, run_name_suffix='"qa"')
    with local_hub(monkeypatch) as hub:
        listed = [{"id": "somebody/newer"}, {"id": "somebody/b_qa"}, {"id": "somebody/a_qa"}]
        hub.answers["GET", "/api/models"] = (200, {}, listed)
        assert spec_of(path, None).model.path == "somebody/b_qa"
        (asked,) = [path for _, path, _ in hub.requests if path.startswith("/api/models?")]
        assert "author=somebody" in asked and "sort=lastModified" in asked
        hub.answers["GET", "/api/models"] = (200, {}, listed[:1])
        with pytest.raises(SpecError, match="no model of somebody named to 'qa': add model="):
            spec_of(path, None)
    (tmp_path / "models/fine_tuned").mkdir(parents=True)
    (tmp_path / "models/fine_tuned/adapter_config.json").write_text("{}")
    assert spec_of(path, None).model.path == "models/fine_tuned"
