// All heads of a model as a grid of small maps: a row for each layer, a button for each head.

import { h } from "./dom.js";
import { drawMatrix, ramp, roots } from "./heat.js";

const KINDS = {
  encoder: "encoder self-attention",
  decoder: "decoder self-attention",
  cross: "cross-attention",
  query: "query stream",
};

/** How a kind of attention is called. */
export function kindName(kind) {
  return KINDS[kind] ?? kind;
}

/** The kinds of attention in an answer, in the order of the model. */
export function kindsOf(result) {
  return [...new Set(result.layers.map((one) => one.kind))];
}

/**
 * The grid. relative: see `drawMatrix`. pressed: (layer, head) => whether a head is marked; press: called with a head that is
 * chosen. Arrow keys go from head to head.
 */
export function headGrid(layers, label, relative, pressed, press) {
  const colors = ramp();
  const buttons = layers.map((one) => drawLayer(one, colors, relative, pressed, press));
  const first = buttons.flat().find((one) => one.getAttribute("aria-pressed") === "true") ?? buttons[0][0];
  first.tabIndex = 0;
  const rows = buttons.map((row, at) =>
    h("div", { class: "layer", role: "group", "aria-label": `Layer ${layers[at].layer}` }, h("span", { class: "layer-name", "aria-hidden": "true" }, layers[at].layer), row),
  );
  const widest = Math.max(...layers.map((one) => one.heads.length));
  const grid = h("div", { class: "heads", role: "group", "aria-label": label, style: { "--heads": widest } }, rows);
  grid.addEventListener("keydown", (event) => move(event, buttons));
  return grid;
}

function drawLayer(one, colors, relative, pressed, press) {
  const { numbers, full } = roots(one.roots);
  const size = one.rows * one.columns;
  return one.heads.map((head, at) => {
    const canvas = h("canvas", { "aria-hidden": "true" });
    drawMatrix(canvas, { numbers: numbers.subarray(at * size, (at + 1) * size), full }, one.rows, one.columns, colors, relative);
    const name = `layer ${one.layer}, head ${head}`;
    const chosen = () => press(one.layer, head, button);
    const button = h("button", { type: "button", class: "head", title: name, "aria-label": name, "aria-pressed": String(pressed(one.layer, head)), tabindex: "-1", onclick: chosen }, canvas);
    return button;
  });
}

function move(event, buttons) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const step = steps[event.key];
  const row = buttons.findIndex((one) => one.includes(document.activeElement));
  if (!step || row < 0) return;
  event.preventDefault();
  const column = buttons[row].indexOf(document.activeElement);
  const next = buttons[row + step[0]]?.[Math.min(column + step[1], (buttons[row + step[0]]?.length ?? 1) - (step[0] ? 1 : 0))];
  if (!next) return;
  for (const one of buttons.flat()) one.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
