// Attention of every head as a grid of small maps, one head chosen large, one token followed.

import { latest, OVERTAKEN } from "../api.js";
import { button, choice, chosenModel, exampleOf, field, question, submit, textArea, unitChoice } from "../controls.js";
import { clipped, h, isolated, probability, put, shown, svg } from "../dom.js";
import { headGrid, kindName, kindsOf } from "../heads.js";
import { drawMatrix, ramp, roots } from "../heat.js";
import { Parameters } from "../parameters.js";

export const title = "Attention";
export const route = "/ui/attention";
export const about = "What each token attends to, in every head of every layer.";
const ROOM = 640; // pixels of the larger side of a map
const LABELLED = 60; // tokens of a map that has its tokens beside it
const DARKEST = 55; // percent of the colour behind a token, so that the token can be read
const WITH_LINES = 60; // tokens of a text that has lines between them

/** All heads of a model, or the map of the only one, with its words. */
export async function preview(box, model, api) {
  const asked = await exampleOf(api, model);
  const { result } = await api.ask("ui/attention", asked);
  const kind = mainKind(result);
  const layers = result.layers.filter((one) => one.kind === kind);
  if (layers.length * layers[0].heads.length > 2) return put(box, smallGrid(layers));
  const one = (await api.ask("ui/head", { ...asked, kind, layer: layers.at(-1).layer })).result;
  put(box, map({ matrix: roots(one.roots), ...one }, "Attention", true, () => {}, box.clientHeight - 60));
}

/** The grid of heads of a preview. */
export function smallGrid(layers, pressed = () => false) {
  return headGrid(layers, "Heads", true, pressed, () => {});
}

/** The kind of attention that is shown first. */
export function mainKind(result) {
  const kinds = kindsOf(result);
  return kinds.includes("cross") ? "cross" : kinds[0];
}

export async function render(root, parameters, api) {
  const model = await chosenModel(root, parameters, api, route);
  if (!model) return;
  const asking = form(parameters, model);
  root.append(asking);
  const asked = { ...readBy(model), unit: parameters.text("unit", "words") };
  const { result } = await api.ask("ui/attention", asked);
  performance.mark("attention-received");
  const kinds = kindsOf(result);
  const kind = kinds.includes(parameters.text("kind")) ? parameters.text("kind") : mainKind(result);
  const layers = result.layers.filter((one) => one.kind === kind);
  if (result.answer) root.append(h("p", {}, "The answer: ", h("b", {}, result.answer)));
  const other = { layer: null, head: null, token: null };
  const kindChoice = choice("kind", kinds.map((one) => [one, kindName(one)]), kind, (value) => parameters.go({ kind: value, ...other }));
  const relative = parameters.text("scale", "each") === "each";
  const scales = [["each", "the largest weight of each map"], ["one", "a weight of 1"]];
  const scaleChoice = choice("scale", scales, relative ? "each" : "one", (value) => parameters.go({ scale: value }));
  const shownAs = [kinds.length > 1 && field("Attention", kindChoice), field("Full colour", scaleChoice), unitOf(parameters, result)];
  asking.lastChild.prepend(...shownAs.filter(Boolean));
  const chosen = selection(parameters, layers);
  const [large, followed] = ["large", "followed"].map((name) => h("section", { class: name, "aria-live": "polite" }));
  const labels = result.labels[kind];
  const ask = latest((fields) => api.ask("ui/head", fields));
  const show = () => drawHead(large, followed, parameters, ask, { ...asked, kind, ...chosen }, relative);
  const grid = headGrid(
    layers,
    `Heads of the ${kindName(kind)}`,
    relative,
    (layer, head) => layer === chosen.layer && head === chosen.head,
    async (layer, head, pressed) => {
      Object.assign(chosen, { layer, head });
      parameters.set({ kind, layer, head });
      for (const one of grid.querySelectorAll("[aria-pressed=true]")) one.setAttribute("aria-pressed", "false");
      pressed.setAttribute("aria-pressed", "true");
      await show();
    },
  );
  const { queries, keys } = labels;
  const unit = result.merges && asked.unit === "words" ? "words" : "tokens";
  const size = queries.length === keys.length ? `${keys.length} ${unit}` : `${queries.length} × ${keys.length} ${unit}`;
  const pooled = layers[0].rows < queries.length || layers[0].columns < keys.length;
  const note = pooled ? " A cell of a small map shows the largest of the weights that it stands for." : "";
  const about = `${size}. Each row of maps is a layer, each map a head; in a map rows are queries and columns are keys.${note}`;
  root.append(h("div", { class: "heads-and-one" }, h("div", {}, h("p", { class: "note" }, about), grid, followed), large));
  performance.measure("attention-drawn", "attention-received");
  await show();
}

