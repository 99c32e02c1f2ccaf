// Elements and numbers. Text from rows only ever becomes text nodes.
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

function select(label, options, onchange) {
  const box = make("select", { onchange: () => onchange(box.value) },
    options.map(([value, text]) => make("option", { value }, text)));
  return [make("label", {}, make("span", {}, label), box), box];
}

const fixed = (value, digits) => (value === null || value === undefined ? "" : value.toFixed(digits));
const percent = (share, digits = 1) => (share === null || share === undefined ? "" : `${(100 * share).toFixed(digits)} %`);
const mark = (right) => (right === null || right === undefined ? "·" : right ? "✓" : "✗");
const verdictClass = (right) => (right === null || right === undefined ? "unknown" : right ? "right" : "wrong");
const verdictWord = (right) => (right === null || right === undefined ? "no verdict" : right ? "right" : "wrong");

function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(+value.toPrecision(5));
  return typeof value === "string" ? value : JSON.stringify(value);
}

// A number, or one beside its error.
const isNumber = (cell) => typeof cell === "number" || (typeof cell === "string" && cell.includes(" ± "));

function table(columns, rows, caption) {
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    make("table", {},
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, columns.map((name, i) => make("th", { scope: "col", className: rows.some((row) => isNumber(row[i])) ? "number" : "" }, name)))),
      make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) =>
        make("td", { className: isNumber(cell) ? "number" : String(cell).length > 60 ? "long" : "" }, shown(cell))))))));
}
