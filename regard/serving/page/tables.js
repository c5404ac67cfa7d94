// Tables, which scroll where they are wider than the screen.

import { h } from "./dom.js";

/** rows: [{cells: [text, element or list of them, ...], marked}]. label: for readers who do not see it. */
export function table(label, columns, rows) {
  const head = h("tr", {}, columns.map((text) => h("th", { scope: "col" }, text)));
  const body = rows.map((row) => h("tr", { class: row.marked && "marked" }, row.cells.map((cell) => h("td", {}, cell))));
  const inner = h("table", {}, h("thead", {}, head), h("tbody", {}, body));
  return h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": label }, inner);
}
