"""Task qa: columns by config, graders, and new data sets that are one YAML each."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from components.grading import text as text_grading
from pipeline.protocols import Example
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT
from tests.fakes.passes import single, tagged
from tests.fakes.tasks import task

CHOICES = ["red", "green", "blue"]


@pytest.mark.parametrize(
    ("grader", "gold", "pred", "equal"),
    [
        ("exact", "Paris", " Paris\n", True),
        ("exact", "Paris", "paris", False),
        ("normalised", "The  Eiffel Tower", "eiffel tower.", True),
        ("normalised", "caf\u00e9", "Cafe", True),
        ("normalised", "Paris", "Paris, France", False),
        ("normalised", "C++", "c", True),
        ("normalised", "++", "--", False),
        ("contains", "Paris", "It is Paris, of course.", True),
        ("contains", "Paris", "Parisian life", False),
        ("contains", "carbon dioxide", "Carbon-dioxide!", True),
        ("number", "15", "first 3, then 15.", True),
        ("number", "15", "15, or rather 16", False),
        ("number", "1,000", "$1000", True),
        ("number", "0.5", "1/2", True),
        ("number", "-3", "it is -3 degrees", True),
        ("number", "7", "seven", False),
        ("regex", r"^(yes|y)\b", "yes, I do", True),
        ("regex", r"^(yes|y)\b", "no", False),
        ("math", r"\frac{1}{2}", r"so \boxed{0.5}", True),
        ("math", r"\frac{1}{2}", "0.6", False),
    ],
)
def test_graders(grader: str, gold: str, pred: str, equal: bool) -> None:
    assert task("qa", grader=grader).grade(gold, pred, {}).equal is equal


@pytest.mark.parametrize(
    ("gold", "pred", "equal"),
    [
        ("B", "B", True),
        ("B", "b)", True),
        ("B", "(B) green", True),
        ("B", "**B**", True),
        ("B", "The answer is B.", True),
        ("B", "The answer is (B), not A", True),
        ("B", "I first thought the answer is A. The answer is B", True),
        ("B", r"\boxed{\text{B}}", True),
        ("B", "It must be green", True),
        ("B", "red or green", False),
        ("B", "A", False),
        ("1", "B", True),
        ("green", "B", True),
        ("B", "", False),
        ("B", "Because of that.", False),
    ],
)
def test_multiple_choice(gold: str, pred: str, equal: bool) -> None:
    assert text_grading.grade("choice", gold, pred, CHOICES).equal is equal


def test_a_pattern_that_backtracks_for_ever_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_grading, "REGEX_SECONDS", 0.2)
    verdict = text_grading.grade("regex", r"^(a|aa)+$", "a" * 60 + "b")
    assert not verdict.equal and "longer than" in verdict.reason and verdict.seconds < 5


def test_an_unknown_grader_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        SpecError, match=r"task.grader must be one of .*multiple|task.grader.*choice"
    ):
        task("qa", grader="fuzzy")


def test_a_gold_pattern_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "("}))
    with pytest.raises(SpecError, match=r"q.jsonl:1.*regular expression"):
        task("qa", data={"path": str(path)}, grader="regex").examples()


def test_the_answer_is_the_tag_or_the_pattern_or_what_follows_the_thinking() -> None:
    qa = task("qa", grader="exact")
    example = Example("e", "q", "Lisbon")
    assert qa.score(example, single("Lisbon"))["is_correct_pred"]
    assert qa.score(example, single("<think>Porto?</think>\nLisbon"))["is_correct_pred"]
    assert qa.score(example, single("<answer>Lisbon</answer> I am sure"))["is_correct_pred"]
    patterned = task("qa", grader="exact", answer_pattern=r"^Answer: (.*)$")
    assert patterned.score(example, single("hm\nAnswer: Porto\nAnswer: Lisbon\n"))[
        "is_correct_pred"
    ]
    fields = patterned.score(example, single("Lisbon", "max_new_tokens"))
    assert fields["pred_answer"] == "" and fields["answer_status"] == "truncated"
    assert task("qa", tagged_phases=True).score(example, tagged("Lisbon"))["is_correct_pred"]


def test_any_of_several_golds_counts() -> None:
    qa = task("qa", grader="normalised")
    assert qa.score(Example("e", "q", ["UK", "United Kingdom"]), single("united kingdom"))[
        "is_correct_pred"
    ]


def test_the_override_wins_over_the_rows_system_prompt(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"m": {"q": "Why?", "a": "So", "s": "Be brief."}}))
    columns = {"question": "m.q", "answer": "m.a", "system_prompt": "m.s"}
    own = task("qa", data={"path": str(path)}, columns=columns)
    (example,) = own.examples()
    assert [m.content for m in own.prompt(example).messages] == [("Be brief.",), ("Why?",)]
    over = task("qa", data={"path": str(path)}, columns=columns, system_prompt="Be kind.")
    assert over.prompt(example).messages[0].content == ("Be kind.",)
    assert example.metadata["system_prompt"] == "Be brief."


def test_choices_are_lettered_in_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [{"question": "Sky?", "choices": c, "answer": "C"} for c in (CHOICES, {"text": CHOICES})]
    path.write_text("\n".join(map(json.dumps, rows)))
    qa = task("qa", data={"path": str(path)}, columns={"choices": "choices"}, grader="choice")
    for example in qa.examples():
        assert qa.prompt(example).messages[-1].content == ("Sky?\nA. red\nB. green\nC. blue",)
        assert qa.score(example, single("blue"))["is_correct_pred"]
    path.write_text(json.dumps({"question": "Sky?", "choices": "red", "answer": "C"}))
    with pytest.raises(SpecError, match=r"q.jsonl:1.*task.columns.choices"):
        qa.examples()


def test_gold_may_be_missing_by_config_but_not_by_row(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "q", "answer": null}')
    qa = task("qa", data={"path": str(path)}, columns={"answer": None})
    (example,) = qa.examples()
    assert qa.score(example, single("x"))["is_correct_pred"] is None
    with pytest.raises(SpecError, match=r"q.jsonl:1.*task.columns.answer"):
        task("qa", data={"path": str(path)}).examples()


NEW_SETS = {
    "colours": """
