"""Task prompts: texts from a file or the config, without gold."""

from pathlib import Path

import pytest

from pipeline.spec import SpecError
from tests.fakes.passes import single
from tests.fakes.tasks import task


def test_a_text_file_gives_one_prompt_a_line_and_skips_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("Once upon\n\n  \n  indented stays\nlast", "utf-8")
    prompts = task("prompts", data={"path": str(path)})
    examples = prompts.examples()
    assert [e.question for e in examples] == ["Once upon", "  indented stays", "last"]
    assert prompts.prompt(examples[0]).messages[-1].content == ("Once upon",)
    fields = prompts.score(examples[0], single(" a time\n"))
    assert fields["is_correct_pred"] is None and fields["pred_answer"] == "a time"


def test_jsonl_prompts_may_bring_their_system_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "p", "prompt": "Hi", "system": "Be terse."}')
    prompts = task("prompts", data={"path": str(path)}, columns={"system_prompt": "system"})
    (example,) = prompts.examples()
    assert example.id == "p"
    assert [m.content for m in prompts.prompt(example).messages] == [("Be terse.",), ("Hi",)]


def test_texts_stand_in_the_config() -> None:
    examples = task("prompts", texts=["One", "Two"]).examples()
    assert [e.question for e in examples] == ["One", "Two"]
    with pytest.raises(SpecError, match="task.texts"):
        task("prompts", texts=["One"], data={"path": "x.txt"})
    with pytest.raises(SpecError, match=r"task.texts\[1\].*blank"):
        task("prompts", texts=["One", " "]).examples()


def test_a_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n")
    with pytest.raises(SpecError, match="no record"):
        task("prompts", data={"path": str(path)}).examples()


def test_default_prompts_are_embedded() -> None:
    assert len(task("prompts").examples()) == 6
