// A picture of the library, as regard/serving/ui/views.py sends it: tables, texts, drawings.

import { h } from "./dom.js";
import { table } from "./tables.js";

const KINDS = { note, table: tableOf, cells, column, row, drawing };

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

// The library's own SVG, in which every text is escaped. Parsed as XML, and under the page's policy, it runs nothing.
function drawing({ title, width, svg }) {
  const drawn = document.importNode(new DOMParser().parseFromString(svg, "image/svg+xml").documentElement, true);
  if (width <= 480) return h("div", { class: "figure-box" }, drawn);
  return h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": title }, drawn);
}
