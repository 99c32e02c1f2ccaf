// The configs tab: every key of the run, or of both runs with what differs first.
function showConfigs(panel, index) {
  const single = index.runs.length === 1;
  const said = (values) => (values.length ? values.map(shown).join(" | ") : "not there");
  const differing = index.configs.filter((item) => !item.same);
  const draw = (all) => {
    const items = single ? index.configs : all ? index.configs : differing;
    const columns = single ? ["key", "value"] : ["key", ...index.runs.map((run) => run.name), ""];
    const rows = items.map((item) => (single ? [item.key, said(item.a)] : [item.key, said(item.a), said(item.b), item.same ? "same" : "differs"]));
    return table(columns, rows, single ? "Config of the run" : "Configs of both runs");
  };
  const place = make("div", {}, draw(false));
  panel.append(make("h2", {}, single ? "Config" : "Difference of the configs"));
  if (!index.configs.length) panel.append(make("p", { className: "note" }, "None of the folders holds a run.json."));
  if (!single) {
    panel.append(make("p", { className: "about" }, `${differing.length} of ${index.configs.length} keys differ.`),
      make("label", { className: "check" }, make("input", { type: "checkbox", id: "all-keys", onchange: (event) => place.replaceChildren(draw(event.target.checked)) }), "show keys that are the same"));
  }
  panel.append(place);
}
