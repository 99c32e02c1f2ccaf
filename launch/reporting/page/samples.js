// The samples tab: filters and list on the left, the chosen sample on the right.
function whereOf(index, row) {
  const run = index.runs.length > 1 ? `${index.runs[row.run].name} · ` : "";
  const place = `step ${shown(row.step)} · T ${shown(row.temperature)} · #${shown(row.sample)}`;
  const groups = index.by.map((name) => ` · ${name} ${groupOf(row, name)}`).join("");
  return `${run}${shown(row.task)} · ${row.example} · ${place}${groups}`;
}

function listed(index, number) {
  const row = index.rows[number];
  const verdicts = row.passes.map((pass) => {
    const title = `${pass.cue ?? FIRST}: ${verdictWord(pass.right)}`;
    return make("span", { className: verdictClass(pass.right), title }, mark(pass.right));
  });
  return [
    span("verdicts", verdicts),
    span("title", row.title || row.example),
    span("where", whereOf(index, row)),
    span("entropy", fixed(row.passes[0]?.entropy, 3)),
  ];
}

// For every row the row of the other run on the same sample: at the same place, else at any.
function twins(index) {
  const close = (row) => JSON.stringify([row.task, row.example, row.sample]);
  const exact = (row) => `${close(row)} ${row.step} ${row.temperature}`;
  const maps = [new Map(), new Map()];
  index.rows.forEach((row, number) => {
    for (const key of [exact(row), close(row)])
      if (!maps[row.run].has(key)) maps[row.run].set(key, number);
  });
  const other = (row) => maps[1 - row.run];
  return index.rows.map((row) => other(row).get(exact(row)) ?? other(row).get(close(row)));
}

function showSamples(panel, index, remember) {
  index.twin = index.runs.length > 1 ? twins(index) : [];
  const view = new SampleView(index, tooltip());
  const list = new VirtualList(
    (number) => listed(index, number),
    (number) => {
      view.show(number);
      remember(number);
    },
  );
  const count = make("p", { className: "count", id: "count", role: "status" });
  let waiting = null;
  const [form, state] = filterForm(index, () => {
    waiting ??= requestAnimationFrame(apply);
  });
  function apply() {
    waiting = null;
    const begun = performance.now();
    const numbers = chosenRows(index, state);
    list.set(numbers);
    count.textContent = counted(index, numbers.length, state);
    count.dataset.milliseconds = (performance.now() - begun).toFixed(1);
  }
  panel.append(form, div("split", div("left", count, list.box), view.place));
  apply();
  return (number) => (number === null ? list.choose(0) : list.show(number));
}

function counted(index, found, state) {
  const all = index.rows.length;
  const searching = state.search && haystack.ready < all;
  const rest = searching ? `, searching outputs: ${haystack.ready} of ${all}` : "";
  return `${found} of ${all} samples${rest}`;
}
