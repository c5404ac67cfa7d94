// Controls with labels. A view puts them into `controls(...)`; a saved file has their values as text.

import { clipped, h } from "./dom.js";

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

/** The form of a view, laid out alike in all: a model, a text, a button, and in further rows what this view alone has. */
export function question(draw, model, text, pressed, ...more) {
  const rest = more.flat().filter(Boolean);
  const form = controls(draw, model, text, pressed, rest.length > 0 && h("div", { class: "controls" }, rest));
  form.classList.add("question");
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

/** The choice between words and tokens; reset: what the address loses with it. */
export function unitChoice(label, parameters, reset = {}, options = ["words", "tokens"]) {
  const change = (unit) => parameters.go({ ...reset, unit: unit === "tokens" ? unit : null });
  return field(label, choice("unit", options, parameters.text("unit", "words"), change));
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

/** An example of a model, as the fields of a request. */
export async function exampleOf(api, model, prompts = false) {
  const [text, second] = (await examplesOf(api, model, prompts)).examples[0];
  return { model: model.id, texts: text, ...(second && { second }) };
}

async function examplesOf(api, model, prompts) {
  const { own, texts } = await api.examples(model.id);
  const cut = prompts && ["language-modeling", "dialogue"].includes(model.task);
  return { own, examples: cut ? texts.map(([text]) => [text.split(" ").slice(0, PROMPT).join(" ")]) : texts };
}

const PROMPT = 6; // words of an example that a language model continues

/**
 * The text of a view: that of the address, or else an example of the model, which a list beside its label chooses.
 * prompts: whether a language model is to continue it.
 */
async function textOf(parameters, api, model, prompts) {
  const { own, examples } = await examplesOf(api, model, prompts);
  const text = parameters.text("text", examples[0][0]);
  const second = parameters.text("second", parameters.has("text") ? "" : examples[0][1]);
  const other = (at) => parameters.start({ model: model.id, text: examples[at][0], second: examples[at][1] });
  const current = examples.findIndex(([one]) => one === text);
  const list = choice("example", examples.map(([one], at) => [at, clipped(one, 70)]), current, other);
  list.prepend(h("option", { value: "", disabled: true, selected: current < 0 }, own ? "Validation texts" : "Examples"));
  list.setAttribute("aria-label", own ? "Texts of the model's validation data" : "Examples");
  list.className = "examples only-live";
  const area = textArea("text", text);
  const box = field("Text", area);
  box.querySelector("label").after(list);
  return { text, second, examples, textField: box };
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
 * The choice of a model among those that have a route, its name, and the text for it; null where none has the route,
 * which the root then says.
 */
export async function chosenModel(root, parameters, api, route, prompts = false) {
  const models = (await api.models()).filter((one) => one.routes.includes(route));
  if (!models.length) {
    root.append(h("p", { class: "empty" }, "No model on this server can be shown in this view."));
    return null;
  }
  const names = models.map((one) => one.id);
  const asked = parameters.text("model", names[0]);
  const name = names.includes(asked) ? asked : names[0];
  if (name !== asked) root.append(h("p", { class: "note" }, `${asked} cannot be shown in this view, but ${name} can.`));
  const model = models[names.indexOf(name)];
  const text = await textOf(parameters, api, model, prompts);
  const isExample = text.examples.some(([one]) => one === text.text); // the other model has examples of its own
  const change = (other) => parameters.start({ model: other, text: isExample ? null : text.text });
  return { name, model, field: field("Model", choice("model", names, name, change)), ...text };
}