/** The fields of a request that say what a model reads. */
export function readBy({ name, text, second }) {
  return { model: name, texts: text, ...(second && { second }) };
}

/** The choice between words and tokens, where they differ. */
export function unitOf(parameters, { merges }) {
  return merges && unitChoice("Rows and columns", parameters, { token: null });
}

function form(parameters, model) {
  const pair = h("details", { class: "field", open: Boolean(model.second) }, h("summary", {}, "Pair of texts"), field("Second text", textArea("second", model.second)));
  return question(
    ({ text, second }) => parameters.go({ model: model.name, text, second, layer: null, head: null, token: null }),
    ...[model.field, model.textField, submit("Show")],
    model.model.routes.some((path) => ["/translate", "/generate", "/summarize"].includes(path)) ? h("span") : pair,
  );
}

// The head of the address; otherwise the first of the last layer.
function selection(parameters, layers) {
  const layer = layers.find((one) => one.layer === parameters.number("layer")) ?? layers.at(-1);
  const head = layer.heads.includes(parameters.number("head")) ? parameters.number("head") : layer.heads[0];
  return { layer: layer.layer, head };
}

async function drawHead(large, followed, parameters, ask, asked, relative) {
  const answer = await ask(asked);
  if (answer === OVERTAKEN) return;
  const { result } = answer;
  const head = { matrix: roots(result.roots), ...result, own: asked.kind !== "cross" };
  const { queries, keys } = head;
  const name = `Layer ${asked.layer}, head ${asked.head}`;
  const follow = (token) => {
    parameters.set({ token });
    drawFollowed(followed, head, token, relative, follow);
  };
  const masked = new Parameters("masked_heads", "").address({ model: asked.model, text: asked.texts, second: asked.second, kind: asked.kind, masked: `${asked.layer}:${asked.head}` });
  put(large, h("h2", {}, name, " ", h("a", { class: "only-live chip", href: masked }, "mask this head")), map(head, name, relative, follow));
  const token = parameters.index("token", Math.floor(queries.length / 2));
  drawFollowed(followed, head, Math.min(token, queries.length - 1), relative, follow);
}

// The map of one head. The pointer or the arrow keys choose a cell, whose weight stands below.
export function map({ matrix, queries, keys }, name, relative, follow, room = ROOM) {
  const [rows, columns] = [queries.length, keys.length];
  const heat = h("canvas", { class: "heat", role: "img", tabindex: "0", "aria-label": `${name}: ${rows} by ${columns} weights. Arrow keys choose one, Enter follows its row.` });
  drawMatrix(heat, matrix, rows, columns, ramp(), relative);
  const cell = Math.max(Math.min(1, room / Math.max(columns, rows)), Math.min(40, Math.floor(room / Math.max(columns, rows))));
  heat.style.width = `${columns * cell}px`;
  heat.style["aspect-ratio"] = `${columns} / ${rows}`;
  if (Math.max(rows, columns) <= room) heat.classList.add("crisp");
  const readout = h("p", { class: "readout only-live", role: "status" }, "Point at a cell to read its attention weight; click to follow its query.");
  let at = [0, 0];
  const read = (row, column) => {
    at = [Math.min(Math.max(0, row), rows - 1), Math.min(Math.max(0, column), columns - 1)];
    put(readout, `“${isolated(clipped(shown(queries[at[0]]), 30))}” → “${isolated(clipped(shown(keys[at[1]]), 30))}”: ${probability(matrix.weight(at[0] * columns + at[1]))}`);
  };
  const place = (event) => {
    const box = heat.getBoundingClientRect();
    read(Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns));
  };
  heat.addEventListener("pointermove", place);
  heat.addEventListener("click", (event) => (place(event), follow(at[0])));
  heat.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter") follow(at[0]);
    if (!step) return;
    event.preventDefault();
    read(at[0] + step[0], at[1] + step[1]);
  });
  if (Math.max(rows, columns) > LABELLED) return h("div", {}, h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Map" }, heat), readout);
  return h("div", {}, labelled(heat, queries, keys, cell), readout);
}

