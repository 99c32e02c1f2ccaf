// The summary tab: what was read, then every table of numbers.
function showSummary(panel, index) {
  panel.append(make("h2", {}, "Runs"));
  panel.append(table(["run", "rows", "rows in the browser", "read from"],
    index.runs.map((run) => [run.name, run.rows, run.shown, run.roots.join(", ")]), "Runs in this report"));
  for (const note of index.notes) panel.append(make("p", { className: "note" }, note));
  for (const found of index.tables) {
    panel.append(make("h2", {}, found.title));
    if (found.about) panel.append(make("p", { className: "about" }, found.about));
    panel.append(table(found.columns, found.rows, found.title));
  }
  panel.append(make("details", { className: "licences" },
    make("summary", {}, "Libraries in this file and their licences"),
    index.licences.map(({ name, text }) => [make("h3", {}, name), make("pre", {}, text)])));
}
