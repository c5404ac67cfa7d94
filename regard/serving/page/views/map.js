// Own texts as a map: a point for each, its label as colour and shape, the neighbours of one.

import { button, choice, field, numberInput, question, submit, textArea } from "../controls.js";
import { clipped, h, isolated, put, svg } from "../dom.js";
import { Parameters } from "../parameters.js";

export const title = "Map";
export const route = null;
export const about = "Your texts as points, by the vectors of a model.";
const [WIDEST, NARROWEST, SHARE, MARGIN] = [720, 300, 0.72, 18]; // pixels; of the width: the height
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
// The shapes of labels, around (0, 0); with eight colours (Okabe and Ito 2008) there are 56 of them.
const SHAPES = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
  "M-3.6,-3.6h7.2v7.2h-7.2Z",
  "M0,-4.8L4.4,3.4H-4.4Z",
  "M0,-5L5,0L0,5L-5,0Z",
  "M0,4.8L4.4,-3.4H-4.4Z",
  "M-1.5,-4.8h3v3.3h3.3v3h-3.3v3.3h-3v-3.3h-3.3v-3h3.3Z",
  "M0,-5L1.5,-1.6L5,-1.6L2.2,0.7L3.2,4.3L0,2.2L-3.2,4.3L-2.2,0.7L-5,-1.6L-1.5,-1.6Z",
];
const COLORS = 8;

export const there = async (api) => (await api.ask("ui/maps", {})).models.length > 0;

export async function preview(box, model, api) {
  const map = await api.ask("ui/map", {});
  put(box, new MapView(map, new Parameters("map", ""), api, box.clientWidth).drawn);
}

export async function render(root, parameters, api) {
  const { models, texts } = await api.ask("ui/maps", {});
  if (!models.length) {
    const missing = texts ? "No model on this server gives vectors of texts." : "There are no texts to show. The command names them: ";
    root.append(h("p", { class: "empty" }, missing, !texts && h("code", {}, "regard serve --ui MODEL --texts FILE --labels COLUMN")));
    return;
  }
  const model = models.includes(parameters.text("model")) ? parameters.text("model") : models[0];
  const map = await api.ask("ui/map", { model });
  const view = new MapView(map, parameters, api, root.clientWidth);
  const query = parameters.text("query");
  const count = parameters.number("count", 8);
  const form = question(
    (values) => parameters.go({ ...values, point: values.query ? null : parameters.text("point") }),
    ...[field("Model", choice("model", models, model)), field("Add a text to the map", textArea("query", query)), submit("Show")],
    field("Neighbours", numberInput("count", count, { min: 1, max: 50 })),
  );
  root.append(form, view.element);
  if (query) await view.place(query);
  else if (parameters.number("point") !== null) await view.choose(parameters.number("point"));
}

