// The plots tab, drawn with plotly.js. Bars of error are 95 % intervals, clustered by example.
const COLOURS = ["#3b7dd8", "#d9772b", "#2f9e6e", "#b256c9", "#c9a227", "#d1495b", "#5f7d8c", "#7a5cff"];
const DASHES = ["solid", "dash"];
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");
const colourOf = (index, pass) => COLOURS[index.passes.indexOf(pass) % COLOURS.length];
const sideName = (index, run) => (index.runs.length > 1 ? ` (${index.runs[run].name})` : "");

function look() {
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
  return {
    axis,
    layout: {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--ink"), size: 12.5, family: css.fontFamily },
      margin: { l: 56, r: 16, t: 44, b: 44 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent"), orientation: "v" }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, hovermode: "closest", height: 330,
      hoverlabel: { bgcolor: colour("--raised"), font: { color: colour("--ink") } },
    },
    colour,
  };
}

function curves(index, points, x, y) {
  const found = [];
  for (const run of index.runs.keys()) {
    for (const pass of index.passes) {
      const here = points.filter((p) => p.run === run && p.label === pass && p[y] !== null).sort((a, b) => a[x] - b[x]);
      if (!here.length) continue;
      found.push({
        type: "scatter", mode: "lines+markers", name: safe(pass + sideName(index, run)), offsetgroup: `${run} ${pass}`,
        x: here.map((p) => p[x]), y: here.map((p) => p[y]), customdata: here.map((p) => p.rows),
        error_y: { type: "data", array: here.map((p) => 1.96 * (p[`${y}_se`] ?? 0)), thickness: 1.2, width: 4 },
        line: { color: colourOf(index, pass), dash: DASHES[run] }, marker: { size: 7 },
        hovertemplate: `%{y:.4f} at ${x} %{x}<br>%{customdata} rows<extra>%{fullData.name}</extra>`,
      });
    }
  }
  return found;
}

function bars(index, points) {
  const drawn = [...index.runs.keys()].map((run) => {
    const here = index.passes.map((pass) => points.find((p) => p.run === run && p.label === pass)).filter((p) => p && p.accuracy !== null);
    return {
      type: "bar", name: safe(index.runs[run].name), x: here.map((p) => safe(p.label)), y: here.map((p) => p.accuracy),
      error_y: { type: "data", array: here.map((p) => 1.96 * (p.accuracy_se ?? 0)), thickness: 1.4, color: look().colour("--ink") },
      marker: { color: here.map((p) => colourOf(index, p.label)), opacity: run ? 0.55 : 0.9, pattern: { shape: run ? "/" : "" } },
      customdata: here.map((p) => p.rows), hovertemplate: "%{x}: %{y:.2%} of %{customdata} rows<extra>%{fullData.name}</extra>",
    };
  });
  return drawn.filter((trace) => trace.x.length);
}

function histograms(index, chosen) {
  const styles = { true: ["right", "#2f9e6e"], false: ["wrong", "#d1495b"], null: ["no verdict", "#5f7d8c"] };
  return index.charts.histograms.filter((h) => h.group === chosen.group && h.label === chosen.pass).map((h) => ({
    type: "bar", name: styles[h.right][0] + sideName(index, h.run), x: h.counts.map((_, i) => (i + 0.5) * h.width), y: h.counts,
    width: h.width, marker: { color: styles[h.right][1], opacity: h.run ? 0.4 : 0.75, pattern: { shape: h.run ? "/" : "" } },
    hovertemplate: "%{y} rows near %{x:.2f} nats<extra>%{fullData.name}</extra>",
  }));
}

function flipDiagram(index, chosen) {
  const flip = index.charts.flips.find((f) => f.run === chosen.run && f.group === chosen.group && f.label === chosen.cue);
  if (!flip) return null;
  const links = [[0, 2, flip.right_right, "rgba(47,158,110,.45)"], [0, 3, flip.right_wrong, "rgba(209,73,91,.75)"],
    [1, 2, flip.wrong_right, "rgba(59,125,216,.75)"], [1, 3, flip.wrong_wrong, "rgba(120,130,140,.4)"]].filter((l) => l[2] > 0);
  const trace = {
    type: "sankey", arrangement: "fixed",
    node: { label: ["right before", "wrong before", "right after", "wrong after"], color: ["#2f9e6e", "#d1495b", "#2f9e6e", "#d1495b"], pad: 24, thickness: 16 },
    link: { source: links.map((l) => l[0]), target: links.map((l) => l[1]), value: links.map((l) => l[2]), color: links.map((l) => l[3]) },
  };
  const p = flip.p_exact === null ? "" : `; McNemar's exact p = ${flip.p_exact < 1e-4 ? flip.p_exact.toExponential(1) : flip.p_exact.toFixed(4)}`;
  return [trace, `${flip.wrong_right} wrong to right, ${flip.right_wrong} right to wrong, ${flip.right_right} stayed right, ${flip.wrong_wrong} stayed wrong${p}`];
}

// A plot runs over what varies; of the rest it shows the chosen value, or the pooled points.
function kept(point, name, varies, chosen) {
  const at = point.place.includes(name);
  return varies ? at : chosen[name] === null ? !at : at && point[name] === chosen[name];
}

function figures(index, chosen) {
  const all = index.charts.points.filter((p) => p.group === chosen.group);
  const at = (step, temperature) => all.filter((p) => kept(p, "step", step, chosen) && kept(p, "temperature", temperature, chosen));
  return [
    ["accuracy-step", "Accuracy against training step", curves(index, at(true, false), "step", "accuracy"), "step", "accuracy", ".0%"],
    ["accuracy-temperature", "Accuracy against temperature", curves(index, at(false, true), "temperature", "accuracy"), "temperature", "accuracy", ".0%"],
    ["entropy-step", "Entropy against training step", curves(index, at(true, false), "step", "entropy"), "step", "mean entropy (nats)", ""],
    ["entropy-temperature", "Entropy against temperature", curves(index, at(false, true), "temperature", "entropy"), "temperature", "mean entropy (nats)", ""],
    ["passes", "Pass 1 against pass 2 by cue", bars(index, at(false, false)), "", "accuracy", ".0%"],
    ["entropies", `Entropy of rows, ${chosen.pass}`, histograms(index, chosen), "mean entropy of the row (nats)", "rows", ""],
  ];
}

// Where all points share one place, a category is drawn: a lone number would get an axis made up around it.
function kind(name, traces) {
  const places = new Set(traces.flatMap((trace) => trace.x));
  if (name === "passes" || places.size === 1) return { type: "category" };
  return places.size < 12 && name !== "entropies" ? { type: "linear", tickvals: [...places] } : { type: "linear" };
}

async function drawPlots(panel, index, chosen) {
  await library("plotly");
  const { axis, layout, colour } = look();
  const options = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], displayModeBar: "hover" };
  const single = index.runs.length === 1;
  for (const [name, title, traces, x, y, format] of figures(index, chosen)) {
    const place = panel.querySelector(`#plot-${name}`);
    place.previousElementSibling.textContent = title;
    const more = name === "entropies" ? { barmode: "overlay", bargap: 0 } : { barmode: "group", scattermode: "group", scattergap: 0.93 };
    const values = format ? { rangemode: "tozero", tickformat: format } : { rangemode: "tozero" };
    const nothing = traces.length ? [] : [{ text: "nothing to draw for this choice", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }];
    const whole = traces.length ? {} : { range: [0, 1] };
    Plotly.react(place, traces, { ...layout, ...more, annotations: nothing, showlegend: name !== "passes" || !single,
      xaxis: { ...axis, title: { text: x }, ...kind(name, traces) }, yaxis: { ...axis, ...values, ...whole, title: { text: y } } }, options);
  }
  const found = flipDiagram(index, chosen);
  const place = panel.querySelector("#plot-flips");
  place.nextElementSibling.textContent = found ? found[1] : "No pass 2 with verdicts for this choice.";
  Plotly.react(place, found ? [{ ...found[0], textfont: { color: colour("--ink") } }] : [], { ...layout, height: 330 }, options);
}

