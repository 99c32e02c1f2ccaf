// [text, contrast] of every text in view with what lies behind it (WCAG's ratio), layers joined.
const parse = (colour) => {
  const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
  return [r, g, b, a];
};
const over = (top, below) =>
  [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const light = (c) =>
  [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * channel(c[i] / 255), 0);

function ground(node) {
  const layers = [];
  for (let n = node; n; n = n.parentElement)
    layers.unshift(parse(getComputedStyle(n).backgroundColor));
  return layers.reduce((below, top) => over(top, below), [0, 0, 0, 1]);
}

const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const [text, node] = [walker.currentNode.data, walker.currentNode.parentElement];
  if (!text.trim() || !node.checkVisibility() || node.closest("script, .katex-mathml")) continue;
  const behind = ground(node);
  const both = [light(over(parse(getComputedStyle(node).color), behind)), light(behind)];
  const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  found.push([`${text.slice(0, 40)} in ${node.className}`, ratio]);
}
return found;
