"""`run.text_output` and `task.prompt`: answers as plain text, in a file or where they are read."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch import api
from launch.config.command_line import arguments
from launch.running.here import run_ready
from launch.running.text_output import refuse_one_file_for_several
from launch.talk.screen import Screen
from pipeline.spec import SpecError

ECHO = ("task=prompts", "backend=echo")


def made(root: Path, *line: str) -> api.RunOutcome:
    outcome = api.run(api.compose(*arguments([*ECHO, f"run.root={root}", *line])))
    assert outcome.status == 0
    return outcome


def test_blocks_of_prompt_and_answer_in_the_order_of_the_prompts(tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "new" / "out.txt"
    prompts.write_text("red green blue\n\n  \nÄpfel und Birnen\n", "utf-8")
    line = (f"task.data.path={prompts}", f"run.text_output={out}", "sampling.num_samples=2")
    outcome = made(tmp_path, *line)
    texts = [(row["problem"], row["pass1"]["output"]) for row in outcome.rows()]
    blocks = out.read_text("utf-8").split("\n\n")
    assert blocks[:4] == [f"Prompt: {prompt}\nGenerated: {text}" for prompt, text in texts]
    assert [prompt for prompt, _ in texts] == ["red green blue"] * 2 + ["Äpfel und Birnen"] * 2
    assert blocks[4:] == [""] and list(out.parent.iterdir()) == [out]


def test_a_run_that_goes_on_writes_the_text_of_all_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    made(tmp_path, "run.limit=1", f"run.text_output={out}")
    first = out.read_text()
    assert first.count("Prompt: ") == 1
    outcome = made(tmp_path, f"run.text_output={out}")
    assert out.read_text().startswith(first) and out.read_text().count("Prompt: ") == 6
    assert sorted(row["attempt"] for row in outcome.rows()) == [1, 2, 2, 2, 2, 2]


def test_a_complete_run_gives_its_text_without_asking_again(tmp_path: Path) -> None:
    outcome, out = made(tmp_path), tmp_path / "out.txt"
    before = outcome.point.rows_path.read_bytes()
    made(tmp_path, f"run.text_output={out}")
    assert out.read_text().count("Generated: ") == 6
    assert outcome.point.rows_path.read_bytes() == before


def test_a_file_that_is_no_text_of_a_run_is_not_replaced(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("red green\n")
    with pytest.raises(SpecError, match="run.text_output must name a new file, or the text of"):
        made(tmp_path, f"task.data.path={prompts}", f"run.text_output={prompts}")
    assert prompts.read_text() == "red green\n" and list(tmp_path.iterdir()) == [prompts]


def test_a_later_pass_has_a_line_that_names_its_cue(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    outcome = made(tmp_path, "cue=wait", "run.limit=1", f"run.text_output={out}")
    (row,) = outcome.rows()
    name, text = row["pass2"]["cue"], row["pass2"]["output"]
    assert f"\nGenerated after {name}: {text}\n" in out.read_text()


def test_a_file_that_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "out.txt"):
        with pytest.raises(SpecError, match="run.text_output must name a file"):
            made(tmp_path / "runs", f"run.text_output={place}")
    with pytest.raises(SpecError, match="run.text_output must be null, or not empty"):
        made(tmp_path / "runs", "run.text_output=''")
    assert not list(tmp_path.rglob("*.jsonl"))
    specs = [api.compose(*ECHO, "run.text_output=o.txt", f"run.seed={n}").spec for n in (1, 2)]
    with pytest.raises(SpecError, match="a file of its own for each point of a sweep"):
        refuse_one_file_for_several(specs)


@pytest.mark.parametrize(
    "text", ["It's 5, right? (yes) {x}", 'say "no" \\', "costs ${money} \\${x}", "two\nlines", "5"]
)
def test_a_prompt_is_asked_as_it_is_typed(text: str, tmp_path: Path) -> None:
    spec = api.compose(*arguments([*ECHO, f"task.prompt={text}"])).spec
    assert spec.task["texts"] == [text]


def test_without_a_terminal_the_answer_alone_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = made(tmp_path, "task.prompt=Why, why is the sky blue?")
    (row,) = outcome.rows()
    said, beside = capsys.readouterr()
    assert said == row["pass1"]["output"] + "\n" and "complete: 1 of 1 rows" in beside
    made(tmp_path, "task.prompt=Why, why is the sky blue?")
    assert capsys.readouterr().out == said
    outcome = made(tmp_path, "task.prompt=Why?", "sampling.num_samples=2", "cue=wait")
    expected = ""
    for row in outcome.rows():
        expected += f"[sample {row['sample_idx']}]\n{row['pass1']['output']}\n"
        expected += f"[after wait]\n{row['pass2']['output']}\n"
    assert capsys.readouterr().out == expected


def test_answers_of_a_sweep_say_which_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*ECHO, "task.prompt=Why?", f"run.root={tmp_path}"]
    for seed in ("1", "2"):
        setup = api.compose(*arguments([*line, f"run.seed={seed}"]))
        backend = api.open_backend(setup)
        point = replace(api.point_of(setup, backend), swept={"run.seed": seed})
        run_ready([point], backend, [setup.config_text])
    said = capsys.readouterr().out.splitlines()
    assert said[::2] == ["[run.seed=1]", "[run.seed=2]"] and len(said) == 4


def test_a_terminal_shows_the_answer_while_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[str] = []
    show = Screen.piece

    def noted(screen: Screen, text: str, phase: str) -> None:
        assert not [path for path in tmp_path.rglob("step*.jsonl") if path.read_bytes()]
        pieces.append(text)
        show(screen, text, phase)

    monkeypatch.setattr(Screen, "piece", noted)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    outcome = made(tmp_path, "task.prompt=<think>why</think> so", "cue=wait")
    (row,) = outcome.rows()
    assert len(pieces) > 1 and "".join(pieces) in row["pass1"]["output"]
    said = capsys.readouterr().out
    assert said.count(row["pass2"]["output"]) == 1 and "complete" not in said
