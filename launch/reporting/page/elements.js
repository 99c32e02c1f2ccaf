// Elements and numbers. Text from rows only ever becomes text nodes.
const FIRST = "pass 1";

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && !name.includes("-")) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const div = (className, ...children) => make("div", { className }, ...children);
const span = (className, ...children) => make("span", { className }, ...children);
const about = (...children) => make("p", { className: "about" }, ...children);
const details = (summary, ...content) =>
  make("details", {}, make("summary", {}, summary), ...content);

function select(label, options, onchange) {
  const items = options.map(([value, text]) => make("option", { value }, text));
  const box = make("select", { onchange: () => onchange(box.value) }, items);
  return [make("label", {}, make("span", {}, label), box), box];
}

// A tick box with its label; `onchange` hears whether it is ticked.
function tick(id, text, checked, onchange) {
  const box = make("input", {
    type: "checkbox",
    id,
    checked,
    onchange: () => onchange(box.checked),
  });
  return make("label", { className: "check" }, box, text);
}

function choiceForm(label, ...fields) {
  const properties = { className: "choices", "aria-label": label };
  return make("form", { ...properties, onsubmit: (event) => event.preventDefault() }, ...fields);
}

const isKnown = (value) => value !== null && value !== undefined;
const fixed = (value, digits) => (isKnown(value) ? value.toFixed(digits) : "");
const mark = (right) => (isKnown(right) ? (right ? "✓" : "✗") : "·");
const verdictClass = (right) => (isKnown(right) ? (right ? "right" : "wrong") : "unknown");
const verdictWord = (right) => (isKnown(right) ? (right ? "right" : "wrong") : "no verdict");

function shown(value) {
  if (!isKnown(value)) return "–";
  if (typeof value === "string") return value;
  if (typeof value !== "number") return JSON.stringify(value);
  return Number.isInteger(value) ? String(value) : String(+value.toPrecision(4));
}

function tableCell(cell, name, number) {
  const long = String(cell).length > 60;
  const className = number ? "number" : long ? "long" : "";
  return make("td", { className, "data-name": name }, shown(cell));
}

// `numbers` says which columns hold numbers that are text already; else each cell is looked at.
function table(columns, rows, caption, numbers = null) {
  const isNumber = (cell, i) => (numbers ? numbers[i] : typeof cell === "number");
  const heads = columns.map((name, i) => {
    const className = rows.some((row) => isNumber(row[i], i)) ? "number" : "";
    return make("th", { scope: "col", className }, name);
  });
  const cells = (row) => row.map((cell, i) => tableCell(cell, columns[i], isNumber(cell, i)));
  const lines = rows.map((row) => make("tr", {}, cells(row)));
  return make(
    "div",
    { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    make(
      "table",
      {},
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, heads)),
      make("tbody", {}, lines),
    ),
  );
}
