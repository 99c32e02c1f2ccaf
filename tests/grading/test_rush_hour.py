"""Rush Hour: the simulator's laws, the solver against known optima, and the generator."""

import random
import time
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.data_sets.records import load, source
from components.grading.rush_hour.board import Board, IllegalMove, Move, parse_board, parse_moves
from components.grading.rush_hour.generator import Recipe, generate
from components.grading.rush_hour.solver import solve
from tests.fakes.tasks import SHARED, task

BACK = {"<": ">", ">": "<", "^": "v", "v": "^"}
BOARDS = [row.values["board"] for row in load(source({}), "carpark.jsonl")]


def walk(board: Board, steps: int, rng: random.Random) -> tuple[Board, list[Move]]:
    made = []
    for _ in range(steps):
        options = board.moves()
        if not options:
            break
        move = rng.choice(options)
        board = board.move(move)
        made.append(move)
    return board, made


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BOARDS), st.integers(0, 30), st.randoms(use_true_random=False))
def test_a_legal_random_walk_is_legal_and_undoing_it_returns_the_board(
    text: str, steps: int, rng: random.Random
) -> None:
    board = parse_board(text)
    end, made = walk(board, steps, rng)
    assert Counter(str(end)) == Counter(text)  # no piece grows, shrinks or vanishes
    assert end.walls == board.walls
    for move in reversed(made):
        end = end.move(Move(move.letter, BACK[move.direction], move.steps))
    assert str(end) == text


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(BOARDS),
    st.sampled_from("ABCDEFGHIJKZ"),
    st.sampled_from("<>^v"),
    st.integers(0, 7),
)
def test_what_moves_lists_is_exactly_what_move_allows(
    text: str, letter: str, direction: str, steps: int
) -> None:
    board, move = parse_board(text), Move(letter, direction, steps)
    if move in board.moves():
        board.move(move)
    else:
        with pytest.raises(IllegalMove):
            board.move(move)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([text for text in BOARDS if len(text) <= 25]), st.randoms(use_true_random=False)
)
def test_the_optimum_changes_by_at_most_one_per_move(text: str, rng: random.Random) -> None:
    board = parse_board(text)
    end, made = walk(board, 1, rng)
    before, after = solve(board), solve(end)
    if made and before is not None and after is not None:
        assert abs(len(before.moves) - len(after.moves)) <= 1


def plain_optimum(board: Board) -> int | None:
    """An independent search with the simulator alone."""
    layer, seen, depth = [board], {str(board)}, 0
    while layer:
        if any(place.solved for place in layer):
            return depth
        following = []
        for place in layer:
            for move in place.moves():
                other = place.move(move)
                if str(other) not in seen:
                    seen.add(str(other))
                    following.append(other)
        layer, depth = following, depth + 1
    return None


def smallest(board: Board, depth: int) -> str | None:
    """The first optimal comma list in order, by trying all."""
    if board.solved:
        return "" if depth == 0 else None
    if depth == 0:
        return None
    found = []
    for move in board.moves():
        rest = smallest(board.move(move), depth - 1)
        if rest is not None:
            found.append(f"{move},{rest}" if rest else str(move))
    return min(found, default=None)


@pytest.mark.parametrize("text", [text for text in BOARDS if len(text) == 16])
def test_the_solver_agrees_with_a_plain_search_and_picks_the_smallest(text: str) -> None:
    board = parse_board(text)
    best = solve(board)
    assert best is not None and len(best.moves) == plain_optimum(board)
    if len(best.moves) <= 4:
        assert str(best) == smallest(board, len(best.moves))


def test_the_solver_finds_the_optimum_of_all_408_boards_within_a_minute() -> None:
    path = SHARED / "rush_hour_6x6.jsonl"
    if not path.is_file():
        pytest.skip("the boards are not beside the repository (../shared/data/rush_hour_6x6.jsonl)")
    begun = time.process_time()
    for row in load(source({"path": str(path)})):
        board = parse_board(row.values["board"])
        best = solve(board)
        assert best is not None and len(best.moves) == row.values["moves"], row.where
        for move in best.moves:
            board = board.move(move)
        assert board.solved, row.where
    assert time.process_time() - begun < 60


def test_a_walled_in_board_has_no_solution() -> None:
    assert solve(parse_board("AAxo" + "o" * 12)) is None


def test_a_solved_board_needs_no_move() -> None:
    best = solve(parse_board("ooAA" + "o" * 12))
    assert best is not None and best.moves == ()


@pytest.mark.parametrize("size", [4, 5, 6])
def test_generated_sets_are_balanced_and_their_gold_solves_optimally(size: int) -> None:
    recipe = Recipe(size=size, count=7, seed=3, walls=2)
    rows = generate(recipe)
    counts = Counter(row["difficulty"] for row in rows)
    assert counts == {"easy": 3, "medium": 2, "hard": 2}
    assert len({row["board"] for row in rows}) == len({row["id"] for row in rows}) == 7
    for row in rows:
        board = parse_board(row["board"])
        moves = parse_moves(",".join(row["solution"]))
        best = solve(board)
        assert best is not None and list(best.moves) == moves and row["moves"] == len(moves) >= 2
        assert row["difficulty"] == recipe.difficulty(len(moves))
        for move in moves:
            board = board.move(move)
        assert board.solved
        letters = [char for char in row["board"] if char.isupper() and char != "A"]
        assert all(a <= b for a, b in pairwise(dict.fromkeys(letters)))  # by first appearance


def test_the_generator_repeats_itself_and_listens_to_its_seed() -> None:
    assert generate(Recipe(size=4, count=3, seed=1)) == generate(Recipe(size=4, count=3, seed=1))
    assert generate(Recipe(size=4, count=3, seed=1)) != generate(Recipe(size=4, count=3, seed=2))


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ({"size": 2}, "size"),
        ({"count": 0}, "count"),
        ({"medium_from": 2}, "medium-from"),
        ({"medium_from": 5, "hard_from": 5}, "hard-from"),
    ],
)
def test_an_impossible_recipe_is_refused(recipe: dict[str, int], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        Recipe(**recipe)


def test_difficulties_that_a_size_cannot_give_end_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="no further hard board"):
        generate(Recipe(size=3, count=3))


def test_the_embedded_boards_hold_their_true_optimum() -> None:
    examples = task("carpark").examples()
    assert len(examples) == 24
    assert Counter(example.metadata["size"] for example in examples) == {4: 8, 5: 8, 6: 8}
    for example in examples:
        best = solve(parse_board(example.metadata["board"]))
        assert best is not None and [str(move) for move in best.moves] == example.target
        assert example.metadata["moves"] == len(example.target)
