// One sample: its problem, then prompt, think and answer of every pass; beside it the other run's, when two are compared.
const options = { rendered: false };

async function sampleParts(index, number) {
  const [chunk, place] = [Math.floor(number / index.chunk), number % index.chunk];
  const [texts, tokens, prompts] = await Promise.all([piece(`texts-${chunk}`), piece(`tokens-${chunk}`), piece("prompts")]);
  return { row: index.rows[number], texts: texts[place], tokens: tokens[place], prompts };
}

function messages(prompts, number, pass, earlier) {
  if (number === null || number === undefined) return [make("p", { className: "about" }, "The rows' folder does not say how the prompt was made.")];
  const turns = prompts.prompts[number].map(([role, ...texts]) => [role, texts.map((text) => prompts.texts[text]).join("")]);
  const prefill = turns.filter(([role]) => role === "prefill");
  const again = earlier === null ? [] : [["assistant", earlier], ["user", pass.cue_text ?? "(the row does not hold the cue's text)"]];
  return [...turns.filter(([role]) => role !== "prefill"), ...again, ...prefill].map(([role, text]) =>
    make("div", { className: "message" }, make("span", { className: "role" }, role), make("div", { className: "said" }, text)));
}

function outputBlock(pass, series, begin, end, tip) {
  if (!options.rendered) return shadedText(pass, series, begin, end, tip);
  const chars = characters(pass.output);
  const nodes = decorate(chars, begin, end, marksOf(pass)).flatMap((node) => {
    if (typeof node === "string") return withFormulas(node, begin > 0);
    node.replaceChildren(...withFormulas(node.textContent));
    return [node];
  });
  return make("div", { className: "output" }, nodes);
}

function facts(line, pass) {
  const f = pass.fields;
  const stops = Object.entries(f).filter(([name]) => name.startsWith("stop_reason_")).map(([name, why]) => `${name.slice(12)}: ${why}`).join(", ");
  const found = [["entropy", line.entropy === null ? "" : `${fixed(line.entropy, 3)} nats`], ["think", fixed(f.entropy_think, 3)], ["answer", fixed(f.entropy_answer, 3)],
    ["tokens", shown(line.tokens)], ["stopped", stops], ["soft reward", fixed(f.soft_reward ?? f["soft reward"], 3)], ["markers", (f.reconsider_markers ?? []).join(", ")]];
  return make("dl", { className: "facts" }, found.filter(([, value]) => value !== "" && value !== "–").map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

const details = (summary, ...content) => make("details", {}, make("summary", {}, summary), ...content);

function passBlock(parts, i, tip) {
  const { row, texts, tokens, prompts } = parts;
  const [line, pass, series] = [row.passes[i], texts.passes[i], tokens[i]];
  const name = i === 0 ? "Pass 1" : `Pass 2 · ${line.cue}`;
  const end = characters(pass.output).length;
  const split = pass.answer_at ?? end;
  const earlier = i === 0 ? null : (pass.shown ?? texts.passes[0]?.output ?? "");
  const gold = golds(texts).map((text) => withFormulas(text, true));
  return make("article", { className: "pass", "aria-label": name },
    make("h3", {}, name, " ", make("span", { className: `badge ${verdictClass(line.right)}` }, `${mark(line.right)} ${verdictWord(line.right)}`)),
    pass.cue_text ? make("p", { className: "cue-line" }, make("span", { className: "cue" }, pass.cue_text)) : null,
    "pred_answer" in pass.fields || gold.length ? make("p", { className: "answers" }, "answered ", make("strong", {}, withFormulas(String(pass.fields.pred_answer ?? line.answer ?? "") || "nothing", true)),
      gold.length ? [" · gold ", make("strong", {}, gold.flatMap((nodes, n) => (n ? [" or ", ...nodes] : nodes)))] : []) : null,
    facts(line, pass),
    details("Prompt", messages(prompts, row.prompt, pass, earlier)),
    make("h4", {}, "Think"), outputBlock(pass, series, 0, split, tip),
    split < end ? [make("h4", {}, "Answer"), outputBlock(pass, series, split, end, tip)] : null,
    details("All fields", table(["field", "value"], Object.entries(pass.fields), "Fields of this pass")));
}

function golds(texts) {
  if (Array.isArray(texts.golds) && texts.golds.length) return texts.golds.map(String);
  const gold = texts.gold;
  return gold === null || gold === undefined ? [] : [Array.isArray(gold) ? gold.join(",") : String(gold)];
}

function sampleColumn(index, parts, tip) {
  const { row, texts } = parts;
  const moves = row.passes.map((line, i) => ({ name: i === 0 ? "pass 1" : `pass 2 · ${line.cue}`, text: texts.passes[i].fields.pred_answer_canon }));
  const player = parseBoard(texts.board) ? boardPlayer(texts.board, [...golds(texts).map((text) => ({ name: "gold", text })), ...moves]) : null;
  return make("div", { className: "column" },
    make("h2", {}, row.example, make("span", { className: "where" }, whereOf(index, row))),
    player,
    player && texts.problem === texts.board ? null : make("div", { className: "problem" }, withFormulas(texts.problem)),
    row.passes.map((_, i) => passBlock(parts, i, tip)),
    details("All fields of the row", table(["field", "value"], Object.entries(texts.fields), "Fields of the row")));
}

function whereOf(index, row) {
  const run = index.runs.length > 1 ? `${index.runs[row.run].name} · ` : "";
  return `${run}${shown(row.task)} · step ${shown(row.step)} · T ${shown(row.temperature)} · sample ${shown(row.sample)}`;
}

function sampleView(index, tip) {
  const place = make("div", { className: "sample", id: "sample", tabIndex: -1, "aria-live": "off" }, make("p", { className: "about" }, "Choose a sample from the list."));
  let wanted = null;
  async function show(number) {
    wanted = number;
    tip.hide();
    const twin = index.twin[number];
    const both = [number, ...(twin === undefined ? [] : [twin])].sort((a, b) => index.rows[a].run - index.rows[b].run);
    const [parts] = await Promise.all([Promise.all(both.map((n) => sampleParts(index, n))), loadLatex()]);
    if (wanted !== number) return;
    const toggle = make("label", { className: "check" }, make("input", { type: "checkbox", id: "rendered", checked: options.rendered,
      onchange: (event) => { options.rendered = event.target.checked; show(number); } }), "render formulas instead of shading tokens");
    place.replaceChildren(make("div", { className: "toolbar" }, heatLegend(), toggle),
      make("div", { className: both.length > 1 ? "columns two" : "columns" }, parts.map((found) => sampleColumn(index, found, tip))));
    place.dataset.number = number;
    place.scrollTop = 0;
  }
  return { place, show };
}
