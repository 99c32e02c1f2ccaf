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

const moveOf = (letter, direction, steps) => ({
  token: `${letter}${direction}${steps}`,
  letter,
  direction,
  steps,
});

class BoardPlayer {
  // `sequences`: {name, text} of canonical move sequences; the reader's own come last.
  constructor(start, sequences) {
    this.start = start;
    this.own = { name: OWN, moves: [] };
    this.lines = sequences.map(({ name, text }) => ({ name, moves: parseMoves(text), text }));
    this.lines.push(this.own);
    this.line = this.lines[0];
    this.at = 0;
    this.field = boardField(start, (letter, direction) => this.push(letter, direction));
    this.status = make("p", { className: "status", role: "status" });
    this.tokens = div("moves");
    const names = this.lines.map((line, i) => [String(i), line.name]);
    [this.choice, this.box] = select("Sequence", names, (value) => this.choose(+value));
    const hint = about("Drag a piece, or focus one and use the arrow keys.");
    const beside = [this.choice, this.controls(), this.tokens, this.status, hint];
    this.node = div("player", this.field, div("beside", beside));
    this.draw();
  }

  controls() {
    const button = (name, sign, act) =>
      make("button", { type: "button", "aria-label": name, title: name, onclick: act }, sign);
    return div(
      "controls",
      button("first position", "|◀", () => this.go(0)),
      button("previous move", "◀", () => this.go(this.at - 1)),
      button("next move", "▶", () => this.go(this.at + 1)),
      button("last position", "▶|", () => this.go(Infinity)),
    );
  }

  played() {
    return playThrough(this.start, this.line.moves ?? []);
  }

  choose(number) {
    this.line = this.lines[number];
    this.go(0);
  }

  go(place) {
    this.at = Math.min(Math.max(place, 0), this.played().boards.length - 1);
    this.draw();
  }

  // The reader's own slide by one cell, from wherever the board stands.
  push(letter, direction) {
    const next = slide(this.played().boards[this.at], moveOf(letter, direction, 1));
    if (next.error) return this.tell(next.error, "wrong");
    const moves = (this.line.moves ?? []).slice(0, this.at);
    const last = moves.at(-1);
    const joins = this.line === this.own && last?.letter === letter && last.direction === direction;
    if (joins) moves.pop();
    this.own.moves = [...moves, moveOf(letter, direction, joins ? last.steps + 1 : 1)];
    this.line = this.own;
    this.at = this.own.moves.length;
    return this.draw();
  }

  draw() {
    const { boards, error } = this.played();
    const moves = this.line.moves ?? [];
    this.box.value = String(this.lines.indexOf(this.line));
    setPieces(this.field, boards[this.at]);
    this.tokens.replaceChildren(...moves.map((move, i) => this.token(move, i, boards.length - 1)));
    if (this.line.moves === null)
      this.tell(`not a sequence of moves: ${shown(this.line.text)}`, "wrong");
    else if (solved(boards[this.at])) this.tell("solved", "right");
    else if (error && this.at === boards.length - 1) this.tell(`illegal: ${error}`, "wrong");
    else this.tell(`move ${this.at} of ${moves.length}`, "");
  }

  token(move, i, legal) {
    const properties = {
      type: "button",
      className: i >= legal ? "illegal" : "",
      "aria-current": i + 1 === this.at ? "step" : null,
      onclick: () => this.go(i + 1),
    };
    return make("button", properties, move.token);
  }

  tell(text, kind) {
    this.status.textContent = text;
    this.status.className = `status ${kind}`;
  }
}