function labelled(heat, queries, keys, cell) {
  const size = { "--cell": `${cell}px`, "--letter": `${Math.min(13, Math.max(9, cell - 2))}px` };
  const side = (tokens, name) => h("div", { class: name, "aria-hidden": "true" }, tokens.map((token) => h("span", { title: token }, clipped(shown(token), 12))));
  const inner = h("div", { class: "labelled", style: size }, side(keys, "above"), side(queries, "beside"), heat);
  return h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Map" }, inner);
}

// What one query attends to: arcs for short texts, and the text coloured by the weights.
function drawFollowed(box, { matrix, queries, keys, own }, token, relative, follow) {
  const weights = Array.from(keys, (_, key) => matrix.weight(token * keys.length + key));
  const order = weights.map((weight, key) => [weight, key]).sort((a, b) => b[0] - a[0]);
  const full = relative ? order[0][0] || 1 : 1;
  const best = order.slice(0, 5).flatMap(([weight, key]) => [h("span", { class: "piece" }, shown(keys[key])), ` ${probability(weight)} `]);
  const step = (by) => button(by < 0 ? "← Previous query" : "Next query →", () => follow(token + by), { class: "only-live", disabled: token + by < 0 || token + by >= queries.length });
  const coloured = keys.map((key, at) => {
    const piece = h("span", { class: "weighted", title: `${key}: ${probability(weights[at])}` }, shown(key));
    piece.style.setProperty("--weight", `${(DARKEST * Math.sqrt(Math.min(1, weights[at] / full))).toFixed(1)}%`);
    if (own) piece.addEventListener("click", () => follow(at));
    if (own && at === token) piece.classList.add("self");
    return piece;
  });
  put(
    box,
    h("h2", {}, `What “${isolated(clipped(shown(queries[token]), 30))}” attends to`),
    h("p", { class: "best" }, "Largest attention weights: ", best),
    h("p", {}, step(-1), " ", step(1)),
    h("p", { class: "text" }, coloured),
    queries.length <= WITH_LINES && keys.length <= WITH_LINES ? lines(matrix, queries, keys, token, follow) : null,
  );
}

// Two columns of tokens: those that attend on the left, what they attend to on the right.
function lines(matrix, queries, keys, token, follow) {
  const [line, left, right, width] = [20, 150, 250, 400];
  const height = Math.max(queries.length, keys.length) * line + 8;
  const y = (at) => at * line + 14;
  const drawn = [];
  for (let query = 0; query < queries.length; query++) {
    for (let key = 0; key < keys.length; key++) {
      const weight = matrix.weight(query * keys.length + key);
      if (weight < (query === token ? 0.005 : 0.15)) continue;
      const path = { x1: left, y1: y(query), x2: right, y2: y(key), "stroke-width": (0.5 + 3.5 * weight).toFixed(2) };
      drawn.push(svg("line", { ...path, class: query === token ? "line on" : "line", "stroke-opacity": Math.max(query === token ? 0.35 : 0.15, Math.min(1, weight)).toFixed(2) }));
    }
  }
  drawn.sort((a, b) => a.classList.contains("on") - b.classList.contains("on"));
  const names = (tokens, x, anchor) =>
    tokens.map((one, at) => {
      const on = anchor === "end" && at === token;
      const label = svg("text", { x, y: y(at), "text-anchor": anchor, "dominant-baseline": "middle", class: on ? "token on" : "token" }, clipped(shown(one), 16));
      if (anchor === "end") label.addEventListener("click", () => follow(at));
      return label;
    });
  const name = `Arcs from each query to the keys that it attends to; those of ${queries[token]} are marked`;
  return svg("svg", { class: "lines", viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": name }, drawn, names(queries, left - 6, "end"), names(keys, right + 6, "start"));
}
