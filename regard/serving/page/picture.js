// A picture of the library, as regard/serving/ui/pictures.py sends it: tables, texts, shapes.

import { bytesOf, color, h, svg } from "./dom.js";
import { choice } from "./controls.js";
import { table } from "./tables.js";

const KINDS = { note, table: tableOf, cells, column, row, choice: choiceOf, drawing };

/** The element of a picture. */
export function picture(plain) {
  return KINDS[plain.kind](plain);
}

const heading = (text) => (text ? h("h3", {}, text) : null);

function note({ title, lines }) {
  return h("div", {}, heading(title), paragraphs(lines));
}

/** Paragraphs; a line that begins with two spaces is a formula. */
export function paragraphs(lines) {
  return lines.map((line) => (line.startsWith("  ") ? h("pre", { class: "formula" }, line.slice(2)) : h("p", {}, line)));
}

function tableOf({ title, head, rows, best }) {
  const cell = (text) => (/^[\d.+\-−±]/.test(text) ? h("span", { class: "figure" }, text) : text);
  const marked = rows.map((cells, index) => ({ cells: cells.map(cell), marked: index === best }));
  return h("div", {}, heading(title), table(title || "Table", head, marked));
}

// Blue above zero, orange below; a title says the number, which the colour alone does not.
function cells({ title, pieces }) {
  const spans = pieces.map(([text, value]) => {
    const seen = text.replaceAll("\n", "↵\n").replaceAll("\t", "␉   ");
    if (value === null) return seen;
    const share = `${Math.round(65 * Math.abs(value))}%`;
    return h("span", { class: value < 0 ? "cell below" : "cell", style: { "--share": share }, title: value.toFixed(3) }, seen);
  });
  return h("div", {}, heading(title), h("pre", { class: "cells", tabindex: "0", "aria-label": title || "Text" }, spans), scale());
}

function scale() {
  const steps = Array.from({ length: 21 }, (_, index) => index / 10 - 1);
  const boxes = steps.map((value) =>
    h("span", { class: value < 0 ? "cell below" : "cell", style: { "--share": `${Math.round(65 * Math.abs(value))}%` } }, " "),
  );
  return h("p", { class: "cell-scale", "aria-hidden": "true" }, "−1 ", h("span", {}, boxes), " 1");
}

function column({ title, parts }) {
  return h("div", { class: "pictures", "aria-label": title || null }, parts.map(picture));
}

function row({ title, parts }) {
  return h("div", { class: "pictures abreast", "aria-label": title || null }, parts.map(picture));
}

function choiceOf({ label, names, parts }) {
  const place = h("div", {}, picture(parts[0]));
  const select = choice("shown", names.map((name, index) => [index, name]), 0, (index) => place.replaceChildren(picture(parts[index])));
  select.setAttribute("aria-label", label);
  return h("div", {}, h("p", { class: "only-live" }, `${label}: `, select), place);
}

function drawing({ title, width, height, shapes }) {
  const size = { width: Math.ceil(width), height: Math.ceil(height), viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}` };
  const drawn = svg("svg", { ...size, role: "img", "aria-label": title, class: width > 480 ? null : "shrinks" });
  for (const shape of shapes) drawn.append(SHAPES[shape.kind](shape));
  if (width <= 480) return h("div", { class: "figure-box" }, drawn);
  return h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": title }, drawn);
}

const paint = (role, otherwise) => (role === "none" ? "none" : `var(--${role ?? otherwise})`);
const tip = (title) => (title ? svg("title", {}, title) : null);
const pairs = (points) => points.map((point) => point.join(",")).join(" ");

function imageOf(canvas, { x, y, width, height }, kind) {
  return svg("image", { x, y, width, height, preserveAspectRatio: "none", href: canvas.toDataURL(), class: kind });
}

const SHAPES = {
  rect: (one) => {
    const box = { x: one.x, y: one.y, width: one.width, height: one.height, rx: one.radius };
    const stroke = one.stroke ? paint(one.stroke) : null;
    return svg("rect", { ...box, fill: paint(one.fill, "accent"), "fill-opacity": one.opacity, stroke }, tip(one.title));
  },
  circle: (one) => svg("circle", { cx: one.x, cy: one.y, r: one.radius ?? 3, fill: paint(one.fill, "accent") }, tip(one.title)),
  polyline: (one) =>
    svg("polyline", {
      ...{ points: pairs(one.points), fill: "none", stroke: paint(one.stroke, "ink"), "stroke-width": one.width ?? 1 },
      ...{ "stroke-linejoin": "round", "stroke-opacity": one.opacity, "stroke-dasharray": one.dashed ? "3 3" : null },
    }),
  polygon: (one) => svg("polygon", { points: pairs(one.points), fill: paint(one.fill, "accent"), "fill-opacity": one.opacity ?? 0.15 }),
  connector: (one) => {
    const [[x0, y0], [x1, y1]] = one.points;
    const middle = (x0 + x1) / 2;
    const d = `M${x0},${y0} C${middle},${y0} ${middle},${y1} ${x1},${y1}`;
    return svg("path", { d, fill: "none", stroke: paint(one.stroke, "accent"), "stroke-width": one.width ?? 1, "stroke-opacity": one.opacity });
  },
  label: (one) => {
    const turned = one.angle ? `rotate(${one.angle} ${one.x} ${one.y})` : null;
    const font = { "font-size": one.size ?? 12, "font-weight": one.bold ? 600 : null, class: one.mono ? "mono" : null };
    const at = { x: one.x, y: one.y, dy: ".35em", "text-anchor": one.anchor, transform: turned };
    return svg("text", { ...at, ...font, fill: paint(one.fill, "ink"), "xml:space": "preserve" }, tip(one.title), one.text);
  },
  raster: (one) => {
    const canvas = h("canvas", { width: one.columns, height: one.values.length / one.columns });
    const context = canvas.getContext("2d");
    one.values.forEach((value, index) => {
      context.globalAlpha = Math.min(1, Math.abs(value));
      context.fillStyle = color(value < 0 ? "warm" : "accent");
      context.fillRect(index % one.columns, Math.floor(index / one.columns), 1, 1);
    });
    return imageOf(canvas, one, "raster");
  },
  pixels: (one) => {
    const bytes = new Uint8ClampedArray(bytesOf(one.data).buffer);
    const canvas = h("canvas", { width: one.columns, height: bytes.length / 4 / one.columns });
    canvas.getContext("2d").putImageData(new ImageData(bytes, one.columns), 0, 0);
    return imageOf(canvas, one, null);
  },
};
