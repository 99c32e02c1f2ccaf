"""A run folder of somebody else's runs no code and tells no secret, whichever door reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch import export_rows, report, summarize
from launch.rows.stored_task import StoredTasks
from pipeline.protocols import Example
from pipeline.spec import SpecError
from tests.fakes.stored_rows import one, row, write_rows
from tests.reporting.test_report import unpacked

QA: dict[str, Any] = {
    "_target_": "components.tasks.qa.QuestionAnswering",
    "name": "qa",
    "data": {"path": None},
    "columns": {"id": ["id"], "question": "question", "answer": "answer"},
    "grader": "exact",
    "system_prompt": None,
    "user_prompt": "Q: {question}",
    "few_shot": [],
}
SECRET = "sk-THE-READERS-OWN-KEY"


def call(target: str, *arguments: Any) -> dict[str, Any]:
    return {"_target_": target, "_args_": list(arguments)}


def exploits(made: Path) -> dict[str, dict[str, Any]]:
    """Records that made a file, or told a secret, when records were instantiated."""
    code = f"__import__('pathlib').Path({str(made)!r}).touch()"
    few = {
        "sympify": call("sympy.sympify", code),
        "parse_expr": call("sympy.parsing.sympy_parser.parse_expr", code),
        "touch": {"_target_": "pathlib.Path.touch", "self": call("pathlib.Path", str(made))},
        "write_text": {
            **{"_target_": "pathlib.Path.write_text", "data": "x"},
            "self": call("pathlib.Path", str(made)),
        },
        "makedirs": call("os.makedirs", str(made)),
        "log file": call("logging.FileHandler", str(made)),
        "system": call("os.system", f"touch {made}"),
        "popen": call("subprocess.Popen", ["touch", str(made)]),
    }
    records = {name: QA | {"few_shot": value} for name, value in few.items()}
    records |= {f"{name}, in a list": QA | {"few_shot": [value]} for name, value in few.items()}
    records |= {
        "another class": {"_target_": "logging.FileHandler", "filename": str(made)},
        "a module of its own": QA | {"_target_": "evil_task.Task"},
        "another class of ours": QA | {"_target_": "components.tasks.prompts.Message"},
        "no name": QA | {"_target_": ["os.system"]},
        "the environment": QA | {"user_prompt": "X ${oc.env:OPENAI_API_KEY} Y"},
        "the environment, nested": QA | {"columns": {"id": "${oc.env:OPENAI_API_KEY}"}},
        "part of a call": QA | {"_partial_": True},
        "arguments": QA | {"_args_": ["x"]},
        "a list as system prompt": QA | {"system_prompt": [1]},
        "endless grading": QA | {"grading_seconds": 1e9},
    }
    return records


def run_folder(root: Path, task: Any) -> Path:
    """A folder as a run leaves it, of one row."""
    folder = root / "run/step-0"
    passed = one(True) | {"output": "4", "stop_reason_output": "eos", "finish_reason": "eos"}
    write_rows(folder / "step0000_test.jsonl", [row("2 + 2?", 0, passed, gold_answer="4")])
    record = {"attempts": [], "step": 0, "spec": {"task": task}}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The reader's own key, and a module that makes a file when it is imported."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    (tmp_path / "modules").mkdir()
    made = tmp_path / "made"
    (tmp_path / "modules/evil_task.py").write_text(
        f"import pathlib\npathlib.Path({str(made)!r}).touch()\nclass Task: pass\n"
    )
    return made


NAMES = list(exploits(Path("made")))


@pytest.mark.parametrize("name", NAMES)
def test_a_record_runs_no_code_and_tells_no_secret(
    secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = run_folder(tmp_path, exploits(secret)[name])
    page, rows = tmp_path / "report.html", tmp_path / "rows.jsonl"
    assert report.main([str(folder), "-o", str(page)]) == 0
    line = [str(folder), "to=jsonl", f"out={rows}", "schema=inferencer"]
    assert export_rows.main(line) == 2
    assert summarize.main([str(folder), "--recompute"]) == 2
    assert not secret.exists() and not rows.exists()
    (_, refused) = capsys.readouterr()
    pieces = unpacked(page)
    assert SECRET not in json.dumps({k: v for k, v in pieces.items() if isinstance(v, dict | list)})
    assert [r["prompt"] for r in pieces["index"]["rows"]] == [None]
    (note,) = [n for n in pieces["index"]["notes"] if "no prompts are shown" in n]
    assert "run.json" in note and "run.json" in refused
    assert SECRET not in refused


def test_a_row_composes_no_configuration_by_its_name_of_a_task(
    secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("${oc.env:OPENAI_API_KEY}", "../cue/wait", "qa task.data.path=/etc/passwd", ""):
        path = write_rows(tmp_path / "step0.jsonl", [row("A", 0, one(True), task=name)])
        assert summarize.main([str(path), "--recompute"]) == 2
        said = capsys.readouterr().err
        assert "the rows' task must be one of aime, carpark" in said and SECRET not in said


def test_the_recorded_settings_make_the_task(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, QA | {"few_shot": [{"user": "1 + 1?", "assistant": "2"}]})
    task = StoredTasks().recorded(folder)
    assert task is not None
    messages = task.prompt(Example("e", "2 + 2?")).messages
    assert [m.content for m in messages] == [("1 + 1?",), ("2",), ("Q: 2 + 2?",)]


def test_a_machines_settings_are_not_the_records(tmp_path: Path) -> None:
    math = {k: v for k, v in QA.items() if k not in ("grader", "_target_")}
    target = "components.tasks.mathematics.Mathematics"
    math |= {"_target_": target, "grading_workers": 10**12, "grading_seconds": 2}
    task: Any = StoredTasks().recorded(run_folder(tmp_path, math))
    assert task.grading_workers is None and task.grading_seconds == 2


def test_a_task_of_ones_own_is_made_when_its_configuration_is_named(tmp_path: Path) -> None:
    own = "tests.fakes.toy_task.ToyTask"
    (tmp_path / "mine/task").mkdir(parents=True)
    (tmp_path / "mine/task/toy.yaml").write_text(f"_target_: {own}\n")
    folder = run_folder(tmp_path, {"_target_": own})
    with pytest.raises(
        SpecError, match=r"'tests.fakes.toy_task.ToyTask', which no .* --config-dir"
    ):
        StoredTasks().recorded(folder)
    for tasks in (
        StoredTasks(config_dirs=[tmp_path / "mine"]),
        StoredTasks(classes=[own]),
        StoredTasks([f"task._target_={own}"]),
    ):
        assert type(tasks.recorded(folder)).__name__ == "ToyTask"


def test_a_record_nested_too_deep_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, QA)
    (folder / "run.json").write_text('{"spec": ' + "[" * 200_000 + "]" * 200_000 + "}")
    assert report.main([str(folder), "-o", str(tmp_path / "r.html")]) == 2
    assert "run.json is no record of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "columns"),
    [
        ("components.tasks.carpark.Carpark", {"board": "AAoo" * 3, "messages": [{"role": "x"}]}),
        ("components.tasks.carpark.Carpark", {"messages": "text"}),
        ("components.tasks.qa.QuestionAnswering", {"choices": 5}),
    ],
)
def test_a_row_that_no_task_could_ask_is_told_in_a_note(
    tmp_path: Path, target: str, columns: dict[str, Any]
) -> None:
    task = QA | {"_target_": target, "columns": {"id": "id"}}
    if "qa" not in target:
        del task["grader"]
    folder = run_folder(tmp_path, task)
    write_rows(folder / "step0000_test.jsonl", [row("q", 0, one(True), **columns)])
    assert report.main([str(folder), "-o", str(tmp_path / "r.html")]) == 0
    notes = unpacked(tmp_path / "r.html")["index"]["notes"]
    assert any("cannot ask it" in note for note in notes)
