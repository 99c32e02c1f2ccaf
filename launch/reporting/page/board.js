// The rules of Rush Hour: N by N cells, "o" or "." empty, "x" a wall, A to Z pieces, each of which
// slides along its own axis.
function parseBoard(text) {
  const cells = String(text ?? "")
    .replace(/\s/g, "")
    .replaceAll(".", "o");
  const size = Math.round(Math.sqrt(cells.length));
  if (size < 2 || size * size !== cells.length || /[^oxA-Z]/.test(cells)) return null;
  const pieces = {};
  const walls = [];
  [...cells].forEach((char, at) => {
    const [row, col] = [Math.floor(at / size), at % size];
    if (char === "x") walls.push([row, col]);
    if (char === "x" || char === "o") return;
    const known = pieces[char];
    if (!known) pieces[char] = { letter: char, row, col, length: 1, vertical: false };
    else {
      known.length += 1;
      known.vertical = col === known.col;
    }
  });
  return pieces.A ? { size, walls, pieces: Object.values(pieces) } : null;
}

// A canonical sequence as moves; null for anything else.
function parseMoves(text) {
  const tokens = String(text ?? "")
    .split(",")
    .map((token) => token.trim())
    .filter(Boolean);
  const moves = tokens.map((token) => /^([A-Z])([<>^v])(\d+)$/.exec(token));
  return tokens.length && moves.every(Boolean)
    ? moves.map(([token, letter, direction, steps]) => ({
        token,
        letter,
        direction,
        steps: +steps,
      }))
    : null;
}

function cellsOf(piece) {
  return Array.from({ length: piece.length }, (_, i) => [
    piece.row + (piece.vertical ? i : 0),
    piece.col + (piece.vertical ? 0 : i),
  ]);
}

function blocker(board, moved) {
  for (const [row, col] of cellsOf(moved)) {
    if (row < 0 || col < 0 || row >= board.size || col >= board.size) return "leaves the board";
    const same = ([r, c]) => r === row && c === col;
    if (board.walls.some(same)) return `is blocked by a wall at row ${row + 1}, column ${col + 1}`;
    const other = board.pieces.find(
      (piece) => piece.letter !== moved.letter && cellsOf(piece).some(same),
    );
    if (other) return `is blocked by ${other.letter} at row ${row + 1}, column ${col + 1}`;
  }
  return null;
}

// The board after one slide, or why it cannot be made.
function slide(board, move) {
  const piece = board.pieces.find((p) => p.letter === move.letter);
  if (!piece) return { error: `there is no piece ${move.letter}` };
  if (move.steps < 1) return { error: `${move.token} moves by no cell` };
  if (piece.vertical !== "^v".includes(move.direction)) {
    const axis = piece.vertical ? "up and down" : "left and right";
    return { error: `${move.token}: ${piece.letter} slides ${axis} only` };
  }
  const sign = ">v".includes(move.direction) ? 1 : -1;
  let moved = piece;
  for (let i = 0; i < move.steps; i++) {
    moved = {
      ...moved,
      row: moved.row + (moved.vertical ? sign : 0),
      col: moved.col + (moved.vertical ? 0 : sign),
    };
    const why = blocker(board, moved);
    if (why) return { error: `${move.token} ${why}` };
  }
  return { board: { ...board, pieces: board.pieces.map((p) => (p === piece ? moved : p)) } };
}

const solved = (board) => {
  const a = board.pieces.find((p) => p.letter === "A");
  return a.col + a.length === board.size;
};
