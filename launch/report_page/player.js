// A board on which sequences are played move by move, and on which the reader can move pieces.
const CELL = 46;
const OWN = "your own moves";

// Boards before, between and after the moves, as far as they are legal.
function playThrough(board, moves) {
  const boards = [board];
  for (const move of moves) {
    const next = slide(boards.at(-1), move);
    if (next.error) return { boards, error: next.error };
    boards.push(next.board);
  }
  return { boards, error: null };
}

function boardPlayer(text, sequences) {
  const start = parseBoard(text);
  if (!start) return null;
  const own = { name: OWN, moves: [] };
  const lines = [...sequences.map(({ name, text: written }) => ({ name, moves: parseMoves(written), written })), own];
  const state = { line: lines[0], at: 0 };
  const field = make("div", { className: "board", role: "group", "aria-label": `board of ${start.size} by ${start.size} cells` });
  field.style.width = field.style.height = `${start.size * CELL}px`;
  const status = make("p", { className: "status", role: "status" });
  const tokens = make("div", { className: "moves" });
  const button = (name, sign, act) => make("button", { type: "button", "aria-label": name, title: name, onclick: act }, sign);
  const controls = make("div", { className: "controls" }, button("first position", "|◀", () => go(0)), button("previous move", "◀", () => go(state.at - 1)),
    button("next move", "▶", () => go(state.at + 1)), button("last position", "▶|", () => go(Infinity)));
  const [choice, box] = select("Sequence", lines.map((line, i) => [String(i), line.name]), (value) => { state.line = lines[+value]; state.at = 0; draw(); });

  const played = () => playThrough(start, state.line.moves ?? []);
  function go(place) {
    state.at = Math.min(Math.max(place, 0), played().boards.length - 1);
    draw();
  }

  function push(letter, direction) {
    const { boards } = played();
    const base = state.line === own ? own.moves : (state.line.moves ?? []);
    const moves = base.slice(0, state.at);
    const last = moves.at(-1);
    const joins = state.line === own && last?.letter === letter && last.direction === direction;
    const steps = joins ? last.steps + 1 : 1;
    const next = slide(boards[state.at], { token: `${letter}${direction}1`, letter, direction, steps: 1 });
    if (next.error) { status.textContent = next.error; status.className = "status wrong"; return; }
    own.moves = [...(joins ? moves.slice(0, -1) : moves), { token: `${letter}${direction}${steps}`, letter, direction, steps }];
    state.line = own;
    state.at = own.moves.length;
    draw();
  }

  function draw() {
    const { boards, error } = played();
    const board = boards[state.at];
    box.value = String(lines.indexOf(state.line));
    drawBoard(field, board, push);
    tokens.replaceChildren(...(state.line.moves ?? []).map((move, i) => make("button", { type: "button", className: i >= boards.length - 1 ? "illegal" : "",
      "aria-current": i + 1 === state.at ? "step" : null, onclick: () => go(i + 1) }, move.token)));
    const done = state.at === boards.length - 1;
    const unread = state.line.moves === null ? `not a sequence of moves: ${shown(state.line.written)}` : null;
    const end = solved(board) ? "solved" : error && done ? `illegal: ${error}` : `move ${state.at} of ${(state.line.moves ?? []).length}`;
    status.textContent = unread ?? end;
    status.className = `status ${unread || (error && done) ? "wrong" : solved(board) ? "right" : ""}`;
  }

  draw();
  return make("div", { className: "player" }, field, make("div", { className: "beside" }, choice, controls, tokens, status,
    make("p", { className: "about" }, "Drag a piece, or focus one and use the arrow keys.")));
}

function drawBoard(field, board, push) {
  const place = (node, row, col, height, width) => Object.assign(node.style, { top: `${row * CELL}px`, left: `${col * CELL}px`, height: `${height * CELL}px`, width: `${width * CELL}px` });
  if (!field.children.length) {
    field.style.setProperty("--cell", `${CELL}px`);
    for (const [row, col] of board.walls) { const wall = make("div", { className: "wall", title: "wall" }); place(wall, row, col, 1, 1); field.append(wall); }
    const a = board.pieces.find((p) => p.letter === "A");
    const exit = make("div", { className: "exit", title: "exit" });
    place(exit, a.row, board.size, 1, 0.15);
    field.append(exit);
    for (const piece of board.pieces) field.append(pieceButton(piece, push));
  }
  board.pieces.forEach((piece) => {
    const node = field.querySelector(`[data-letter="${piece.letter}"]`);
    place(node, piece.row, piece.col, piece.vertical ? piece.length : 1, piece.vertical ? 1 : piece.length);
    node.setAttribute("aria-label", `piece ${piece.letter}, ${piece.vertical ? "upright" : "level"}, row ${piece.row + 1}, column ${piece.col + 1}`);
  });
}

function pieceButton(piece, push) {
  const [back, forth] = piece.vertical ? ["^", "v"] : ["<", ">"];
  const node = make("button", { type: "button", className: `piece ${piece.letter === "A" ? "target" : ""}`, "data-letter": piece.letter }, make("span", {}, piece.letter));
  node.style.setProperty("--hue", String((piece.letter.charCodeAt(0) * 67) % 360));
  const keys = piece.vertical ? { ArrowUp: back, ArrowDown: forth } : { ArrowLeft: back, ArrowRight: forth };
  node.addEventListener("keydown", (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    push(piece.letter, keys[event.key]);
  });
  let from = null;
  const along = (event) => (piece.vertical ? event.clientY : event.clientX);
  node.addEventListener("pointerdown", (event) => { from = along(event); node.setPointerCapture(event.pointerId); });
  node.addEventListener("pointermove", (event) => {
    if (from === null || Math.abs(along(event) - from) < CELL / 2) return;
    const sign = Math.sign(along(event) - from);
    from += sign * CELL;
    push(piece.letter, sign > 0 ? forth : back);
  });
  node.addEventListener("pointerup", () => { from = null; });
  return node;
}
