"""A Rush Hour board of any size, with walls: read, written, and moved one slide at a time."""

import re
from dataclasses import dataclass, replace
from math import isqrt

EMPTY, WALL, TARGET = "o", "x", "A"
_TOKEN = re.compile(r"([A-Z])([<>^v])(\d+)")


class BoardError(ValueError):
    """The text is not a board; the message names the rule and the place."""


class IllegalMove(ValueError):
    """A move cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece by its letter, its first cell (top or left), its length and its axis."""

    letter: str
    row: int
    col: int
    length: int
    vertical: bool

    def cells(self, size: int) -> tuple[int, ...]:
        """Its cell numbers, row major."""
        step = size if self.vertical else 1
        first = self.row * size + self.col
        return tuple(first + i * step for i in range(self.length))


@dataclass(frozen=True, slots=True)
class Move:
    """One slide: `steps` cells along a direction of `< > ^ v`."""

    letter: str
    direction: str
    steps: int

    def __str__(self) -> str:
        """The token, such as `B^2`."""
        return f"{self.letter}{self.direction}{self.steps}"


@dataclass(frozen=True, slots=True)
class Board:
    """`size` x `size` cells with pieces (in order of letters) and walls."""

    size: int
    pieces: tuple[Piece, ...]
    walls: frozenset[int] = frozenset()

    @property
    def solved(self) -> bool:
        """True when the right end of A is in the last column."""
        target = self.piece(TARGET)
        return target.col + target.length == self.size

    def piece(self, letter: str) -> Piece:
        """The piece called `letter`; IllegalMove when there is none."""
        for piece in self.pieces:
            if piece.letter == letter:
                return piece
        raise IllegalMove(f"there is no piece {letter}")

    def move(self, move: Move) -> "Board":
        """The board after one slide; IllegalMove when the way is not free."""
        piece = self.piece(move.letter)
        if move.steps < 1:
            raise IllegalMove(f"{move} moves by no cell")
        if piece.vertical != (move.direction in "^v"):
            axis = "up and down" if piece.vertical else "left and right"
            raise IllegalMove(f"{move}: {piece.letter} slides {axis} only")
        sign = 1 if move.direction in ">v" else -1
        taken = self._taken(but=piece.letter)
        moved = piece
        for _ in range(move.steps):
            row, col = moved.row, moved.col
            moved = (
                replace(moved, row=row + sign) if piece.vertical else replace(moved, col=col + sign)
            )
            first = moved.row if piece.vertical else moved.col
            last = first + moved.length
            if first < 0 or last > self.size:
                raise IllegalMove(f"{move} leaves the board")
            blocked = taken.intersection(moved.cells(self.size))
            if blocked:
                cell = min(blocked)
                row, col = divmod(cell, self.size)
                raise IllegalMove(f"{move} is blocked at row {row + 1}, column {col + 1}")
        pieces = tuple(moved if p.letter == piece.letter else p for p in self.pieces)
        return replace(self, pieces=pieces)

    def moves(self) -> list[Move]:
        """Every legal slide, in the order of their tokens."""
        moves = []
        for piece in self.pieces:
            for direction in "^v" if piece.vertical else "<>":
                for steps in range(1, self.size):
                    move = Move(piece.letter, direction, steps)
                    try:
                        self.move(move)
                    except IllegalMove:
                        break
                    moves.append(move)
        return sorted(moves, key=str)

    def __str__(self) -> str:
        """The board as one line, row major."""
        cells = [EMPTY] * (self.size * self.size)
        for wall in self.walls:
            cells[wall] = WALL
        for piece in self.pieces:
            for cell in piece.cells(self.size):
                cells[cell] = piece.letter
        return "".join(cells)

    def rows(self) -> list[str]:
        """The board as `size` lines."""
        text = str(self)
        return [text[i : i + self.size] for i in range(0, len(text), self.size)]

    def _taken(self, but: str) -> set[int]:
        cells = set(self.walls)
        for piece in self.pieces:
            if piece.letter != but:
                cells.update(piece.cells(self.size))
        return cells


def parse_board(text: str) -> Board:
    """Read a board: N*N characters row by row, `o` or `.` for an empty cell and `x` for a wall.

    Blanks and line ends are ignored.

    Raises:
        BoardError: not a square, an unknown character, a bent piece, or no two-cell horizontal A.
    """
    cells = "".join(text.split()).replace(".", EMPTY)
    size = isqrt(len(cells))
    if size < 2 or size * size != len(cells):
        raise BoardError(f"a board must have N*N cells with N from 2, got {len(cells)} in {text!r}")
    places: dict[str, list[int]] = {}
    walls = set()
    for index, char in enumerate(cells):
        if char == WALL:
            walls.add(index)
        elif "A" <= char <= "Z":
            places.setdefault(char, []).append(index)
        elif char != EMPTY:
            raise BoardError(f"a board must hold o, x, and A to Z, got {char!r} in {text!r}")
    pieces = tuple(_piece(letter, places[letter], size) for letter in sorted(places))
    target = [p for p in pieces if p.letter == TARGET]
    if not target or target[0].vertical or target[0].length != 2:
        raise BoardError(f"a board must have A as a two-cell horizontal piece: {text!r}")
    return Board(size, pieces, frozenset(walls))


def parse_moves(canon: str) -> list[Move]:
    """Read a canonical sequence such as `Bv2,A>1`; ValueError for anything else."""
    moves = []
    for token in canon.split(","):
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(
                f"a move must be a letter, one of < > ^ v, and a number, got {token!r}"
            )
        moves.append(Move(match[1], match[2], int(match[3])))
    return moves


def _piece(letter: str, cells: list[int], size: int) -> Piece:
    row, col = divmod(cells[0], size)
    if len(cells) < 2:
        raise BoardError(f"piece {letter} must cover at least two cells")
    for vertical in (False, True):
        piece = Piece(letter, row, col, len(cells), vertical)
        if list(piece.cells(size)) == cells and (vertical or col + len(cells) <= size):
            return piece
    raise BoardError(f"piece {letter} must cover a straight run of cells, got cells {cells}")
