// The plots tab, drawn with plotly.js in the page's colours.
const PLOT_HEIGHT = 330;
const PLOT_OPTIONS = {
  displaylogo: false,
  responsive: true,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};
const NOTHING = {
  text: "nothing to draw for this choice",
  showarrow: false,
  xref: "paper",
  yref: "paper",
  x: 0.5,
  y: 0.5,
};

const css = () => getComputedStyle(document.documentElement);
const colourNamed = (name) => css().getPropertyValue(name).trim();

function plotLayout() {
  const [ink, soft, accent] = ["--ink", "--soft", "--accent"].map(colourNamed);
  const clear = "rgba(0,0,0,0)";
  return {
    paper_bgcolor: clear,
    plot_bgcolor: clear,
    font: { color: ink, size: 12.5, family: css().fontFamily },
    margin: { l: 56, r: 16, t: 44, b: 44 },
    modebar: { bgcolor: clear, color: soft, activecolor: accent, orientation: "v" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hovermode: "closest",
    hoverlabel: { bgcolor: colourNamed("--raised"), font: { color: ink } },
    height: PLOT_HEIGHT,
  };
}

// Where all points share one place it is a category: a lone number would get an axis around it.
function axisKind(name, traces) {
  const places = new Set(traces.flatMap((trace) => trace.x));
  if (name === "passes" || places.size === 1) return { type: "category" };
  const few = places.size < 12 && name !== "entropies";
  return few ? { type: "linear", tickvals: [...places] } : { type: "linear" };
}

// A curve over a single step or temperature says nothing that the bars do not: it is left out.
function isLone({ curve, traces }) {
  return Boolean(curve) && new Set(traces.flatMap((trace) => trace.x)).size < 2;
}

function drawFigure(place, figure, legend) {
  const { name, title, traces, x, y, share } = figure;
  place.parentElement.hidden = isLone(figure);
  if (isLone(figure)) return;
  place.previousElementSibling.textContent = title;
  const line = colourNamed("--line");
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const empty = traces.length === 0;
  const grouped = { barmode: "group", scattermode: "group", scattergap: 0.93 };
  const layout = {
    ...plotLayout(),
    ...(name === "entropies" ? { barmode: "overlay", bargap: 0 } : grouped),
    annotations: empty ? [NOTHING] : [],
    showlegend: legend,
    xaxis: { ...axis, title: { text: x }, ...axisKind(name, traces) },
    yaxis: { ...axis, tickformat: share ? ".0%" : "", title: { text: y }, rangemode: "tozero" },
  };
  if (empty) layout.yaxis.range = [0, 1];
  Plotly.react(place, traces, layout, PLOT_OPTIONS);
}

function drawFlips(place, index, chosen, ink) {
  const flip = index.charts.flips.find(
    (f) => f.run === chosen.run && f.group === chosen.group && f.label === chosen.cue,
  );
  const sentence = flip ? flipSentence(flip) : "No pass 2 with verdicts for this choice.";
  place.nextElementSibling.textContent = sentence;
  Plotly.react(place, flip ? [flipTrace(flip, ink)] : [], plotLayout(), PLOT_OPTIONS);
}

async function drawPlots(panel, index, chosen) {
  await library("plotly");
  const ink = colourNamed("--ink");
  for (const figure of figures(index, chosen, ink)) {
    const legend = figure.name !== "passes" || index.runs.length > 1;
    drawFigure(panel.querySelector(`#plot-${figure.name}`), figure, legend);
  }
  drawFlips(panel.querySelector("#plot-flips"), index, chosen, ink);
}

// Values of choices are JSON: a step or temperature of null pools all of them.
function plotForm(index, chosen, onchange) {
  const points = index.charts.points;
  const listed = (items) => items.map((item) => [JSON.stringify(item), shown(item)]);
  const values = (name) => [...new Set(points.map((p) => p[name]))].filter((v) => v !== "");
  const numbers = (name) =>
    listed(
      values(name)
        .filter(isKnown)
        .sort((a, b) => a - b),
    );
  const choice = (label, name, options) => {
    const [field] = select(label, options, (value) => {
      chosen[name] = JSON.parse(value);
      onchange();
    });
    return field;
  };
  const cues = index.passes.filter((pass) => pass !== FIRST);
  const runs = index.runs.map((run, i) => [String(i), run.name]);
  return choiceForm(
    "What is plotted",
    choice("Task", "group", listed(values("group"))),
    choice("Step", "step", [["null", "all steps"], ...numbers("step")]),
    choice("Temperature", "temperature", [["null", "all temperatures"], ...numbers("temperature")]),
    choice("Histogram of", "pass", listed(index.passes)),
    cues.length ? choice("Flips under", "cue", listed(cues)) : null,
    runs.length > 1 ? choice("Flips of", "run", runs) : null,
  );
}

function showPlots(panel, index) {
  const cue = index.passes.find((pass) => pass !== FIRST);
  const group = index.charts.points[0]?.group;
  const chosen = { group, step: null, temperature: null, pass: FIRST, cue, run: 0 };
  const redraw = () => drawPlots(panel, index, chosen);
  const figure = (name, title) =>
    make(
      "figure",
      {},
      make("figcaption", {}, title),
      make("div", { id: `plot-${name}`, className: "plot" }),
    );
  const flips = figure("flips", "Flips between pass 1 and pass 2");
  flips.append(about());
  const all = figures(index, chosen, "").map(({ name, title }) => figure(name, title));
  panel.append(
    plotForm(index, chosen, redraw),
    about("Error bars are 95 % intervals; samples of one example count as one cluster."),
    div("figures", all, flips),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
}
