"""Finds the fewest moves of a Rush Hour board, and the first such sequence in ASCII order.

The search is breadth-first over packed positions, and exact.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from components.grading.rush_hour.board import TARGET, Board, Move, parse_board

_BITS = 4  # per piece in a packed state: positions 0 to 15


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimal sequence, and how many positions the search saw."""

    moves: tuple[Move, ...]
    positions: int

    def __str__(self) -> str:
        """Tokens joined by commas."""
        return ",".join(map(str, self.moves))


@dataclass(frozen=True, slots=True)
class _Lane:
    """One piece as bit masks: `cells[p]` for position p, `track` for its whole line."""

    letter: str
    vertical: bool
    shift: int
    span: int  # positions 0 to span
    cells: tuple[int, ...]
    track: int


class Search:
    """Breadth-first search over the positions of one board (size up to 16)."""

    def __init__(self, board: Board) -> None:
        """Prepare masks for every piece and position."""
        if board.size > 1 << _BITS:
            raise ValueError(
                f"the solver takes boards up to {1 << _BITS} cells wide, got {board.size}"
            )
        self.lanes = [_lane(board, index) for index in range(len(board.pieces))]
        self.board = board
        self.walls = sum(1 << cell for cell in board.walls)
        self.start = 0
        for lane, piece in zip(self.lanes, board.pieces, strict=True):
            self.start |= (piece.row if piece.vertical else piece.col) << lane.shift
        target = [lane for lane in self.lanes if lane.letter == TARGET][0]
        self.goal_shift, self.goal = target.shift, target.span
        self._slides: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}

    def solved(self, state: int) -> bool:
        """True when A is at the right edge."""
        return (state >> self.goal_shift) & 15 == self.goal

    def occupied(self, state: int) -> int:
        """Bit mask of all taken cells."""
        mask = self.walls
        for lane in self.lanes:
            mask |= lane.cells[(state >> lane.shift) & 15]
        return mask

    def neighbours(self, state: int, mask: int) -> list[tuple[int, int]]:
        """Every (state, mask) one slide away."""
        states = []
        slides = self._slides
        for index, lane in enumerate(self.lanes):
            key = (index, (state >> lane.shift) & 15, mask & lane.track)
            changes = slides.get(key)
            if changes is None:
                changes = slides[key] = _changes(lane, key[1], key[2])
            for delta, flip in changes:
                states.append((state + delta, mask ^ flip))
        return states

    def layers(self) -> list[dict[int, int]]:
        """Positions (state -> mask) by distance from the start, through the first that solve it.

        Empty when the board cannot be solved.
        """
        layer = {self.start: self.occupied(self.start)}
        seen = set(layer)
        layers = [layer]
        while layer:
            if any(map(self.solved, layer)):
                return layers
            following: dict[int, int] = {}
            for state, mask in layer.items():
                for other, changed in self.neighbours(state, mask):
                    if other not in seen:
                        seen.add(other)
                        following[other] = changed
            layer = following
            layers.append(layer)
        return []

    def place(self, state: int) -> Board:
        """The board in which the pieces stand as in `state`."""
        pieces = []
        for lane, piece in zip(self.lanes, self.board.pieces, strict=True):
            at = (state >> lane.shift) & 15
            pieces.append(replace(piece, row=at) if piece.vertical else replace(piece, col=at))
        return replace(self.board, pieces=tuple(pieces))

    def move_between(self, before: int, after: int) -> Move:
        """The slide that turns one position into its neighbour."""
        for lane in self.lanes:
            steps = ((after >> lane.shift) & 15) - ((before >> lane.shift) & 15)
            if steps:
                signs = "^v" if lane.vertical else "<>"
                return Move(lane.letter, signs[steps > 0], abs(steps))
        raise ValueError("the two positions are the same")


def solve(board: Board) -> Solution | None:
    """The optimal sequence that comes first as a comma list; None without a solution."""
    search = Search(board)
    layers = search.layers()
    if not layers:
        return None
    useful = {state for state in layers[-1] if search.solved(state)}
    on_path = [useful]
    for layer in reversed(layers[:-1]):  # slides can be undone, so neighbours lead both ways
        before: set[int] = set()
        for state in useful:
            before.update(
                s for s, _ in search.neighbours(state, search.occupied(state)) if s in layer
            )
        useful = before
        on_path.append(useful)
    on_path.reverse()
    state, moves = search.start, []
    for useful in on_path[1:]:
        options = [s for s, _ in search.neighbours(state, search.occupied(state)) if s in useful]
        move, state = min(((search.move_between(state, s), s) for s in options), key=_token)
        moves.append(move)
    return Solution(tuple(moves), sum(map(len, layers)))


@lru_cache(maxsize=4096)
def solve_text(text: str) -> Solution | None:
    """`solve` for a board's text, remembered."""
    return solve(parse_board(text))


def _token(option: tuple[Move, int]) -> str:
    return str(option[0])


def _lane(board: Board, index: int) -> _Lane:
    piece, size = board.pieces[index], board.size
    step = size if piece.vertical else 1
    line = piece.col if piece.vertical else piece.row * size
    bits = [1 << (line + i * step) for i in range(size)]
    span = size - piece.length
    cells = tuple(sum(bits[p : p + piece.length]) for p in range(span + 1))
    return _Lane(piece.letter, piece.vertical, index * _BITS, span, cells, sum(bits))


def _changes(lane: _Lane, position: int, line: int) -> tuple[tuple[int, int], ...]:
    here = lane.cells[position]
    others = line & ~here
    changes = []
    for sign, end in ((-1, -1), (1, lane.span + 1)):
        for place in range(position + sign, end, sign):
            if lane.cells[place] & others:
                break
            changes.append(((place - position) << lane.shift, here ^ lane.cells[place]))
    return tuple(changes)
