// Tabs, and the samples tab that ties filters, list and sample together.
function twins(index) {
  const exact = (row) => JSON.stringify([row.task, row.example, row.sample, row.step, row.temperature]);
  const close = (row) => JSON.stringify([row.task, row.example, row.sample]);
  const maps = [new Map(), new Map()];
  index.rows.forEach((row, i) => { for (const key of [exact(row), close(row)]) if (!maps[row.run].has(key)) maps[row.run].set(key, i); });
  return index.rows.map((row) => maps[1 - row.run].get(exact(row)) ?? maps[1 - row.run].get(close(row)));
}

function listed(index, number) {
  const row = index.rows[number];
  const run = index.runs.length > 1 ? `${index.runs[row.run].name} · ` : "";
  return [make("span", { className: "verdicts" }, row.passes.map((pass) => make("span", { className: verdictClass(pass.right), title: `${pass.cue ?? "pass 1"}: ${verdictWord(pass.right)}` }, mark(pass.right)))),
    make("span", { className: "title" }, row.title || row.example),
    make("span", { className: "where" }, `${run}${shown(row.task)} · ${row.example} · step ${shown(row.step)} · T ${shown(row.temperature)} · #${shown(row.sample)}`),
    make("span", { className: "entropy" }, fixed(row.passes[0]?.entropy, 2))];
}

function showSamples(panel, index, remember) {
  const view = sampleView(index, tooltip());
  const list = virtualList((number) => listed(index, number), (number) => { view.show(number); remember(number); });
  const count = make("p", { className: "count", id: "count", role: "status" });
  const [form, state] = filterForm(index, refilter);
  let timer = null;
  function apply() {
    timer = null;
    const begun = performance.now();
    const numbers = chosenRows(index, state);
    list.set(numbers);
    const searching = state.search && haystack.ready < index.rows.length ? `, searching outputs: ${haystack.ready} of ${index.rows.length}` : "";
    count.textContent = `${numbers.length} of ${index.rows.length} samples${searching}`;
    count.dataset.milliseconds = (performance.now() - begun).toFixed(1);
  }
  function refilter() { timer ??= requestAnimationFrame(apply); }
  panel.append(form, make("div", { className: "split" }, make("div", { className: "left" }, count, list.box), view.place));
  apply();
  return (number) => (number === null ? list.choose(0) : list.show(number));
}

function main(index) {
  index.twin = index.runs.length > 1 ? twins(index) : [];
  const names = { summary: "Summary", plots: "Plots", samples: "Samples", configs: index.runs.length > 1 ? "Compare configs" : "Config" };
  const panel = (name) => document.getElementById(`panel-${name}`);
  const tabs = {};
  const shownOnce = {};
  const remember = (number) => history.replaceState(null, "", `#samples/${number}`);
  showSummary(panel("summary"), index);
  showConfigs(panel("configs"), index);
  const redraw = showPlots(panel("plots"), index);

  function open(name, number = null) {
    for (const other of Object.keys(names)) {
      panel(other).hidden = other !== name;
      tabs[other].setAttribute("aria-selected", String(other === name));
      tabs[other].tabIndex = other === name ? 0 : -1;
    }
    if (name === "plots" && !shownOnce.plots) shownOnce.plots = redraw();
    if (name === "samples") {
      const fresh = !shownOnce.samples;
      shownOnce.samples ??= showSamples(panel("samples"), index, remember);
      if (fresh || number !== null) shownOnce.samples(number);
    } else history.replaceState(null, "", `#${name}`);
  }
  const bar = document.getElementById("tabs");
  for (const [name, text] of Object.entries(names)) {
    tabs[name] = make("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => open(name) }, text);
    bar.append(tabs[name]);
  }
  bar.addEventListener("keydown", (event) => {
    const order = Object.keys(names);
    const at = order.findIndex((name) => tabs[name] === document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: order.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const name = order[(next + order.length) % order.length];
    open(name);
    tabs[name].focus();
  });
  document.getElementById("loading").remove();
  const [name, number] = location.hash.slice(1).split("/");
  open(name in names ? name : "summary", number === undefined || !(+number in index.rows) ? null : +number);
}

piece("index").then(main).catch((error) => {
  document.getElementById("loading").textContent = `The report could not be shown: ${error.message}`;
  throw error;
});
