// A list of thousands of rows of which only those in sight exist as elements.
const ROW_HEIGHT = 46;
const SPARE = 6;

class VirtualList {
  // `draw(number)` gives a row's content, `onselect(number)` hears of a choice.
  constructor(draw, onselect) {
    Object.assign(this, { draw, onselect, numbers: [], current: -1 });
    this.spacer = make("div", { className: "spacer" });
    this.box = make(
      "div",
      { className: "list", role: "listbox", tabIndex: 0, id: "list", "aria-label": "Samples" },
      this.spacer,
    );
    this.box.addEventListener("scroll", () => this.render(), { passive: true });
    this.box.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.render()).observe(this.box);
  }

  render() {
    const { scrollTop, clientHeight } = this.box;
    const first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - SPARE);
    const seen = Math.ceil((scrollTop + clientHeight) / ROW_HEIGHT);
    const last = Math.min(this.numbers.length, seen + SPARE);
    this.spacer.style.height = `${this.numbers.length * ROW_HEIGHT}px`;
    const inSight = this.numbers.slice(first, last);
    this.spacer.replaceChildren(...inSight.map((number, i) => this.option(number, first + i)));
    const active = this.current >= first && this.current < last;
    if (active) this.box.setAttribute("aria-activedescendant", `option-${this.current}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  option(number, place) {
    const properties = {
      className: "option",
      role: "option",
      id: `option-${place}`,
      "aria-selected": String(place === this.current),
      "aria-setsize": this.numbers.length,
      "aria-posinset": place + 1,
      onclick: () => this.choose(place),
    };
    const node = make("div", properties, this.draw(number));
    node.style.transform = `translateY(${place * ROW_HEIGHT}px)`;
    return node;
  }

  choose(place) {
    if (!this.numbers.length) return;
    this.current = Math.min(Math.max(place, 0), this.numbers.length - 1);
    const top = this.current * ROW_HEIGHT;
    const bottom = top + ROW_HEIGHT - this.box.clientHeight;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (bottom > this.box.scrollTop) this.box.scrollTop = bottom;
    this.render();
    this.onselect(this.numbers[this.current]);
  }

  press(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 1);
    const places = {
      ArrowDown: this.current + 1,
      ArrowUp: this.current - 1,
      PageDown: this.current + page,
      PageUp: this.current - page,
      Home: 0,
      End: this.numbers.length - 1,
    };
    if (!(event.key in places)) return;
    event.preventDefault();
    this.choose(places[event.key]);
  }

  // Lists other rows; the chosen one stays chosen if it is among them.
  set(numbers) {
    const chosen = this.numbers[this.current];
    this.numbers = numbers;
    this.current = numbers.indexOf(chosen);
    if (this.current < 0) this.box.scrollTop = 0;
    this.render();
  }

  show(number) {
    this.choose(this.numbers.indexOf(number));
  }
}
