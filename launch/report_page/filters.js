// Which rows the list shows: choices, and a search through every text.
const OUTCOMES = [["", "any outcome"], ["right", "pass 1 right"], ["wrong", "pass 1 wrong"], ["after-right", "pass 2 right"],
  ["after-wrong", "pass 2 wrong"], ["flipped", "flipped"], ["gained", "wrong to right"], ["lost", "right to wrong"], ["unknown", "no verdict"]];
const ORDERS = [["", "as in the files"], ["up", "entropy, lowest first"], ["down", "entropy, highest first"], ["long", "tokens, most first"]];

const isKnown = (right) => right !== null && right !== undefined;

function outcome(row, wanted, cue) {
  const before = row.passes[0]?.right;
  const later = row.passes.slice(1).filter((pass) => cue === "" || pass.cue === cue).map((pass) => pass.right);
  switch (wanted) {
    case "right": return before === true;
    case "wrong": return before === false;
    case "after-right": return later.includes(true);
    case "after-wrong": return later.includes(false);
    case "gained": return before === false && later.includes(true);
    case "lost": return before === true && later.includes(false);
    case "flipped": return isKnown(before) && later.some((right) => isKnown(right) && right !== before);
    case "unknown": return !isKnown(before);
    default: return true;
  }
}

function disagrees(row, other, wanted) {
  if (!wanted) return true;
  const [ours, theirs] = [row.passes[0]?.right, other?.passes[0]?.right];
  return isKnown(ours) && isKnown(theirs) && ours !== theirs;
}

// Texts of all rows in lower case, by row; filled in the background once somebody searches.
const haystack = { texts: [], ready: 0, loading: null };

function rowText(row, texts) {
  const parts = [row.example, texts.problem, JSON.stringify(texts.gold), ...texts.passes.map((pass) => pass.output)];
  return parts.join("\n").toLowerCase();
}

function loadHaystack(index, onprogress) {
  haystack.loading ??= (async () => {
    for (let chunk = 0; chunk * index.chunk < index.rows.length; chunk++) {
      const texts = JSON.parse(await unpack(`texts-${chunk}`));
      texts.forEach((text, i) => { haystack.texts[chunk * index.chunk + i] = rowText(index.rows[chunk * index.chunk + i], text); });
      haystack.ready = Math.min((chunk + 1) * index.chunk, index.rows.length);
      if (chunk % 8 === 7) onprogress();
      await new Promise((resolve) => setTimeout(resolve));
    }
    onprogress();
  })();
  return haystack.loading;
}

function found(row, number, words) {
  if (!words.length) return true;
  const text = haystack.texts[number] ?? `${row.example}\n${row.title}\n${row.passes.map((pass) => pass.answer).join("\n")}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function chosenRows(index, state) {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const numbers = [];
  index.rows.forEach((row, number) => {
    const kept = (state.run === "" || row.run === +state.run)
      && (state.task === "" || row.task === state.task)
      && (state.step === "" || row.step === +state.step)
      && (state.temperature === "" || row.temperature === +state.temperature)
      && (state.cue === "" || row.passes.some((pass) => pass.cue === state.cue))
      && outcome(row, state.outcome, state.cue)
      && disagrees(row, index.rows[index.twin[number]], state.disagree)
      && found(row, number, words);
    if (kept) numbers.push(number);
  });
  const pass = (number) => index.rows[number].passes.find((p) => p.cue === state.cue) ?? index.rows[number].passes[0] ?? {};
  const by = (value, sign) => numbers.sort((a, b) => sign * ((value(pass(a)) ?? -sign * Infinity) - (value(pass(b)) ?? -sign * Infinity)) || a - b);
  if (state.order === "up") by((p) => p.entropy, 1);
  if (state.order === "down") by((p) => p.entropy, -1);
  if (state.order === "long") by((p) => p.tokens, -1);
  return numbers;
}

function filterForm(index, onchange) {
  const state = { run: "", task: "", step: "", temperature: "", cue: "", outcome: "", order: "", search: "", disagree: false };
  const values = (name) => [...new Set(index.rows.map((row) => row[name]))].filter((v) => v !== null && v !== undefined)
    .sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b)))).map((v) => [String(v), shown(v)]);
  const choice = (label, name, options) => {
    const [field, box] = select(label, options, (value) => { state[name] = value; onchange(); });
    box.id = `filter-${name}`;
    return field;
  };
  const cues = index.passes.filter((pass) => pass !== "pass 1").map((cue) => [cue, cue]);
  const search = make("input", { type: "search", id: "filter-search", placeholder: "words in problem, output or answer", oninput: () => {
    state.search = search.value;
    onchange();
    if (state.search) loadHaystack(index, onchange);
  } });
  const form = make("form", { className: "choices", "aria-label": "Filter the samples", onsubmit: (event) => event.preventDefault() },
    index.runs.length > 1 ? choice("Run", "run", [["", "both runs"], ...index.runs.map((run, i) => [String(i), run.name])]) : null,
    choice("Task", "task", [["", "all tasks"], ...values("task")]),
    choice("Step", "step", [["", "all steps"], ...values("step")]),
    choice("Temperature", "temperature", [["", "all temperatures"], ...values("temperature")]),
    choice("Cue", "cue", [["", "all cues"], ...cues]),
    choice("Outcome", "outcome", OUTCOMES),
    choice("Order", "order", ORDERS),
    index.runs.length > 1 ? make("label", { className: "check" }, make("input", { type: "checkbox", id: "filter-disagree",
      onchange: (event) => { state.disagree = event.target.checked; onchange(); } }), "runs disagree in pass 1") : null,
    make("label", { className: "wide" }, make("span", {}, "Search"), search));
  return [form, state];
}
