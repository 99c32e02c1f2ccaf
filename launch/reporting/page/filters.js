// Which rows the list shows.
const OUTCOMES = [
  ["", "any outcome"],
  ["right", "pass 1 right"],
  ["wrong", "pass 1 wrong"],
  ["after-right", "pass 2 right"],
  ["after-wrong", "pass 2 wrong"],
  ["flipped", "flipped"],
  ["gained", "wrong to right"],
  ["lost", "right to wrong"],
  ["unknown", "no verdict"],
];
const ORDERS = [
  ["", "as in the files"],
  ["up", "entropy, lowest first"],
  ["down", "entropy, highest first"],
  ["long", "tokens, most first"],
];

function outcome(row, wanted, cue) {
  const before = row.passes[0]?.right;
  const later = row.passes
    .slice(1)
    .filter((pass) => cue === "" || pass.cue === cue)
    .map((pass) => pass.right);
  switch (wanted) {
    case "right":
      return before === true;
    case "wrong":
      return before === false;
    case "after-right":
      return later.includes(true);
    case "after-wrong":
      return later.includes(false);
    case "gained":
      return before === false && later.includes(true);
    case "lost":
      return before === true && later.includes(false);
    case "flipped":
      return isKnown(before) && later.some((right) => isKnown(right) && right !== before);
    case "unknown":
      return !isKnown(before);
    default:
      return true;
  }
}

function disagrees(row, other, wanted) {
  if (!wanted) return true;
  const [ours, theirs] = [row.passes[0]?.right, other?.passes[0]?.right];
  return isKnown(ours) && isKnown(theirs) && ours !== theirs;
}

const same = (wanted, value) => wanted === "" || value === wanted;

function chosenRows(index, state) {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const numbers = [];
  index.rows.forEach((row, number) => {
    const kept =
      same(state.run, String(row.run)) &&
      same(state.task, row.task) &&
      same(state.step, String(row.step)) &&
      same(state.temperature, String(row.temperature)) &&
      index.by.every((name) => same(state[groupChoice(name)], groupOf(row, name))) &&
      (state.cue === "" || row.passes.some((pass) => pass.cue === state.cue)) &&
      outcome(row, state.outcome, state.cue) &&
      disagrees(row, index.rows[index.twin[number]], state.disagree) &&
      holds(row, number, words);
    if (kept) numbers.push(number);
  });
  return inOrder(index, numbers, state);
}

// Sorted by entropy or tokens of the chosen cue's pass, else of pass 1; unknown values come last.
function inOrder(index, numbers, state) {
  const orders = { up: ["entropy", 1], down: ["entropy", -1], long: ["tokens", -1] };
  if (!(state.order in orders)) return numbers;
  const [name, sign] = orders[state.order];
  const value = (number) => {
    const passes = index.rows[number].passes;
    const pass = passes.find((p) => p.cue === state.cue) ?? passes[0];
    return pass?.[name] ?? sign * Infinity;
  };
  return numbers.sort((a, b) => (value(a) === value(b) ? a - b : sign * (value(a) - value(b))));
}

// Columns of the data (--by) and swept keys; a row without the column is listed under a dash.
const groupChoice = (name) => `by-${name}`;
const groupOf = (row, name) => (isKnown(row.groups?.[name]) ? String(row.groups[name]) : "–");
const groupValues = (index, name) =>
  [...new Set(index.rows.map((row) => groupOf(row, name)))]
    .sort((a, b) => a.localeCompare(b, undefined, { numeric: true }))
    .map((value) => [value, value]);

const valuesOf = (index, name) =>
  [...new Set(index.rows.map((row) => row[name]))]
    .filter(isKnown)
    .sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b))))
    .map((value) => [String(value), shown(value)]);

// What can be chosen: label, name of the choice, its options.
function choices(index) {
  const cues = index.passes.filter((pass) => pass !== FIRST).map((cue) => [cue, cue]);
  const runs = index.runs.map((run, i) => [String(i), run.name]);
  return [
    ...(runs.length > 1 ? [["Run", "run", [["", "both runs"], ...runs]]] : []),
    ["Task", "task", [["", "all tasks"], ...valuesOf(index, "task")]],
    ["Step", "step", [["", "all steps"], ...valuesOf(index, "step")]],
    ["Temperature", "temperature", [["", "all temperatures"], ...valuesOf(index, "temperature")]],
    ...index.by.map((name) => [name, groupChoice(name), [["", "all"], ...groupValues(index, name)]]),
    ["Cue", "cue", [["", "all cues"], ...cues]],
    ["Outcome", "outcome", OUTCOMES],
    ["Order", "order", ORDERS],
  ];
}

function filterForm(index, onchange) {
  const state = { run: "", search: "", disagree: false };
  const fields = choices(index).map(([label, name, options]) => {
    state[name] = "";
    const [field, box] = select(label, options, (value) => {
      state[name] = value;
      onchange();
    });
    box.id = `filter-${name}`;
    return field;
  });
  if (index.runs.length > 1) {
    const disagree = (ticked) => {
      state.disagree = ticked;
      onchange();
    };
    fields.push(tick("filter-disagree", "runs disagree in pass 1", false, disagree));
  }
  const form = choiceForm("Filter the samples", fields, searchBox(index, state, onchange));
  return [form, state];
}

function searchBox(index, state, onchange) {
  const box = make("input", {
    type: "search",
    id: "filter-search",
    placeholder: "words in problem, output or answer",
    oninput: () => {
      state.search = box.value;
      onchange();
      if (state.search) loadHaystack(index, onchange);
    },
  });
  return make("label", { className: "wide" }, make("span", {}, "Search"), box);
}
