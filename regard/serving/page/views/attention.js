// Attention of every head as a grid of small maps, one head chosen large, one token followed.

import { latest, OVERTAKEN } from "../api.js";
import { button, choice, chosenModel, controls, field, submit, textArea } from "../controls.js";
import { clipped, h, isolated, probability, put, shown, svg } from "../dom.js";
import { headGrid, kindName, kindsOf } from "../heads.js";
import { drawMatrix, ramp, roots } from "../heat.js";
import { Parameters } from "../parameters.js";

export const title = "Attention";
export const route = "/ui/attention";
const EXAMPLE = "The animal didn't cross the street because it was too tired.";
export const LONG = 64; // tokens beyond which no weight comes near 1
const LABELLED = 60; // tokens of a map that has its tokens beside it
const DARKEST = 55; // percent of the colour behind a token, so that the token can be read
const WITH_LINES = 60; // tokens of a text that has lines between them

export async function render(root, parameters, api) {
  const model = await chosenModel(root, parameters, api, route);
  if (!model) return;
  const text = parameters.text("text", EXAMPLE);
  const second = parameters.text("second");
  root.append(form(parameters, model, text, second));
  const asked = { model: model.name, texts: text, ...(second && { second }) };
  const { result } = await api.ask("ui/attention", asked);
  performance.mark("attention-received");
  const kinds = kindsOf(result);
  const kind = kinds.includes(parameters.text("kind")) ? parameters.text("kind") : kinds.includes("cross") ? "cross" : kinds[0];
  const layers = result.layers.filter((one) => one.kind === kind);
  if (result.answer) root.append(h("p", {}, "The answer: ", h("b", {}, result.answer)));
  const other = { layer: null, head: null, token: null };
  const kindChoice = choice("kind", kinds.map((one) => [one, kindName(one)]), kind, (value) => parameters.go({ kind: value, ...other }));
  const relative = parameters.text("scale", result.labels[kind].keys.length > LONG ? "each" : "one") === "each";
  const scales = [["one", "a weight of 1"], ["each", "the largest weight of each map"]];
  const scaleChoice = choice("scale", scales, relative ? "each" : "one", (value) => parameters.go({ scale: value }));
  root.append(h("div", { class: "controls" }, kinds.length > 1 && field("Attention", kindChoice), field("Strongest colour stands for", scaleChoice)));
  const chosen = selection(parameters, layers);
  const large = h("section", { class: "large", "aria-live": "polite" });
  const labels = result.labels[kind];
  const ask = latest((fields) => api.ask("ui/head", fields));
  const show = () => drawHead(large, parameters, ask, { ...asked, kind, ...chosen }, relative);
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
  const size = queries.length === keys.length ? `${keys.length} tokens` : `${queries.length} × ${keys.length} tokens`;
  const pooled = layers[0].rows < queries.length || layers[0].columns < keys.length;
  const note = pooled ? " A cell of a small map shows the largest of the weights that it stands for." : "";
  root.append(h("p", { class: "note" }, `${size}; each row of maps is a layer, each map one head, in which the row tokens attend to the column tokens.${note}`), grid, large);
  performance.measure("attention-drawn", "attention-received");
  await show();
}

function form(parameters, model, text, second) {
  const pair = h("details", { class: "field", open: Boolean(second) }, h("summary", {}, "Pair of texts"), field("Second text", textArea("second", second)));
  return controls(
    (values) => parameters.go({ ...values, layer: null, head: null, token: null, kind: parameters.text("kind") }),
    model.field,
    field("Text", textArea("text", text)),
    model.model.routes.some((path) => ["/translate", "/generate", "/summarize"].includes(path)) ? null : pair,
    submit("Show"),
  );
}

// The head of the address; otherwise the first of the last layer.
function selection(parameters, layers) {
  const layer = layers.find((one) => one.layer === parameters.number("layer")) ?? layers.at(-1);
  const head = layer.heads.includes(parameters.number("head")) ? parameters.number("head") : layer.heads[0];
  return { layer: layer.layer, head };
}

async function drawHead(large, parameters, ask, asked, relative) {
  const answer = await ask(asked);
  if (answer === OVERTAKEN) return;
  const { result } = answer;
  const head = { matrix: roots(result.roots), ...result, own: asked.kind !== "cross" };
  const { queries, keys } = head;
  const name = `Layer ${asked.layer}, head ${asked.head}`;
  const followed = h("div", { class: "followed" });
  const follow = (token) => {
    parameters.set({ token });
    drawFollowed(followed, head, token, relative, follow);
  };
  const masked = new Parameters("masked_heads", "").address({ model: asked.model, text: asked.texts, second: asked.second, kind: asked.kind, masked: `${asked.layer}:${asked.head}` });
  put(large, h("h2", {}, name, " ", h("a", { class: "only-live chip", href: masked }, "mask this head")), map(head, name, relative, follow), followed);
  const token = parameters.index("token", Math.floor(queries.length / 2));
  drawFollowed(followed, head, Math.min(token, queries.length - 1), relative, follow);
}

// The map of one head. The pointer or the arrow keys choose a cell, whose weight stands below.
export function map({ matrix, queries, keys }, name, relative, follow) {
  const [rows, columns] = [queries.length, keys.length];
  const heat = h("canvas", { class: "heat", role: "img", tabindex: "0", "aria-label": `${name}: ${rows} by ${columns} weights. Arrow keys choose one, Enter follows its row.` });
  drawMatrix(heat, matrix, rows, columns, ramp(), relative);
  const cell = Math.max(1, Math.min(30, Math.floor(640 / Math.max(columns, rows))));
  heat.style.width = `${columns * Math.max(cell, 640 / Math.max(columns, rows) < 1 ? 640 / Math.max(columns, rows) : cell)}px`;
  heat.style["aspect-ratio"] = `${columns} / ${rows}`;
  if (Math.max(rows, columns) <= 640) heat.classList.add("crisp");
  const readout = h("p", { class: "readout only-live", role: "status" }, "Point at a cell to read its weight; click to see its whole row.");
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

// What one token attends to: lines for short texts, and the text coloured by the weights.
function drawFollowed(box, { matrix, queries, keys, own }, token, relative, follow) {
  const weights = Array.from(keys, (_, key) => matrix.weight(token * keys.length + key));
  const order = weights.map((weight, key) => [weight, key]).sort((a, b) => b[0] - a[0]);
  const full = relative ? order[0][0] || 1 : 1;
  const best = order.slice(0, 5).flatMap(([weight, key]) => [h("span", { class: "piece" }, shown(keys[key])), ` ${probability(weight)} `]);
  const step = (by) => button(by < 0 ? "← Previous token" : "Next token →", () => follow(token + by), { class: "only-live", disabled: token + by < 0 || token + by >= queries.length });
  const coloured = keys.map((key, at) => {
    const piece = h("span", { class: "weighted", title: `${key}: ${probability(weights[at])}` }, shown(key));
    piece.style.setProperty("--weight", `${(DARKEST * Math.sqrt(Math.min(1, weights[at] / full))).toFixed(1)}%`);
    if (own) piece.addEventListener("click", () => follow(at));
    if (own && at === token) piece.classList.add("self");
    return piece;
  });
  put(
    box,
    h("h3", {}, `What “${isolated(clipped(shown(queries[token]), 30))}” (token ${token + 1}) attends to`),
    h("p", {}, "Largest weights: ", best),
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
  const name = `Lines from each token to what it attends to; those of ${queries[token]} are marked`;
  return svg("svg", { class: "lines", viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": name }, drawn, names(queries, left - 6, "end"), names(keys, right + 6, "start"));
}
