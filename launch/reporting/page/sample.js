// One sample: its problem, then every pass; beside it the other run's, when two are compared.
const options = { rendered: false };

async function sampleParts(index, number) {
  const [chunk, place] = [Math.floor(number / index.chunk), number % index.chunk];
  const names = [`texts-${chunk}`, `tokens-${chunk}`, "prompts"];
  const [texts, tokens, prompts] = await Promise.all(names.map(piece));
  return { row: index.rows[number], texts: texts[place], tokens: tokens[place], prompts };
}

function golds(texts) {
  if (Array.isArray(texts.golds) && texts.golds.length) return texts.golds.map(String);
  if (!isKnown(texts.gold)) return [];
  return [Array.isArray(texts.gold) ? texts.gold.join(",") : String(texts.gold)];
}

const passName = (line, i) => (i === 0 ? "Pass 1" : `Pass 2 · ${line.cue}`);

function player({ row, texts }) {
  const board = parseBoard(texts.board);
  if (!board) return null;
  const answered = row.passes.map((line, i) => {
    const text = texts.passes[i].fields.pred_answer_canon;
    return { name: passName(line, i).toLowerCase(), text };
  });
  const gold = golds(texts).map((text) => ({ name: "gold", text }));
  return new BoardPlayer(board, [...gold, ...answered]).node;
}

function sampleColumn(index, parts, tip) {
  const { row, texts } = parts;
  const board = player(parts);
  const problem = div("problem", withFormulas(texts.problem));
  const fields = Object.entries(texts.fields);
  return div(
    "column",
    make("h2", {}, row.example, span("where", whereOf(index, row))),
    board,
    board && texts.problem === texts.board ? null : problem,
    row.passes.map((_, i) => passBlock(parts, i, tip)),
    details("All fields of the row", table(["field", "value"], fields, "Fields of the row")),
  );
}

class SampleView {
  constructor(index, tip) {
    Object.assign(this, { index, tip, wanted: null });
    const hint = about("Choose a sample from the list.");
    this.place = make("div", { className: "sample", id: "sample", tabIndex: -1 }, hint);
  }

  // A later call wins over one whose texts are still being unpacked.
  async show(number) {
    this.wanted = number;
    this.tip.hide();
    const both = [number, this.index.twin[number]].filter((n) => n !== undefined);
    both.sort((a, b) => this.index.rows[a].run - this.index.rows[b].run);
    const loading = both.map((n) => sampleParts(this.index, n));
    const [parts] = await Promise.all([Promise.all(loading), loadLatex()]);
    if (this.wanted !== number) return;
    const text = "render formulas instead of shading tokens";
    const toggle = tick("rendered", text, options.rendered, (ticked) => {
      options.rendered = ticked;
      this.show(number);
    });
    const columns = parts.map((found) => sampleColumn(this.index, found, this.tip));
    this.place.replaceChildren(
      div("toolbar", heatLegend(), toggle),
      div(both.length > 1 ? "columns two" : "columns", columns),
    );
    this.place.dataset.number = number;
    this.place.scrollTop = 0;
  }
}
