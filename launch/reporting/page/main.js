// Tabs: the summary is made at once, the others when they are first opened.
class Tabs {
  constructor(index) {
    const compared = index.runs.length > 1;
    this.index = index;
    this.names = {
      summary: "Summary",
      plots: "Plots",
      samples: "Samples",
      configs: compared ? "Compare configs" : "Config",
    };
    this.opened = {};
    this.buttons = Object.fromEntries(
      Object.entries(this.names).map(([name, text]) => [name, this.button(name, text)]),
    );
    const bar = document.getElementById("tabs");
    bar.append(...Object.values(this.buttons));
    bar.addEventListener("keydown", (event) => this.press(event));
  }

  button(name, text) {
    const id = `tab-${name}`;
    const properties = { type: "button", role: "tab", id, "aria-controls": `panel-${name}` };
    return make("button", { ...properties, onclick: () => this.open(name) }, text);
  }

  open(name, number = null) {
    for (const [other, button] of Object.entries(this.buttons)) {
      document.getElementById(`panel-${other}`).hidden = other !== name;
      button.setAttribute("aria-selected", String(other === name));
      button.tabIndex = other === name ? 0 : -1;
    }
    const panel = document.getElementById(`panel-${name}`);
    const fresh = !(name in this.opened);
    if (fresh) this.opened[name] = this.fill(name, panel) ?? null;
    if (name !== "samples") history.replaceState(null, "", `#${name}`);
    else if (fresh || number !== null) this.opened.samples(number);
  }

  fill(name, panel) {
    const remember = (number) => history.replaceState(null, "", `#samples/${number}`);
    if (name === "summary") return showSummary(panel, this.index);
    if (name === "plots") return showPlots(panel, this.index);
    if (name === "samples") return showSamples(panel, this.index, remember);
    return showConfigs(panel, this.index);
  }

  press(event) {
    const order = Object.keys(this.names);
    const at = order.findIndex((name) => this.buttons[name] === document.activeElement);
    const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: order.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    const name = order[(places[event.key] + order.length) % order.length];
    this.open(name);
    this.buttons[name].focus();
  }
}

function main(index) {
  const tabs = new Tabs(index);
  document.getElementById("loading").remove();
  const [name, number] = location.hash.slice(1).split("/");
  const known = number !== undefined && (+number) in index.rows;
  tabs.open(name in tabs.names ? name : "summary", known ? +number : null);
}

piece("index")
  .then(main)
  .catch((error) => {
    const place = document.getElementById("loading") ?? document.getElementById("main");
    place.textContent = `The report could not be shown: ${error.message}`;
    throw error;
  });
