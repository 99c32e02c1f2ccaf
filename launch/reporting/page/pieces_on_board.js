// The board as elements: walls, the exit, and a button for every piece.
function setPlace(node, row, col, height, width) {
  const sizes = { top: row, left: col, height, width };
  for (const [name, cells] of Object.entries(sizes)) node.style[name] = `${cells * CELL}px`;
}

function boardField(board, push) {
  const label = `board of ${board.size} by ${board.size} cells`;
  const field = make("div", { className: "board", role: "group", "aria-label": label });
  field.style.setProperty("--cell", `${CELL}px`);
  field.style.width = field.style.height = `${board.size * CELL}px`;
  for (const [row, col] of board.walls) {
    const wall = make("div", { className: "wall", title: "wall" });
    setPlace(wall, row, col, 1, 1);
    field.append(wall);
  }
  const exit = make("div", { className: "exit", title: "exit" });
  setPlace(exit, board.pieces.find((piece) => piece.letter === "A").row, board.size, 1, 0.15);
  field.append(exit, ...board.pieces.map((piece) => pieceButton(piece, push)));
  return field;
}

function setPieces(field, board) {
  for (const { letter, row, col, length, vertical } of board.pieces) {
    const node = field.querySelector(`[data-letter="${letter}"]`);
    setPlace(node, row, col, vertical ? length : 1, vertical ? 1 : length);
    const where = `row ${row + 1}, column ${col + 1}`;
    const axis = vertical ? "upright" : "level";
    node.setAttribute("aria-label", `piece ${letter}, ${axis}, ${where}`);
  }
}

function pieceButton(piece, push) {
  const { letter, vertical } = piece;
  const properties = { type: "button", className: "piece", "data-letter": letter };
  const node = make("button", properties, make("span", {}, letter));
  node.classList.toggle("target", letter === "A");
  node.style.setProperty("--hue", String((letter.charCodeAt(0) * 67) % 360));
  const [back, forth] = vertical ? ["^", "v"] : ["<", ">"];
  const keys = vertical
    ? { ArrowUp: back, ArrowDown: forth }
    : { ArrowLeft: back, ArrowRight: forth };
  node.addEventListener("keydown", (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    push(letter, keys[event.key]);
  });
  onDrag(node, vertical, (sign) => push(letter, sign > 0 ? forth : back));
  return node;
}

// Calls `step` with +1 or -1 whenever the pointer has gone a cell along the piece's axis.
function onDrag(node, vertical, step) {
  let from = null;
  const along = (event) => (vertical ? event.clientY : event.clientX);
  node.addEventListener("pointerdown", (event) => {
    from = along(event);
    node.setPointerCapture(event.pointerId);
  });
  node.addEventListener("pointermove", (event) => {
    if (from === null || Math.abs(along(event) - from) < CELL / 2) return;
    const sign = Math.sign(along(event) - from);
    from += sign * CELL;
    step(sign);
  });
  node.addEventListener("pointerup", () => {
    from = null;
  });
}
