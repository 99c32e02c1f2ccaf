// Output text, each token shaded by its entropy; cue, markers and tags set apart.
const HEAT_STEP = 0.35; // nats per shade
const HEAT_SHADES = 10;

function shade(thousandths) {
  return Math.min(HEAT_SHADES - 1, Math.floor(thousandths / 1000 / HEAT_STEP));
}

// Offsets count characters, not UTF-16 units.
const characters = (text) => (/[\ud800-\udfff]/.test(text) ? [...text] : text);
const cut = (chars, begin, end) =>
  typeof chars === "string" ? chars.slice(begin, end) : chars.slice(begin, end).join("");

// Where each token lies in the output. One that ends inside a character joins the next; one that
// lies beyond the text (a stop string, an end of sequence) has no place.
function tokenPlaces(series) {
  const starts = new Map();
  let first = 0;
  for (const [count, begin] of series.phases) {
    starts.set(first, begin);
    first += count;
  }
  const places = [];
  let [begin, end, ids] = [0, 0, []];
  series.ends.forEach((length, i) => {
    end += length;
    if (starts.has(i)) [begin, ids] = [starts.get(i), []];
    ids.push(i);
    if (end <= begin) return;
    places.push({ begin, end, ids });
    [begin, ids] = [end, []];
  });
  return places;
}

function marksOf(pass) {
  const mark = ([begin, end], kind, title) => ({ begin, end, kind, title });
  return [
    ...pass.marks.map(([name, ...span]) => mark(span, "marker", `marker ${name}`)),
    ...(pass.cue ? [mark(pass.cue, "cue", "injected cue")] : []),
    ...pass.tags.map(([begin, end, isForced]) =>
      isForced
        ? mark([begin, end], "tag forced", "tag that the pipeline wrote")
        : mark([begin, end], "tag", "tag that the model wrote"),
    ),
  ];
}

// A piece of text, cut where marks begin or end.
function decorate(chars, begin, end, marks) {
  const inside = marks.flatMap((m) => [m.begin, m.end]).filter((at) => at > begin && at < end);
  const points = [...new Set([begin, ...inside, end])].sort((a, b) => a - b);
  return points.slice(1).map((to, i) => {
    const over = marks.filter((m) => m.begin <= points[i] && m.end >= to);
    const text = cut(chars, points[i], to);
    if (!over.length) return text;
    const title = over.map((m) => m.title).join(", ");
    return make("span", { className: over.map((m) => m.kind).join(" "), title }, text);
  });
}

function shadedText(pass, series, [begin, end], tip) {
  const chars = characters(pass.output);
  const marks = marksOf(pass);
  const nodes = [];
  let at = begin;
  for (const place of series ? tokenPlaces(series) : []) {
    if (place.end <= begin || place.begin >= end) continue;
    if (place.begin > at) nodes.push(...decorate(chars, at, place.begin, marks));
    at = Math.min(place.end, end);
    const text = decorate(chars, Math.max(place.begin, begin), at, marks);
    const heat = shade(Math.max(...place.ids.map((i) => series.entropy[i] ?? 0)));
    const properties = { className: `token h${heat}`, "data-ids": place.ids.join(" ") };
    nodes.push(make("span", properties, text));
  }
  if (at < end) nodes.push(...decorate(chars, at, end, marks));
  const focusable = series ? { tabIndex: 0, role: "group" } : {};
  const box = make("div", { className: "output", ...focusable }, nodes);
  if (series) listenForTokens(box, series, tip);
  return box;
}

function describeToken(series, i) {
  const nats = (thousandths) => (isKnown(thousandths) ? fixed(thousandths / 1000, 3) : "unknown");
  const [entropy, logprob] = [series.entropy[i], series.logprob[i]];
  const text = `token ${i + 1}: entropy ${nats(entropy)} nats`;
  if (!isKnown(logprob)) return text;
  return `${text}, logprob ${nats(logprob)} (p ${fixed(Math.exp(logprob / 1000), 3)})`;
}

// Hovering or the arrow keys choose a token; the tip tells its numbers.
function listenForTokens(box, series, tip) {
  let here = null;
  const go = (node) => {
    here?.classList.remove("here");
    here = node;
    if (!node) return tip.hide();
    node.classList.add("here");
    const ids = node.dataset.ids.split(" ").map(Number);
    return tip.show(node, ids.map((i) => describeToken(series, i)).join("\n"));
  };
  box.addEventListener("mouseover", (event) => go(event.target.closest(".token")));
  box.addEventListener("mouseleave", () => go(null));
  box.addEventListener("blur", () => go(null));
  box.addEventListener("keydown", (event) => {
    const all = [...box.querySelectorAll(".token")];
    const [at, last] = [all.indexOf(here), all.length - 1];
    const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last, Escape: NaN };
    if (!(event.key in places)) return;
    event.preventDefault();
    go(all[Math.min(Math.max(places[event.key], 0), last)] ?? null);
    here?.scrollIntoView({ block: "nearest" });
  });
}

function tooltip() {
  const node = make("div", { className: "tip", role: "status", hidden: true });
  document.body.append(node);
  const show = (anchor, text) => {
    node.textContent = text;
    node.hidden = false;
    const box = anchor.getClientRects()[0];
    const above = box.top - node.offsetHeight - 6;
    const left = Math.min(box.left, innerWidth - node.offsetWidth - 8);
    node.style.left = `${Math.max(8, left)}px`;
    node.style.top = `${above > 0 ? above : box.bottom + 6}px`;
  };
  const hide = () => {
    node.hidden = true;
  };
  return { show, hide };
}

function heatLegend() {
  const swatches = [...Array(HEAT_SHADES).keys()].map((i) =>
    make("span", { className: `swatch h${i}`, title: `from ${fixed(i * HEAT_STEP, 2)} nats` }),
  );
  const top = ` ${fixed(HEAT_STEP * (HEAT_SHADES - 1), 1)} and more`;
  const marks = [" · ", span("cue", "cue"), " · ", span("marker", "marker")];
  return make("p", { className: "legend" }, "Entropy, nats: 0 ", swatches, top, marks);
}
