// Formulas in texts, rendered by KaTeX. What it cannot read stays as it was written.
const FORMULA = new RegExp(
  [
    /\$\$(?<dollars>[\s\S]+?)\$\$/,
    /\\\[(?<brackets>[\s\S]+?)\\\]/,
    /(?<environment>\\begin\{(?<kind>[a-z]+\*?)\}[\s\S]+?\\end\{\k<kind>\})/,
    /\\\((?<round>[\s\S]+?)\\\)/,
    /\$(?!\s)(?<dollar>(?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/,
    /(?<boxed>\\boxed\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})/,
  ]
    .map((part) => part.source)
    .join("|"),
  "g",
);
const COMMAND = /\\[a-zA-Z]+|[\^_]\{/;
const KATEX = { throwOnError: true, strict: "ignore", trust: false, maxSize: 20, maxExpand: 300 };
// Browsers lay out nested formulas recursively: from some 200 levels on the tab crashes.
const MOST_LEVELS = 60;
const LEVELS = /\\[a-zA-Z]+|\\.|[{}]|[^\s\\{}]/g;
const OPENS = new Set(["{", "\\left", "\\begin"]);
const CLOSES = new Set(["}", "\\right", "\\end"]);
// These hold whatever follows them in their group, so that each lies within the one before.
const SWITCH =
  /^\\(?:(?:display|text|script|scriptscript)style|tiny|sixptsize|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge|color|rm|sf|tt|bf|it|cal|mathcal|mathbf)$/;

// How deep a formula nests, or somewhat more: groups, fences, and commands that follow commands.
function levels(source) {
  const groups = [];
  let open = 0;
  let row = 0;
  let most = 0;
  for (const [token] of source.matchAll(LEVELS)) {
    if (OPENS.has(token)) {
      groups.push(Math.max(1, row));
      open += groups.at(-1);
      row = 0;
    } else if (CLOSES.has(token)) {
      open -= groups.pop() ?? 0;
      row = 0;
    } else if (SWITCH.test(token)) open++;
    else row = /^\\[a-zA-Z]/.test(token) ? row + 1 : 0;
    most = Math.max(most, open + row);
  }
  return most;
}

function loadLatex() {
  return Promise.all([library("katex"), library("katex-style", "style")]);
}

function formula(source, written, display) {
  const node = make("span", { className: "formula" });
  if (levels(source) > MOST_LEVELS) {
    node.textContent = written;
    node.title = `nested more than ${MOST_LEVELS} levels deep`;
    node.classList.add("unread");
    return node;
  }
  try {
    katex.render(source, node, { ...KATEX, displayMode: display });
  } catch (error) {
    if (!(error instanceof katex.ParseError || error instanceof RangeError)) throw error;
    node.textContent = written;
    node.title = error.message;
    node.classList.add("unread");
  }
  return node;
}

// The nodes of a text, its formulas rendered. `whole`: it may be a formula without signs around.
function withFormulas(text, whole = false) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(FORMULA)) {
    const { dollars, brackets, environment, round, dollar, boxed } = match.groups;
    const display = dollars ?? brackets ?? environment;
    const source = display ?? round ?? dollar ?? boxed;
    nodes.push(text.slice(end, match.index), formula(source, match[0], display !== undefined));
    end = match.index + match[0].length;
  }
  if (whole && !nodes.length && COMMAND.test(text)) return [formula(text, text, false)];
  nodes.push(text.slice(end));
  return nodes;
}
