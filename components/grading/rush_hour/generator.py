"""Seeded generator of balanced Rush Hour sets with exact optima and smallest gold sequences."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from components.grading.rush_hour.board import EMPTY, TARGET, WALL, Board, Piece, parse_board
from components.grading.rush_hour.solver import Search, solve
from pipeline.spec import SpecError, require

DIFFICULTIES = ("easy", "medium", "hard")
MAX_POSITIONS = 20_000  # layouts with more reachable positions are skipped
FRUITLESS_LAYOUTS = 3_000  # give up after so many layouts without a new board


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to generate: `count` boards of one size, spread evenly over the difficulties.

    A board is easy below `medium_from` moves and hard from `hard_from` moves on. No board is solved
    in one move.
    """

    size: int = 6
    count: int = 24
    seed: int = 0
    walls: int = 1  # at most
    medium_from: int = 4
    hard_from: int = 6

    def __post_init__(self) -> None:
        """Check ranges."""
        rules = (
            (3 <= self.size <= 16, "size", "lie in 3 to 16", self.size),
            (self.count >= 1, "count", "be 1 or more", self.count),
            (self.walls >= 0, "walls", "be 0 or more", self.walls),
            (2 < self.medium_from, "medium-from", "be above 2", self.medium_from),
            (
                self.medium_from < self.hard_from,
                "hard-from",
                "be above medium-from",
                self.hard_from,
            ),
        )
        for holds, name, rule, value in rules:
            require(holds, f"--{name}", rule, value)

    def difficulty(self, moves: int) -> str:
        """The class of an optimum."""
        if moves < self.medium_from:
            return "easy"
        return "medium" if moves < self.hard_from else "hard"

    def quota(self) -> dict[str, int]:
        """Boards per difficulty; they differ by one at most."""
        share, rest = divmod(self.count, len(DIFFICULTIES))
        return {name: share + (index < rest) for index, name in enumerate(DIFFICULTIES)}


def generate(recipe: Recipe) -> list[dict[str, Any]]:
    """Boards as rows, easy ones first: id, board, size, moves, solution (tokens), difficulty.

    Raises:
        SpecError: the recipe cannot be met, such as hard boards of size 3.
    """
    rng = random.Random(f"{recipe.size}/{recipe.walls}/{recipe.seed}")
    left = recipe.quota()
    boards: dict[str, list[dict[str, Any]]] = {name: [] for name in DIFFICULTIES}
    seen: set[str] = set()
    fruitless = 0
    while any(left.values()):
        wanted = [name for name in DIFFICULTIES if left[name]]
        board = _one(recipe, rng, wanted[-1])
        fruitless += 1
        if fruitless > FRUITLESS_LAYOUTS:
            raise SpecError(
                f"--size {recipe.size} gave no further {wanted[-1]} board "
                f"in {FRUITLESS_LAYOUTS} layouts; "
                "ask for fewer boards, another size, or lower --medium-from and --hard-from"
            )
        if board is None or str(board) in seen:
            continue
        best = solve(board)
        if best is None or not left[recipe.difficulty(len(best.moves))]:
            continue
        fruitless = 0
        name = recipe.difficulty(len(best.moves))
        seen.add(str(board))
        left[name] -= 1
        boards[name].append(_row(board, [str(m) for m in best.moves], name))
    rows = [row for name in DIFFICULTIES for row in boards[name]]
    return [
        {"id": f"{recipe.size}x{recipe.size}-{recipe.seed}-{n:04d}", **row}
        for n, row in enumerate(rows)
    ]


def _row(board: Board, tokens: list[str], difficulty: str) -> dict[str, Any]:
    return {
        "board": str(board),
        "size": board.size,
        "moves": len(tokens),
        "solution": tokens,
        "difficulty": difficulty,
    }


def _one(recipe: Recipe, rng: random.Random, wanted: str) -> Board | None:
    """A position of a random layout whose optimum is in the wanted class; None without one.

    Its pieces are lettered in the order of their first cells.
    """
    layout = _layout(recipe, rng)
    distances = _distances(layout)
    fitting: dict[int, list[int]] = {}
    for state, distance in distances.items():
        if distance >= 2 and recipe.difficulty(distance) == wanted:
            fitting.setdefault(distance, []).append(state)
    if not fitting:
        return None
    distance = rng.choice(sorted(fitting))
    return _relettered(layout, rng.choice(sorted(fitting[distance])))


def _layout(recipe: Recipe, rng: random.Random) -> Board:
    size = recipe.size
    free = set(range(size * size))
    row = rng.randrange(size)
    pieces = [Piece(TARGET, row, rng.randrange(size - 1), 2, False)]
    free -= set(pieces[0].cells(size))
    walls = set()
    for _ in range(rng.randint(0, recipe.walls)):
        outside = sorted(cell for cell in free if cell // size != row)
        walls.add(rng.choice(outside))
        free -= walls
    letters = iter("BCDEFGHIJKLMNOPQRSTUVWXYZ"[: max(3, rng.randint(size, 2 * size))])
    for piece in _tries(size, rng):
        cells = set(piece.cells(size))
        if not cells <= free:
            continue
        letter = next(letters, None)
        if letter is None:
            break
        pieces.append(Piece(letter, piece.row, piece.col, piece.length, piece.vertical))
        free -= cells
    return Board(size, tuple(pieces), frozenset(walls))


def _tries(size: int, rng: random.Random) -> Iterator[Piece]:
    for _ in range(size * size):
        length, vertical = rng.choice((2, 2, 3)), rng.random() < 0.6
        along, across = rng.randrange(size - length + 1), rng.randrange(size)
        row, col = (along, across) if vertical else (across, along)
        yield Piece("?", row, col, length, vertical)


def _distances(board: Board) -> dict[int, int]:
    """Fewest slides to a solution, by position reachable from `board`.

    Empty where more than `MAX_POSITIONS` can be reached.
    """
    search = Search(board)
    reach = {search.start: search.occupied(search.start)}
    stack = [search.start]
    while stack:
        state = stack.pop()
        for other, mask in search.neighbours(state, reach[state]):
            if other not in reach:
                reach[other] = mask
                stack.append(other)
        if len(reach) > MAX_POSITIONS:
            return {}
    layer = [state for state in reach if search.solved(state)]
    distances = dict.fromkeys(layer, 0)
    while layer:
        following = []
        for state in layer:
            for other, _ in search.neighbours(state, reach[state]):
                if other not in distances:
                    distances[other] = distances[state] + 1
                    following.append(other)
        layer = following
    return distances


def _relettered(board: Board, state: int) -> Board:
    placed = Search(board).place(state)
    letters = iter("BCDEFGHIJKLMNOPQRSTUVWXYZ")
    names = {TARGET: TARGET}
    text = str(placed)
    for char in text:
        if char not in (EMPTY, WALL) and char not in names:
            names[char] = next(letters)
    return parse_board("".join(names.get(char, char) for char in text))
