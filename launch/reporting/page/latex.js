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

function loadLatex() {
  return Promise.all([library("katex"), library("katex-style", "style")]);
}

function formula(source, written, display) {
  const node = make("span", { className: "formula" });
  try {
    katex.render(source, node, { ...KATEX, displayMode: display });
  } catch (error) {
    if (!(error instanceof katex.ParseError)) throw error;
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
