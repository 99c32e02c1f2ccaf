// A list of thousands of rows of which only those in sight exist as elements.
const ROW_HEIGHT = 46;
const SPARE = 6;

function virtualList(draw, onselect) {
  const spacer = make("div", { className: "spacer" });
  const box = make("div", { className: "list", role: "listbox", tabIndex: 0, id: "list", "aria-label": "Samples" }, spacer);
  let numbers = [];
  let current = -1;

  function render() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - SPARE);
    const last = Math.min(numbers.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW_HEIGHT) + SPARE);
    spacer.style.height = `${numbers.length * ROW_HEIGHT}px`;
    spacer.replaceChildren(...numbers.slice(first, last).map((number, i) => option(number, first + i)));
    const inSight = current >= first && current < last;
    if (inSight) box.setAttribute("aria-activedescendant", `option-${current}`);
    else box.removeAttribute("aria-activedescendant");
  }

  function option(number, place) {
    const node = make("div", { className: "option", role: "option", id: `option-${place}`, "aria-selected": String(place === current),
      "aria-setsize": numbers.length, "aria-posinset": place + 1, onclick: () => choose(place) }, draw(number));
    node.style.transform = `translateY(${place * ROW_HEIGHT}px)`;
    return node;
  }

  function choose(place) {
    if (!numbers.length) return;
    current = Math.min(Math.max(place, 0), numbers.length - 1);
    const top = current * ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_HEIGHT - box.clientHeight;
    render();
    onselect(numbers[current]);
  }

  box.addEventListener("scroll", render, { passive: true });
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / ROW_HEIGHT) - 1);
    const places = { ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + page, PageUp: current - page, Home: 0, End: numbers.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    choose(places[event.key]);
  });
  new ResizeObserver(render).observe(box);

  return {
    box,
    choose,
    set(wanted) {
      const kept = numbers[current];
      numbers = wanted;
      current = numbers.indexOf(kept);
      box.scrollTop = Math.max(0, current) * ROW_HEIGHT > box.scrollTop + box.clientHeight ? current * ROW_HEIGHT : current < 0 ? 0 : box.scrollTop;
      render();
    },
    show(number) { choose(numbers.indexOf(number)); },
  };
}
