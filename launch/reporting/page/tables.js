// The summary tab: what was read, then every table of numbers.
const RUN_COLUMNS = ["run", "rows", "rows in the samples tab", "read from"];

function showSummary(panel, index) {
  const runs = index.runs.map((run) => [run.name, run.rows, run.shown, run.roots.join(", ")]);
  panel.append(make("h2", {}, "Runs"), table(RUN_COLUMNS, runs, "Runs in this report"));
  for (const run of index.runs) panel.append(...provenance(run, index.runs.length > 1));
  for (const note of index.notes) panel.append(make("p", { className: "note" }, note));
  for (const found of index.tables) {
    panel.append(make("h2", {}, found.title), about(found.about));
    panel.append(table(found.columns, found.rows, found.title, found.numbers));
  }
  const notices = index.licences.flatMap(({ name, text }) => [
    make("h3", {}, name),
    make("pre", {}, text),
  ]);
  const licences = details("Libraries in this file and their licences", ...notices);
  licences.className = "licences";
  panel.append(licences);
}

// Where rows come from: facts that all folders share, then a table of those that differ.
function provenance({ name, provenance: { shared, columns, rows } }, named) {
  const items = shared.map(([fact, value]) =>
    make("div", {}, make("dt", {}, fact), make("dd", {}, value)),
  );
  const title = named ? `Where the rows of ${name} come from` : "Where the rows come from";
  return [
    make("h2", {}, title),
    make("dl", { className: "facts provenance" }, items),
    columns.length ? table(columns, rows, title) : null,
  ].filter(Boolean);
}

// The configs tab: every key of the run, or what differs between two.
function showConfigs(panel, index) {
  const single = index.runs.length === 1;
  panel.append(make("h2", {}, single ? "Config" : "Difference of the configs"));
  if (!index.configs.length)
    panel.append(make("p", { className: "note" }, "None of the folders holds a run.json."));
  const place = make("div", {}, configTable(index, single));
  if (!single) {
    const differing = index.configs.filter((item) => !item.same).length;
    const redraw = (all) => place.replaceChildren(configTable(index, all));
    panel.append(
      about(`${differing} of ${index.configs.length} keys differ.`),
      tick("all-keys", "show keys that are the same", false, redraw),
    );
  }
  panel.append(place);
}

function configTable(index, all) {
  const names = index.runs.map((run) => run.name);
  const said = (values) => (values.length ? values.map(shown).join(" | ") : "not there");
  const items = index.configs.filter((item) => all || !item.same);
  if (names.length === 1) {
    const rows = items.map((item) => [item.key, said(item.a)]);
    return table(["key", "value"], rows, "Config of the run");
  }
  const compared = (item) => (item.same ? "same" : "differs");
  const rows = items.map((item) => [item.key, said(item.a), said(item.b), compared(item)]);
  return table(["key", ...names, ""], rows, "Configs of both runs");
}
