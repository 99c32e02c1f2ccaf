// What is plotted: traces and axes of every figure, from the report's points.
const COLOURS = "#3b7dd8 #d9772b #2f9e6e #b256c9 #c9a227 #d1495b #5f7d8c #7a5cff".split(" ");
const DASHES = ["solid", "dash"];
const RIGHT = "#2f9e6e";
const WRONG = "#d1495b";
const VERDICTS = {
  true: ["right", RIGHT],
  false: ["wrong", WRONG],
  null: ["no verdict", "#5f7d8c"],
};
// Plotly reads a little HTML in its labels; cues and runs are plain text.
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");
const colourOf = (index, pass) => COLOURS[index.passes.indexOf(pass) % COLOURS.length];
const sideName = (index, run) => (index.runs.length > 1 ? ` (${index.runs[run].name})` : "");
const hatch = (run) => ({ shape: run ? "/" : "" });
// 95 % intervals: those that the points have, else from their standard errors.
const bound = (point, name, end, sign) =>
  isKnown(point[`${name}_${end}`])
    ? sign * (point[`${name}_${end}`] - point[name])
    : 1.96 * (point[`${name}_se`] ?? 0);
const errorBars = (points, name, colour) => ({
  type: "data",
  symmetric: false,
  array: points.map((point) => bound(point, name, "high", 1)),
  arrayminus: points.map((point) => bound(point, name, "low", -1)),
  thickness: 1.2,
  width: 4,
  color: colour,
});

function curves(index, points, x, y) {
  const pairs = [...index.runs.keys()].flatMap((run) => index.passes.map((pass) => [run, pass]));
  return pairs.flatMap(([run, pass]) => {
    const here = points
      .filter((p) => p.run === run && p.label === pass && isKnown(p[y]) && isKnown(p[x]))
      .sort((a, b) => a[x] - b[x]);
    if (!here.length) return [];
    const colour = colourOf(index, pass);
    return {
      type: "scatter",
      mode: "lines+markers",
      name: safe(pass + sideName(index, run)),
      offsetgroup: `${run} ${pass}`,
      x: here.map((p) => p[x]),
      y: here.map((p) => p[y]),
      customdata: here.map((p) => p.rows),
      error_y: errorBars(here, y, colour),
      line: { color: colour, dash: DASHES[run] },
      marker: { size: 7 },
      hovertemplate: `${y === "accuracy" ? "%{y:.1%}" : "%{y:.3f}"} at ${x} %{x}<br>%{customdata} rows<extra>%{fullData.name}</extra>`,
    };
  });
}

function bars(index, points, ink) {
  return [...index.runs.keys()].flatMap((run) => {
    const all = index.passes.map((pass) => points.find((p) => p.run === run && p.label === pass));
    const here = all.filter((p) => p && isKnown(p.accuracy));
    if (!here.length) return [];
    const colours = here.map((p) => colourOf(index, p.label));
    return {
      type: "bar",
      name: safe(index.runs[run].name),
      x: here.map((p) => safe(p.label)),
      y: here.map((p) => p.accuracy),
      customdata: here.map((p) => p.rows),
      error_y: errorBars(here, "accuracy", ink),
      marker: { color: colours, opacity: run ? 0.55 : 0.9, pattern: hatch(run) },
      hovertemplate: "%{x}: %{y:.1%} of %{customdata} rows<extra>%{fullData.name}</extra>",
    };
  });
}

function histograms(index, chosen) {
  return index.charts.histograms
    .filter((h) => h.group === chosen.group && h.label === chosen.pass)
    .map((h) => {
      const [name, colour] = VERDICTS[h.right];
      return {
        type: "bar",
        name: safe(name + sideName(index, h.run)),
        x: h.counts.map((_, i) => (i + 0.5) * h.width),
        y: h.counts,
        width: h.width,
        marker: { color: colour, opacity: h.run ? 0.4 : 0.75, pattern: hatch(h.run) },
        hovertemplate: "%{y} rows near %{x:.3f} nats<extra>%{fullData.name}</extra>",
      };
    });
}

function flipTrace(flip, ink) {
  const links = [
    [0, 2, flip.right_right, "rgba(47,158,110,.45)"],
    [0, 3, flip.right_wrong, "rgba(209,73,91,.75)"],
    [1, 2, flip.wrong_right, "rgba(59,125,216,.75)"],
    [1, 3, flip.wrong_wrong, "rgba(120,130,140,.4)"],
  ].filter(([, , rows]) => rows > 0);
  const [source, target, value, color] = [0, 1, 2, 3].map((i) => links.map((link) => link[i]));
  const label = ["right before", "wrong before", "right after", "wrong after"];
  return {
    type: "sankey",
    arrangement: "fixed",
    node: { label, color: [RIGHT, WRONG, RIGHT, WRONG], pad: 24, thickness: 16 },
    link: { source, target, value, color },
    textfont: { color: ink },
  };
}

function flipSentence(flip) {
  const counts = [
    `${flip.wrong_right} wrong to right`,
    `${flip.right_wrong} right to wrong`,
    `${flip.right_right} stayed right`,
    `${flip.wrong_wrong} stayed wrong`,
  ];
  if (!isKnown(flip.p)) return counts.join(", ");
  return `${counts.join(", ")}; p = ${flip.p} (exact, sign flips by example)`;
}

// A plot runs over what varies; of the rest it shows the chosen value, or the pooled points.
function isPlotted(point, name, varies, chosen) {
  const at = point.place.includes(name);
  if (varies) return at;
  return chosen[name] === null ? !at : at && point[name] === chosen[name];
}

const AXES = {
  step: "training step",
  temperature: "temperature",
  accuracy: "accuracy",
  entropy: "mean entropy (nats)",
};

// Every figure but the flips: name, title, traces, titles of its axes, whether y is a share.
function figures(index, chosen, ink) {
  const all = index.charts.points.filter((p) => p.group === chosen.group);
  const over = (name) =>
    all.filter((p) =>
      ["step", "temperature"].every((place) => isPlotted(p, place, place === name, chosen)),
    );
  const curve = (y, x) => ({
    name: `${y}-${x}`,
    title: `${y === "entropy" ? "Entropy" : "Accuracy"} against ${AXES[x]}`,
    traces: curves(index, over(x), x, y),
    x: AXES[x],
    y: AXES[y],
    share: y === "accuracy",
    curve: true,
  });
  const passes = { name: "passes", title: "Pass 1 against pass 2 by cue", x: "", y: "accuracy" };
  const entropies = { name: "entropies", title: `Entropy of rows, ${chosen.pass}`, y: "rows" };
  return [
    curve("accuracy", "step"),
    curve("accuracy", "temperature"),
    curve("entropy", "step"),
    curve("entropy", "temperature"),
    { ...passes, traces: bars(index, over(null), ink), share: true },
    { ...entropies, traces: histograms(index, chosen), x: "mean entropy of the row (nats)" },
  ];
}
