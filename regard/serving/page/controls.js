// Controls with labels. A view puts them into `controls(...)`; a saved file has their values as text.

import { h } from "./dom.js";

let count = 0;

/** The form of a view; its submission calls `draw` with the values of its controls by their names. */
export function controls(draw, ...children) {
  const form = h("form", { class: "controls" }, children);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    draw(valuesOf(form));
  });
  return form;
}

/** The values of a form: {text: "…", model: "…"}. */
export function valuesOf(form) {
  return Object.fromEntries(new FormData(form));
}

/** A control below its label. */
export function field(label, control, hint = "") {
  control.id ||= `control-${++count}`;
  const words = hint ? h("small", { id: `${control.id}-hint` }, hint) : null;
  if (words) control.setAttribute("aria-describedby", words.id);
  const wide = control.tagName === "TEXTAREA" ? "field wide" : "field";
  return h("div", { class: wide }, h("label", { for: control.id }, label), control, words);
}

/** A choice: options are texts, or pairs of a value and its text. change: called with the value. */
export function choice(name, options, value, change) {
  const pairs = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const select = h("select", { name });
  for (const [key, text] of pairs) select.append(h("option", { value: key, selected: String(key) === String(value) }, text));
  if (change) select.addEventListener("change", () => change(select.value));
  return select;
}

/** A text of several lines. Ctrl-Enter draws. */
export function textArea(name, value, rows = 2) {
  const area = h("textarea", { name, rows, spellcheck: "false" });
  area.value = value;
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) area.form?.requestSubmit();
  });
  return area;
}

/** A number; "" is none. */
export function numberInput(name, value, attributes = {}) {
  const input = h("input", { type: "number", name, ...attributes });
  input.value = value ?? "";
  return input;
}

/** A slider. change: called with its number while it moves. */
export function slider(name, value, attributes, change) {
  const input = h("input", { type: "range", name, ...attributes });
  input.value = value;
  input.addEventListener("input", () => change(Number(input.value)));
  return input;
}

/** What submits a form. */
export function submit(text) {
  return h("button", { type: "submit", class: "main" }, text);
}

/** What calls a function. */
export function button(text, pressed, attributes = {}) {
  return h("button", { type: "button", onclick: pressed, ...attributes }, text);
}

/**
 * The choice of a model among those that have a route, and its name; null where none has it, which
 * the root then says.
 */
export async function chosenModel(root, parameters, api, route) {
  const models = (await api.models()).filter((one) => one.routes.includes(route));
  if (!models.length) {
    root.append(h("p", { class: "empty" }, "No model on this server can be shown in this view."));
    return null;
  }
  const names = models.map((one) => one.id);
  const asked = parameters.text("model", names[0]);
  const name = names.includes(asked) ? asked : names[0];
  if (name !== asked) root.append(h("p", { class: "note" }, `${asked} cannot be shown in this view, but ${name} can.`));
  return { name, model: models[names.indexOf(name)], field: field("Model", choice("model", names, name)) };
}
