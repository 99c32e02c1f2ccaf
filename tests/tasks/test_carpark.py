"""Task carpark: verdicts on the board, the soft reward's reference values.

Prompts that hold no gold.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from components.grading.rush_hour.soft_match import (
    canonical,
    canonical_set,
    components,
    soft_reward,
)
from pipeline.spec import SpecError
from tests.fakes.passes import tagged
from tests.fakes.tasks import SHARED, task

BOARD = "oAABCooBCoooDDoo"


def rows(tmp_path: Path, *values: dict[str, Any]) -> Path:
    path = tmp_path / "boards.jsonl"
    path.write_text("\n".join(map(json.dumps, values)))
    return path


def loaded(tmp_path: Path, *values: dict[str, Any], **settings: Any) -> Any:
    return task("carpark", data={"path": str(rows(tmp_path, *values))}, **settings)


@pytest.mark.parametrize(
    ("answer", "valid", "legal", "solved", "optimal"),
    [
        ("Bv1,A>1", True, True, True, True),
        ("Bv2,A>1", True, True, True, True),
        ("b V2 , a>1", False, False, False, False),
        ("bV2 , a>1\n", True, True, True, True),
        ("Bv1,Bv1,A>1", True, True, True, False),
        ("Bv1", True, True, False, False),
        ("A>1,Bv1", True, False, False, False),
        ("Bv3,A>1", True, False, False, False),
        ("B<1,A>1", True, False, False, False),
        ("Z>1", True, False, False, False),
        ("A>0", True, False, False, False),
        ("Bv1;A>1", False, False, False, False),
        ("", False, False, False, False),
    ],
)
def test_a_sequence_is_played_on_the_board(
    tmp_path: Path, answer: str, valid: bool, legal: bool, solved: bool, optimal: bool
) -> None:
    carpark = loaded(tmp_path, {"board": BOARD, "moves": 2, "solution": ["Bv2", "A>1"]})
    (example,) = carpark.examples()
    fields = carpark.score(example, tagged(answer))
    verdicts = ("is_valid_pred", "is_legal", "is_solved", "is_optimal")
    assert [fields[name] for name in verdicts] == [valid, legal, solved, optimal]
    assert fields["is_correct_pred"] is optimal
    assert (fields["illegal_reason"] is None) is legal


def test_any_optimal_answer_is_right_and_the_gold_match_stands_beside(tmp_path: Path) -> None:
    carpark = loaded(tmp_path, {"board": BOARD, "moves": 2, "solution": ["Bv2", "A>1"]})
    (example,) = carpark.examples()
    other = carpark.score(example, tagged("Bv1,A>1"))
    assert other["is_correct_pred"] and other["is_gold_match"] is False
    assert carpark.score(example, tagged("Bv2,A>1"))["is_gold_match"] is True


def test_a_stored_gold_that_is_illegal_is_not_right(tmp_path: Path) -> None:
    carpark = loaded(tmp_path, {"board": BOARD, "moves": 2, "solution": ["Cv9", "A>1"]})
    (example,) = carpark.examples()
    fields = carpark.score(example, tagged("Cv9,A>1"))
    assert fields["is_gold_match"] is True and fields["is_correct_pred"] is False


@pytest.mark.parametrize(
    ("pred", "reward"),
    [
        ("Bv2", 0.46),
        ("A>1,Bv2", 0.10),
        ("Bv3,A>1", 0.4167),
        ("Bv2,A>1,A>1", 0.9047),
        ("Bv2,A>1", 1.0),
    ],
)
def test_soft_reward_reference_values(pred: str, reward: float) -> None:
    value, detail = soft_reward(pred, ["Bv2,A>1"])
    assert value == pytest.approx(reward, abs=5e-5)
    assert detail["picked_gold"] == "Bv2,A>1" and detail["gold_canon_options"] == ["Bv2,A>1"]


def test_soft_reward_components_by_hand() -> None:
    parts = components("Bv3,A>1", "Bv2,A>1")
    assert parts == {
        "prefix": 0.0,
        "pos_exact": 0.5,
        "piece_dir": 1.0,
        "step_close": 0.75,
        "lcs": 0.5,
        "bag_overlap": pytest.approx(1 / 3),
        "length_penalty": 1.0,
        "length_delta": 0,
    }


def test_the_best_alternative_is_picked_and_nothing_gives_nothing() -> None:
    value, detail = soft_reward("C^1", ["Bv2,A>1", "C^1,A>1"])
    assert detail["picked_gold"] == "C^1,A>1" and value == pytest.approx(0.46)
    assert soft_reward(None, ["A>1"])[0] == 0.0 and soft_reward("A>1", [])[0] == 0.0


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("bv2, A>1", "Bv2,A>1"),
        ("BV2\n,A>1,,", "Bv2,A>1"),
        ("Bv02", "Bv02"),
        ("A>0", "A>0"),
        ("Bv2;A>1", None),
        ("Bv", None),
        ("", None),
        (",", None),
        ("B v2", None),
        ("move Bv2", None),
    ],
)
def test_the_published_canonical_form(text: str, form: str | None) -> None:
    assert canonical(text) == form


@pytest.mark.parametrize(
    ("gold", "options"),
    [
        ("Bv2,A>1", ["Bv2,A>1"]),
        (["Bv2", "A>1"], ["Bv2,A>1"]),
        ([["Bv2", "A>1"], ["Bv1", "A>1"]], ["Bv1,A>1", "Bv2,A>1"]),
        (["Bv2,A>1", "Bv1,A>1"], ["Bv1,A>1", "Bv2,A>1"]),
        (["nonsense"], []),
        (None, []),
    ],
)
def test_gold_as_one_sequence_or_a_set(gold: object, options: list[str]) -> None:
    assert canonical_set(gold) == options


def test_board_size_and_optimum_are_filled_in_and_the_gold_is_not(tmp_path: Path) -> None:
    carpark = task("carpark")
    for example in carpark.examples():
        shown = str([message.content for message in carpark.prompt(example).messages])
        size, moves = example.metadata["size"], example.metadata["moves"]
        assert f"{size} by {size} cells" in shown and f"exactly {moves} moves" in shown
        assert example.metadata["board"] in shown
        assert "{" not in shown and "}" not in shown
        if len(example.target) > 2:
            assert ",".join(example.target) not in shown


def test_the_prompts_own_example_is_optimal_and_smallest() -> None:
    from components.grading.rush_hour.board import parse_board
    from components.grading.rush_hour.solver import solve

    text = task("carpark").system_prompt
    assert "AABoooBooooooooo" in text and str(solve(parse_board("AABoooBooooooooo"))) in text


def test_a_board_without_its_optimum_is_solved(tmp_path: Path) -> None:
    carpark = loaded(tmp_path, {"board": BOARD})
    (example,) = carpark.examples()
    assert example.metadata["moves"] == 2
    assert carpark.score(example, tagged("Bv1,A>1"))["soft_reward"] == 1.0


MESSAGES = [
    {"role": "system", "content": "Solve it."},
    {"role": "user", "content": "Board 4x4\n<think>"},
    {"role": "assistant", "content": "Bv2,A>1"},
]


@pytest.mark.parametrize(
    "messages",
    [
        MESSAGES,
        {"role": [m["role"] for m in MESSAGES], "content": [m["content"] for m in MESSAGES]},
    ],
    ids=["list", "dict of lists"],
)
@pytest.mark.parametrize("with_board", [True, False])
def test_a_data_sets_messages_lose_their_assistant_turns(
    tmp_path: Path, messages: Any, with_board: bool
) -> None:
    row = {
        "chat": messages,
        "gold": ["Bv2", "A>1"],
        **({"board": BOARD, "moves": 2} if with_board else {}),
    }
    carpark = loaded(tmp_path, row, columns={"messages": "chat", "solution": "gold"})
    (example,) = carpark.examples()
    prompt = carpark.prompt(example)
    assert [(m.role, m.content) for m in prompt.messages] == [
        ("system", ("Solve it.",)),
        ("user", ("Board 4x4",)),
    ]
    assert example.question == "Solve it. Board 4x4"
    assert "A>1" not in str(prompt)
    assert carpark.score(example, tagged("Bv2,A>1"))["is_correct_pred"] is True
    assert carpark.score(example, tagged("Bv1,A>1"))["is_correct_pred"] is with_board


def test_messages_without_a_system_turn_get_ours(tmp_path: Path) -> None:
    row = {"board": BOARD, "messages": "Board: oAAB"}
    carpark = loaded(tmp_path, row, columns={"messages": "messages"})
    (example,) = carpark.examples()
    system, user = carpark.prompt(example).messages
    assert system.role == "system" and "exactly 2 moves" in str(system.content[0])
    assert user.content == ("Board: oAAB",)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"board": "oAA"}, ["boards.jsonl:1", "N*N"]),
        ({"board": "oAAo" * 4}, ["boards.jsonl:1", "A"]),
        ({"board": "oAABCooBCoooDDo?"}, ["boards.jsonl:1", "?"]),
        ({"board": "AoBoAoBoooooDDoo"}, ["boards.jsonl:1", "two-cell horizontal"]),
        ({"board": "AABoBBoooooooooo"}, ["boards.jsonl:1", "piece B"]),
        ({"board": None}, ["boards.jsonl:1", "null", "task.columns.board"]),
        ({"bord": BOARD}, ["boards.jsonl:1", "bord", "task.columns.board"]),
        ({"board": 7}, ["boards.jsonl:1", "7", "task.columns.board"]),
        ({"board": BOARD, "moves": "many"}, ["boards.jsonl:1", "many", "task.columns.moves"]),
        ({"board": BOARD, "moves": 0}, ["boards.jsonl:1", "task.columns.moves"]),
        ({"board": BOARD, "solution": "left"}, ["boards.jsonl:1", "left", "task.columns.solution"]),
        ({"board": BOARD, "messages": 3}, ["boards.jsonl:1", "3", "task.columns.messages"]),
        ({"board": BOARD, "messages": [{"role": "assistant", "content": "x"}]}, ["user turn"]),
        ({"board": "AAxo" + "o" * 12}, ["boards.jsonl:1", "no solution"]),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: dict[str, Any], names: list[str]) -> None:
    columns = {"messages": "messages"}
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, row, columns=columns).examples()
    assert all(name in str(caught.value) for name in names), caught.value


def test_the_408_boards_load() -> None:
    path = SHARED / "rush_hour_6x6.jsonl"
    if not path.is_file():
        pytest.skip("the boards are not beside the repository (../shared/data/rush_hour_6x6.jsonl)")
    examples = task("carpark", data={"path": str(path)}).examples()
    assert len(examples) == 408 and len({example.id for example in examples}) == 408
