"""`Inferencer`: the fine-tuner's class over a run of ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.fine_tuned.inferencer import Inferencer
from pipeline.spec import SpecError
from tests.fine_tuned.test_import_toml import toml

ROWS = [
    {"id": "a", "question": "Why?", "answer": "so", "system": "Be brief."},
    {"id": "b", "question": "How?", "answer": "thus", "system": "Be kind."},
    {"id": "c", "question": "Who?", "answer": "she", "system": "Be quick."},
]
COLUMN = "task.columns.system_prompt=system"


@pytest.fixture
def line(tiny_llama: Callable[..., Path], tmp_path: Path) -> list[str]:
    """A run of the tiny Llama over three questions."""
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return [
        *[f"model.path={tiny_llama()}", f"task.data.path={data}", f"run.root={tmp_path}/runs"],
        *["backend.device=cpu", "backend.decoder=generate", "sampling.max_new_tokens=4", COLUMN],
    ]


def lines_of(inferencer: Inferencer) -> list[dict[str, Any]]:
    assert inferencer.outcome is not None
    path = inferencer.outcome.folder / "inferencer_output.jsonl"
    return [json.loads(text) for text in path.open(encoding="utf-8")]


def test_a_run_that_is_stopped_and_started_again_has_each_row_once(line: list[str]) -> None:
    first = Inferencer(None, *line)
    part = first.generate_responses(first.process_dataset()[1:2])
    assert [row["question"] for row in part] == ["How?"]
    again = Inferencer(None, *line)
    results = again.run()
    assert [row["question"] for row in results] == ["Why?", "How?", "Who?"]
    assert results[1] == part[0]  # with its seconds: it was not made again
    assert again.run() == results == lines_of(again)
    assert again.outcome and first.outcome and again.outcome.folder == first.outcome.folder
    meta = results[0]["metadata"]
    assert 0 < meta["token_count"] <= 4 and meta["inference_time"] > 0
    speed = meta["token_count"] / meta["inference_time"]
    assert meta["tokens_per_second"] == pytest.approx(speed, rel=1e-3)
    used = meta["generation_config"]
    assert (used["temperature"], used["min_p"], used["max_new_tokens"]) == (0.7, 0.1, 4)
    assert used["do_sample"] is True


def test_the_keys_of_its_code(line: list[str]) -> None:
    results = Inferencer(None, *line, schema="inferencer").run()
    keys = ["system_prompt", "user_prompt", "assistant_response", "ground_truth"]
    assert [list(row) for row in results] == [keys] * 3
    assert [row["system_prompt"] for row in results] == [row["system"] for row in ROWS]
    assert [row["ground_truth"] for row in results] == ["so", "thus", "she"]


def test_the_methods_step_by_step_give_what_run_gives(line: list[str]) -> None:
    whole = Inferencer(None, *line, "run.name=whole").run()
    steps = Inferencer(None, *line)
    model, tokenizer = steps.load_model_and_tokenizer()
    assert model.num_parameters() > 0 and tokenizer.eos_token
    processed = steps.process_dataset(ROWS[:2])
    assert [item["example_id"] for item in processed] == ["a", "b"]
    assert "Be brief." in processed[0]["prompt"] and "Why?" in processed[0]["prompt"]
    answers = steps.generate_responses(processed)
    texts = [row["predicted_answer"] for row in answers]
    assert texts == [row["predicted_answer"] for row in whole[:2]]


def test_a_subclass_generates_by_itself(line: list[str]) -> None:
    class Shouting(Inferencer):
        def custom_generate(self, prompt: str) -> str:
            assert self.model is not None
            return f"{len(self.tokenizer(prompt).input_ids)} " + prompt.split("?")[0][-3:].upper()

    results = Shouting(None, *line).run()
    assert [row["predicted_answer"].split()[1] for row in results] == ["WHY", "HOW", "WHO"]
    plain = Inferencer(None, *line)
    plain.run()
    assert len({path.parent for path in plain.outcome.folder.parent.parent.rglob("run.json")}) == 2  # type: ignore[union-attr]


def test_a_toml_file_is_the_configuration(line: list[str], tmp_path: Path) -> None:
    path = toml(tmp_path, question_column='"question"', ground_truth_column='"answer"')
    with pytest.raises(SpecError, match="task.data must name a path or a hub id, not both"):
        Inferencer(path, *line).run()
    results = Inferencer(path, *line, "task.data.hub=null").run()
    assert [row["question"] for row in results] == ["Why?", "How?", "Who?"]


def test_what_is_wrong_is_told(line: list[str], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="model.path must name an existing folder"):
        Inferencer(None, *line, "model.path=./nowhere").load_model_and_tokenizer()
    with pytest.raises(SpecError, match="schema must be one of"):
        Inferencer(None, *line, schema="rows")
    with pytest.raises(SpecError, match="config.toml cannot be read"):
        Inferencer(tmp_path / "config.toml")
    with pytest.raises(SpecError, match="needs backend=hf, got echo"):
        echo = [word for word in line if not word.startswith("backend.")]
        Inferencer(None, *echo, "backend=echo").load_model_and_tokenizer()
