"""Task crossword: letters, enumerations in every spelling, and clues that really parse."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from components.tasks.crossword import answer_lengths, canonical, same_entry, word_lengths
from pipeline.protocols import Example
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT
from tests.fakes.passes import single, tagged
from tests.fakes.tasks import SHARED, task

CLUES = [
    json.loads(line)
    for line in (ROOT / "components/tasks/data/crossword.jsonl").read_text("utf-8").splitlines()
]
DOG_LEG = Example("e", "Sharp turn", "DOG LEG", {"enumeration": "3-3"})


@pytest.fixture(scope="module")
def crossword() -> Any:
    return task("crossword")


@pytest.mark.parametrize(
    ("pred", "right", "substring", "enumeration", "length"),
    [
        ("DOG LEG", True, True, True, True),
        ("dog-leg", True, True, True, True),
        ("Dogleg", True, True, False, True),
        ("DOG-LEG (3-3)", True, True, True, True),
        ("D\u00f6g L\u00e9g.", True, True, True, True),
        ("the dog leg", False, True, False, False),
        ("CAT ARM", False, False, True, True),
        ("", False, False, False, False),
    ],
)
def test_letters_enumeration_and_length(
    crossword: Any, pred: str, right: bool, substring: bool, enumeration: bool, length: bool
) -> None:
    fields = crossword.score(DOG_LEG, tagged(pred))
    assert fields["is_correct_pred"] is right
    assert fields["is_correct_substring"] is substring
    assert (fields["fits_enumeration"], fields["fits_length"]) == (enumeration, length)
    assert fields["enumeration"] == "3-3" and fields["pred_answer"] == pred


def test_the_first_answer_block_of_a_single_phase_counts(crossword: Any) -> None:
    output = "<think>..</think><answer> DOG LEG </answer><answer>CAT</answer>"
    assert crossword.score(DOG_LEG, single(output))["pred_answer"] == "DOG LEG"
    assert crossword.score(DOG_LEG, single("DOG LEG"))["pred_answer"] == ""


@pytest.mark.parametrize(
    ("spelling", "lengths"),
    [
        ("5", [5]),
        ("(5)", [5]),
        ("3,4", [3, 4]),
        ("3, 4", [3, 4]),
        ("3 4", [3, 4]),
        ("3-3", [3, 3]),
        ("3\u20133", [3, 3]),
        ("4'1,2", [5, 2]),
        ("4\u20191,2", [5, 2]),
        ("2,3-4,5", [2, 3, 4, 5]),
        ("1.1.1", [1, 1, 1]),
    ],
)
def test_an_enumeration_gives_letters_per_word(spelling: str, lengths: list[int]) -> None:
    assert word_lengths(spelling) == lengths


@pytest.mark.parametrize(
    ("answer", "lengths"),
    [
        ("LET'S GO", [4, 2]),
        ("WELL-READ", [4, 4]),
        ("caf\u00e9 noir", [4, 4]),
        ("A\u2013B", [1, 1]),
        ("", []),
    ],
)
def test_an_answer_gives_letters_per_word(answer: str, lengths: list[int]) -> None:
    assert answer_lengths(answer) == lengths


@pytest.mark.parametrize(
    ("text", "form"),
    [("\u00c6sop", "aesop"), ("na\u00efve", "naive"), ("Stra\u00dfe", "strasse"), ("7 UP!", "7up")],
)
def test_accents_and_ligatures_are_folded(text: str, form: str) -> None:
    assert canonical(text) == form


def test_digits_count_only_where_gold_has_some() -> None:
    assert same_entry("DOG LEG", "dog leg (3-3)")
    assert same_entry("7 UP", "7UP") and not same_entry("7 UP", "UP")


@pytest.mark.parametrize(
    ("row", "clue", "enumeration"),
    [
        ({"clue": "Sharp turn", "answer": "DOG LEG", "enumeration": "(3-3)"}, "Sharp turn", "3-3"),
        ({"clue": "Sharp turn", "answer": "DOG LEG", "lengths": [3, 3]}, "Sharp turn", "3,3"),
        ({"clue": "Sharp turn", "answer": "DOG LEG", "enum": 6}, "Sharp turn", "6"),
        ({"problem": "Sharp turn (3-3)", "target": "DOG LEG"}, "Sharp turn", "3-3"),
        ({"problem": "Sharp turn\n<think>", "answer": "DOGLEG"}, "Sharp turn", None),
    ],
)
def test_rows_of_public_sets_are_read(
    tmp_path: Path, row: dict[str, Any], clue: str, enumeration: str | None
) -> None:
    path = tmp_path / "clues.jsonl"
    path.write_text(json.dumps(row))
    loaded = task("crossword", data={"path": str(path)})
    (example,) = loaded.examples()
    assert example.question == clue and example.metadata["enumeration"] == enumeration
    shown = loaded.prompt(example).messages[-1].content[0]
    assert shown == f"Clue: {clue}" + (f" ({enumeration})" if enumeration else "")


@pytest.mark.parametrize("bad", ["two words", 3.5, [], {"a": 1}, True])
def test_a_bad_enumeration_is_named_with_its_line(tmp_path: Path, bad: object) -> None:
    path = tmp_path / "clues.jsonl"
    path.write_text(json.dumps({"clue": "c", "answer": "A", "enumeration": bad}))
    with pytest.raises(SpecError, match=r"clues.jsonl:1.*task.columns.enumeration"):
        task("crossword", data={"path": str(path)}).examples()


def test_published_clues_load_and_grade_their_own_answers(crossword: Any) -> None:
    path = SHARED / "cryptic_clues.jsonl"
    if not path.is_file():
        pytest.skip("the clues are not beside the repository (../shared/data/cryptic_clues.jsonl)")
    examples = task("crossword", data={"path": str(path)}).examples()
    assert len(examples) == 100
    for example in examples:
        fields = crossword.score(example, tagged(example.target))
        assert fields["is_correct_pred"] and fields["fits_length"], example


def _letters(text: str) -> str:
    return canonical(text)


def _spells(clue: dict[str, Any]) -> bool:
    """True when the recorded wordplay gives the answer, letter by letter."""
    answer, play = _letters(clue["answer"]), clue["explanation"]
    pieces = [_letters(piece) for piece in play["pieces"]]
    first = pieces[0]
    kinds = {
        "anagram": lambda: sorted(first) == sorted(answer) and first != answer,
        "hidden": lambda: answer in first,
        "hidden reversal": lambda: answer[::-1] in first,
        "charade": lambda: "".join(pieces) == answer,
        "charade with homophone": lambda: "".join(pieces) == answer,
        "container": lambda: any(
            first[:i] + pieces[1] + first[i:] == answer for i in range(1, len(first))
        ),
        "reversal": lambda: first[::-1] == answer,
        "curtailed": lambda: first[:-1] == answer,
        "beheaded": lambda: first[1:] == answer,
        "initials": lambda: "".join(w[0] for w in play["pieces"][0].split()) == answer,
        "odd letters": lambda: first[::2] == answer,
        "double definition": lambda: play["pieces"][0] in clue["clue"],
        "homophone": lambda: (first, answer) in {("pair", "pear"), ("night", "knight")},
    }
    return kinds[play["wordplay"]]()


@pytest.mark.parametrize("clue", CLUES, ids=lambda clue: clue["answer"])
def test_every_embedded_clue_parses(clue: dict[str, Any]) -> None:
    play = clue["explanation"]
    text = clue["clue"]
    assert text.startswith(play["definition"]) or text.endswith(play["definition"])
    assert play["indicator"] in text
    assert answer_lengths(clue["answer"]) == word_lengths(clue["enumeration"])
    assert _spells(clue)
    if play["wordplay"] in (
        "anagram",
        "hidden",
        "hidden reversal",
        "reversal",
        "odd letters",
        "initials",
    ):
        assert play["pieces"][0].lower() in text.lower()


def test_explanations_never_reach_the_prompt_or_the_row(crossword: Any) -> None:
    for example in crossword.examples():
        assert "explanation" not in example.metadata
        shown = str(crossword.prompt(example))
        assert not re.search(rf"\b{re.escape(example.target)}\b", shown)