defaults: [qa, _self_]
name: colours
data: {path: colours.csv}
columns: {id: nr, question: frage, answer: antwort}
grader: normalised
""",
    "sums": """
defaults: [qa, _self_]
name: sums
data: {path: sums.parquet}
columns: {question: item.text, answer: item.result}
grader: number
""",
    "capitals": """
defaults: [qa, _self_]
name: capitals
data: {hub: someone/capitals, split: validation}
columns: {question: country, answer: capital}
user_prompt: "What is the capital of {question}?"
grader: contains
""",
}


@pytest.fixture
def with_new_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    conf = tmp_path / "conf"
    shutil.copytree(ROOT / "conf", conf)
    for name, text in NEW_SETS.items():
        (conf / "task" / f"{name}.yaml").write_text(text)
    pd.DataFrame([{"nr": 7, "frage": "Grass?", "antwort": "Green"}]).to_csv(
        tmp_path / "colours.csv", index=False
    )
    pd.DataFrame([{"item": {"text": "2+2", "result": 4}}]).to_parquet(tmp_path / "sums.parquet")
    folder = tmp_path / "someone" / "capitals" / "data"
    folder.mkdir(parents=True)
    table = pd.DataFrame([{"country": "Portugal", "capital": "Lisbon"}])
    table.to_parquet(folder / "validation-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return conf


@pytest.mark.parametrize(
    ("name", "asked", "right", "wrong"),
    [
        ("colours", "Grass?", "green.", "blue"),
        ("sums", "2+2", "It is 4", "It is 5"),
        ("capitals", "What is the capital of Portugal?", "Lisbon!", "Porto"),
    ],
)
def test_a_new_data_set_is_one_yaml(
    with_new_sets: Path, name: str, asked: str, right: str, wrong: str
) -> None:
    new: Any = task(name, conf=with_new_sets)
    (example,) = new.examples()
    assert new.prompt(example).messages[-1].content == (asked,)
    assert new.score(example, single(right))["is_correct_pred"]
    assert not new.score(example, single(wrong))["is_correct_pred"]
    assert new.name == name


def test_the_embedded_questions_grade_their_own_gold() -> None:
    qa = task("qa")
    for example in qa.examples():
        assert qa.score(example, single(f"It is {example.target}."))["is_correct_pred"]