class MapView {
  constructor(map, parameters, api, room) {
    Object.assign(this, { map, parameters, api, chosen: null, hidden: new Set(numbersOf(parameters.text("hidden"))) });
    this.width = Math.min(WIDEST, Math.max(NARROWEST, room));
    this.height = Math.round(SHARE * this.width);
    this.where = scale(map.points, this.width, this.height);
    this.at = map.points.map(this.where);
    this.marks = map.points.map((_, index) => this.#mark(index));
    this.#hide();
    this.extra = svg("g", { class: "extra" });
    const shares = map.shares.map((share) => `${(100 * share).toFixed(0)} %`).join(" and ");
    const about = `${map.points.length.toLocaleString("en")} texts by the two principal components of their vectors, which explain ${shares} of the variance.`;
    const name = `Map of ${map.points.length} texts. Arrow keys go from text to text.`;
    this.drawn = svg("svg", { viewBox: `0 0 ${this.width} ${this.height}`, class: "map", role: "img", tabindex: "0", "aria-label": name }, this.marks, this.extra);
    this.drawn.addEventListener("click", (event) => this.#clicked(event));
    this.drawn.addEventListener("keydown", (event) => this.#moved(event));
    this.side = h("section", { "aria-live": "polite" }, h("p", { class: "note" }, "Click a point, or move with the arrow keys, to read its text and its nearest neighbours."));
    this.element = h("div", {}, h("p", { class: "note" }, about), this.#legend(), h("div", { class: "map-and-side" }, this.drawn, this.side));
  }

  #mark(index) {
    const label = this.map.label_of[index] ?? 0;
    const [x, y] = this.at[index];
    const class_ = `point color-${label % COLORS}`;
    const text = clipped(this.map.texts[index], 120);
    return svg("path", { d: SHAPES[label % SHAPES.length], transform: `translate(${x} ${y})`, class: class_, "data-index": index }, svg("title", {}, this.#named(index, text)));
  }

  #named(index, text) {
    const label = this.map.labels[this.map.label_of[index]];
    return label ? `${isolated(label)}: ${text}` : text;
  }

  #legend() {
    const items = this.map.labels.map((label, index) => {
      const sign = svg("svg", { viewBox: "-6 -6 12 12", class: "sign", "aria-hidden": "true" }, svg("path", { d: SHAPES[index % SHAPES.length], class: `point color-${index % COLORS}` }));
      const count = this.map.label_of.filter((one) => one === index).length;
      const pressed = (event) => this.#toggle(index, event.currentTarget);
      return button(h("span", {}, sign, " ", h("bdi", {}, clipped(label, 40) || "no label"), ` (${count})`), pressed, { class: "label", "aria-pressed": String(!this.hidden.has(index)) });
    });
    return items.length ? h("div", { class: "legend", role: "group", "aria-label": "Labels that are shown" }, items) : null;
  }

  #toggle(label, pressed) {
    const shown = this.hidden.delete(label);
    if (!shown) this.hidden.add(label);
    pressed.setAttribute("aria-pressed", String(shown));
    this.parameters.set({ hidden: [...this.hidden].join(",") });
    this.#hide();
  }

  #hide() {
    this.marks.forEach((mark, index) => mark.classList.toggle("off", this.hidden.has(this.map.label_of[index])));
  }

  #seen = (index) => !this.hidden.has(this.map.label_of[index]);

  // The point nearest to the click, so that a finger need not hit it.
  #clicked(event) {
    const box = this.drawn.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.width;
    const y = ((event.clientY - box.top) / box.height) * this.height;
    const nearest = this.#best(([px, py]) => (px - x) ** 2 + (py - y) ** 2);
    if (nearest !== null) this.choose(nearest).catch((error) => this.#failed(error));
  }

  #moved(event) {
    const step = KEYS[event.key];
    if (!step) return;
    event.preventDefault();
    const [x, y] = this.chosen === null ? [this.width / 2, this.height / 2] : this.at[this.chosen];
    const next = this.#best(([px, py], index) => {
      const along = (px - x) * step[0] + (py - y) * step[1];
      const across = Math.abs((px - x) * step[1] + (py - y) * step[0]);
      return index === this.chosen || along <= 0 || across > 2 * along ? Infinity : along + 2 * across;
    });
    if (next !== null) this.choose(next).catch((error) => this.#failed(error));
  }

  // The visible point with the smallest cost; null where all are infinite.
  #best(cost) {
    let [best, least] = [null, Infinity];
    this.at.forEach((place, index) => {
      const found = this.#seen(index) ? cost(place, index) : Infinity;
      if (found < least) [best, least] = [index, found];
    });
    return best;
  }

  #failed(error) {
    if (error.name !== "AbortError") put(this.side, h("p", { class: "error", role: "alert" }, error.message));
  }

  async choose(index) {
    this.chosen = index;
    this.parameters.set({ point: index, query: null });
    const count = this.parameters.number("count", 8);
    const { neighbours } = await this.api.ask("ui/neighbours", { model: this.map.model, text: index, count });
    if (this.chosen === index) this.#draw(this.#named(index, this.map.texts[index]), this.at[index], neighbours);
  }

  async place(text) {
    const { result } = await this.api.ask("embed", { model: this.map.model, texts: text, too_long: "truncate" });
    const count = this.parameters.number("count", 8);
    const { place, neighbours } = await this.api.ask("ui/neighbours", { model: this.map.model, vector: result.vector, count });
    this.#draw(text, this.where(place), neighbours);
  }

  #link(index) {
    const pressed = (event) => {
      event.preventDefault();
      this.choose(index).catch((error) => this.#failed(error));
    };
    const text = this.#named(index, clipped(this.map.texts[index], 160));
    return h("a", { href: this.parameters.address({ point: index, query: null }), onclick: pressed }, text);
  }

  #draw(text, place, neighbours) {
    const near = new Set(neighbours.map((one) => one.text));
    this.marks.forEach((mark, index) => mark.classList.toggle("near", near.has(index)));
    const lines = neighbours.map(({ text: index }) => svg("line", { x1: place[0], y1: place[1], x2: this.at[index][0], y2: this.at[index][1], class: "to-near" }));
    put(this.extra, lines, svg("circle", { cx: place[0], cy: place[1], r: 8 }));
    const rows = neighbours.map(({ text: index, cosine }) =>
      h("li", {}, this.#link(index), h("span", { class: "figure" }, ` ${cosine.toFixed(3)}`)),
    );
    put(this.side, h("h2", {}, "Chosen text"), h("p", { class: "chosen-text" }, text), h("h3", {}, "Nearest texts, by cosine similarity"), h("ol", { class: "neighbours" }, rows));
  }
}

// "0,3" -> the numbers of the labels that are not shown.
const numbersOf = (text) => text.split(",").filter((one) => /^\d+$/.test(one)).map(Number);

// The function from numbers of the map to the drawing, in which all points have room.
function scale(points, width, height) {
  const bounds = [0, 1].map((axis) => points.map((point) => point[axis])).map((values) => [Math.min(...values), Math.max(...values)]);
  const spans = bounds.map(([low, high]) => high - low);
  const room = Math.min((width - 2 * MARGIN) / spans[0], (height - 2 * MARGIN) / spans[1]);
  const unit = room < 1e6 ? room : 1; // one text, or equal ones
  const [x0, y0] = bounds.map(([low, high]) => (low + high) / 2);
  const inside = (value, most) => Math.min(most - MARGIN / 2, Math.max(MARGIN / 2, value));
  return ([x, y]) => [inside(width / 2 + (x - x0) * unit, width), inside(height / 2 - (y - y0) * unit, height)].map((one) => Number(one.toFixed(2)));
}
