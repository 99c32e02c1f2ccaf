// Output text, each token shaded by its entropy; cue, markers and tags set apart.
const HEAT_STEP = 0.35; // nats per shade
const HEAT_SHADES = 10;
const shade = (entropy) => (entropy === null || entropy === undefined ? "none" : Math.min(HEAT_SHADES - 1, Math.floor(entropy / 1000 / HEAT_STEP)));

// Offsets count characters, not UTF-16 units.
const characters = (text) => (/[\ud800-\udfff]/.test(text) ? [...text] : text);
const cut = (chars, begin, end) => (typeof chars === "string" ? chars.slice(begin, end) : chars.slice(begin, end).join(""));

// Where each token lies. One that ends inside a character, or beyond the text, has no place of its own and joins the next.
function tokenPlaces(series) {
  const places = [];
  const starts = new Map();
  let first = 0;
  for (const [count, begin] of series.phases) { starts.set(first, begin); first += count; }
  let end = 0, begin = 0, waiting = [];
  series.ends.forEach((length, i) => {
    end += length;
    if (starts.has(i)) { begin = starts.get(i); waiting = []; }
    waiting.push(i);
    if (end > begin) { places.push({ begin, end, ids: waiting }); begin = end; waiting = []; }
  });
  return places;
}

function decorate(chars, begin, end, marks) {
  const cuts = [begin, ...marks.flatMap((m) => [m.begin, m.end]).filter((at) => at > begin && at < end), end];
  const points = [...new Set(cuts)].sort((a, b) => a - b);
  return points.slice(1).map((to, i) => {
    const from = points[i];
    const over = marks.filter((m) => m.begin <= from && m.end >= to);
    const text = cut(chars, from, to);
    if (!over.length) return text;
    return make("span", { className: over.map((m) => m.kind).join(" "), title: over.map((m) => m.title).join(", ") }, text);
  });
}

function marksOf(pass) {
  const marks = pass.marks.map(([name, begin, end]) => ({ begin, end, kind: "marker", title: `marker ${name}` }));
  if (pass.cue) marks.push({ begin: pass.cue[0], end: pass.cue[1], kind: "cue", title: "injected cue" });
  for (const [begin, end] of pass.tags) marks.push({ begin, end, kind: "tag", title: "tag" });
  return marks;
}

function shadedText(pass, series, begin, end, tip) {
  const chars = characters(pass.output);
  const marks = marksOf(pass);
  const nodes = [];
  let at = begin;
  for (const place of series ? tokenPlaces(series) : []) {
    if (place.end <= begin || place.begin >= end) continue;
    if (place.begin > at) nodes.push(...decorate(chars, at, place.begin, marks));
    const from = Math.max(place.begin, begin), to = Math.min(place.end, end);
    const heat = Math.max(...place.ids.map((i) => series.entropy[i] ?? 0));
    nodes.push(make("span", { className: `token h${shade(heat)}`, "data-ids": place.ids.join(" ") }, decorate(chars, from, to, marks)));
    at = to;
  }
  if (at < end) nodes.push(...decorate(chars, at, end, marks));
  const box = make("div", { className: "output", tabIndex: series ? 0 : -1, role: "group" }, nodes);
  if (series) listenForTokens(box, series, tip);
  return box;
}

function describeToken(node, series) {
  return node.dataset.ids.split(" ").map((i) => {
    const [entropy, logprob] = [series.entropy[i], series.logprob[i]];
    const chance = logprob === null || logprob === undefined ? "" : `, logprob ${fixed(logprob / 1000, 3)} (p ${fixed(Math.exp(logprob / 1000), 3)})`;
    return `token ${+i + 1}: entropy ${entropy === null ? "unknown" : fixed(entropy / 1000, 3)} nats${chance}`;
  }).join("\n");
}

function listenForTokens(box, series, tip) {
  let here = null;
  const go = (node) => {
    here?.classList.remove("here");
    here = node;
    here?.classList.add("here");
    if (node) tip.show(node, describeToken(node, series)); else tip.hide();
  };
  box.addEventListener("mouseover", (event) => go(event.target.closest(".token")));
  box.addEventListener("mouseleave", () => go(null));
  box.addEventListener("blur", () => go(null));
  box.addEventListener("keydown", (event) => {
    const all = [...box.querySelectorAll(".token")];
    const place = all.indexOf(here);
    const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: all.length - 1, Escape: null }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    go(next === null ? null : all[Math.min(Math.max(next, 0), all.length - 1)]);
    here?.scrollIntoView({ block: "nearest" });
  });
}

function tooltip() {
  const node = make("div", { className: "tip", role: "status", hidden: true });
  document.body.append(node);
  return {
    show(anchor, text) {
      node.textContent = text;
      node.hidden = false;
      const box = anchor.getClientRects()[0];
      const left = Math.min(box.left, innerWidth - node.offsetWidth - 8);
      const above = box.top - node.offsetHeight - 6;
      node.style.left = `${Math.max(8, left)}px`;
      node.style.top = `${above > 0 ? above : box.bottom + 6}px`;
    },
    hide() { node.hidden = true; },
  };
}

function heatLegend() {
  return make("p", { className: "legend" }, "Entropy, nats: 0 ",
    [...Array(HEAT_SHADES).keys()].map((i) => make("span", { className: `swatch h${i}`, title: `from ${fixed(i * HEAT_STEP, 2)} nats` })),
    ` ${fixed(HEAT_STEP * (HEAT_SHADES - 1), 1)} and more · `, make("span", { className: "cue" }, "cue"), " · ", make("span", { className: "marker" }, "marker"));
}