function showPlots(panel, index) {
  const groups = [...new Set(index.charts.points.map((p) => p.group))];
  const cues = index.passes.filter((pass) => pass !== "pass 1");
  const chosen = { group: groups[0], step: null, temperature: null, pass: "pass 1", cue: cues[0], run: 0 };
  const redraw = () => drawPlots(panel, index, chosen);
  const values = (name) => [...new Set(index.charts.points.map((p) => p[name]))].filter((v) => v !== null).sort((a, b) => a - b);
  const choice = (label, name, options) => select(label, options, (value) => { chosen[name] = JSON.parse(value); redraw(); })[0];
  const listed = (items) => items.map((item) => [JSON.stringify(item), shown(item)]);
  const form = make("form", { className: "choices", "aria-label": "What is plotted", onsubmit: (event) => event.preventDefault() },
    choice("Task", "group", listed(groups)),
    choice("Step", "step", [["null", "all steps"], ...listed(values("step"))]),
    choice("Temperature", "temperature", [["null", "all temperatures"], ...listed(values("temperature"))]),
    choice("Histogram of", "pass", listed(index.passes)),
    cues.length ? choice("Flips under", "cue", listed(cues)) : null,
    index.runs.length > 1 ? choice("Flips of", "run", index.runs.map((run, i) => [String(i), run.name])) : null);
  const figure = (name, title) => make("figure", {}, make("figcaption", {}, title), make("div", { id: `plot-${name}`, className: "plot" }));
  const flips = figure("flips", "Flips between pass 1 and pass 2");
  flips.append(make("p", { className: "about" }));
  panel.append(form, make("p", { className: "about" }, "Error bars are 95 % intervals; samples of one example count as one cluster."),
    make("div", { className: "figures" }, figures(index, chosen).map(([name, title]) => figure(name, title)), flips));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  return redraw;
}
