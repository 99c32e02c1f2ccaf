// Formulas in texts, rendered by KaTeX. What it cannot read stays as it was written.
const FORMULA = /\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\]|\\\(([\s\S]+?)\\\)|\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)|(\\begin\{([a-z]+\*?)\}[\s\S]+?\\end\{\6\})|(\\boxed\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})/g;
const COMMAND = /\\[a-zA-Z]+|[\^_]\{/;

function loadLatex() {
  return Promise.all([library("katex"), styleLibrary("katex-style")]);
}

function formula(source, written, display) {
  const node = make("span", { className: "formula" });
  try {
    katex.render(source, node, { displayMode: display, throwOnError: true, strict: "ignore", trust: false, maxSize: 20, maxExpand: 300 });
  } catch (error) {
    if (!(error instanceof katex.ParseError)) throw error;
    node.textContent = written;
    node.title = error.message;
    node.classList.add("unread");
  }
  return node;
}

// The nodes of a text with its formulas rendered. `whole`: the text may be a formula without signs around it.
function withFormulas(text, whole = false) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(FORMULA)) {
    const source = match.slice(1).find((group, i) => group !== undefined && i !== 5);
    nodes.push(text.slice(end, match.index), formula(source, match[0], match[1] !== undefined || match[2] !== undefined || match[5] !== undefined));
    end = match.index + match[0].length;
  }
  if (whole && !nodes.length && COMMAND.test(text)) return [formula(text, text, false)];
  nodes.push(text.slice(end));
  return nodes;
}
