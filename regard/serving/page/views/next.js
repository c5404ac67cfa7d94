// The next token as bars under temperature, top-k and top-p; text generated token by token.

import { latest, OVERTAKEN } from "../api.js";
import { button, chosenModel, exampleOf, field, numberInput, question, slider, submit, unitChoice } from "../controls.js";
import { clipped, h, probability, put, shown } from "../dom.js";

export const title = "Next tokens";
export const route = "/ui/next";
export const about = "The probabilities of the next token; text generated token by token.";
const MANY = 10; // steps of one button

export async function preview(box, model, api) {
  const { result } = await api.ask("ui/next", await exampleOf(api, model, true));
  put(box, bars({ ...result, next: result.next.slice(0, 6).map((one) => ({ ...one, token: one.text })) }, [], () => {}).querySelector(".bars"));
}

export async function render(root, parameters, api) {
  const model = await chosenModel(root, parameters, api, route, true);
  if (!model) return;
  const { text } = model;
  const settings = filters(parameters, () => step(chosenOf(parameters)));
  const drawn = h("section", { "aria-live": "polite" });
  const start = ({ text }) => parameters.go({ model: model.name, text, chosen: null });
  root.append(question(start, model.field, model.textField, submit("Start"), settings, unitChoice("Show tokens as", parameters, {}, [["words", "text"], ["tokens", "vocabulary entries"]])), drawn);
  const ask = latest(async (chosen) => inUnit((await api.ask("ui/next", { model: model.name, texts: text, ...options(parameters), chosen })).result, parameters));
  // Show what follows these tokens, and draw so many more, until something else is pressed.
  async function step(chosen, more = 0) {
    parameters.set({ chosen: chosen.join(",") });
    const result = await ask(chosen).catch((error) => error);
    if (result === OVERTAKEN || result.name === "AbortError") return;
    if (result instanceof Error) put(drawn, h("p", { role: "alert", class: "error" }, result.message), back(chosen, step));
    else put(drawn, written(result, chosen, step), buttons(result, chosen, step), bars(result, chosen, step));
    if (more > 0 && result.ended === false) await step([...chosen, result.drawn], more - 1);
  }
  await step(chosenOf(parameters));
}

// The answer with its tokens as they are shown: as text, or with the markers of the vocabulary.
function inUnit(result, parameters) {
  if (parameters.text("unit") === "tokens") return result;
  const lists = ["read", "chosen", "next"].map((name) => [name, result[name].map((one) => ({ ...one, token: one.text }))]);
  return { ...result, ...Object.fromEntries(lists) };
}

const chosenOf = (parameters) => parameters.text("chosen").split(",").filter((one) => /^\d+$/.test(one)).map(Number);

// The options of the request that the address has; what is left out does nothing.
function options(parameters) {
  const found = {};
  for (const name of ["temperature", "top_k", "top_p", "seed"]) {
    const value = parameters.number(name);
    if (value !== null) found[name] = value;
  }
  return found;
}

function filters(parameters, changed) {
  const change = (name, none) => (value) => {
    parameters.set({ [name]: value === none ? null : value });
    changed();
  };
  const number = (name, attributes) => {
    const input = numberInput(name, parameters.number(name), attributes);
    input.addEventListener("change", () => change(name, null)(input.value === "" ? null : input.value));
    return input;
  };
  const sliding = (name, none, attributes) => {
    const value = h("output", { class: "only-live" }, parameters.number(name, none));
    const move = change(name, none);
    const input = slider(name, parameters.number(name, none), attributes, (now) => (put(value, String(now)), move(now)));
    return h("div", { class: "slid" }, field(name.replace("_", "-"), input), value);
  };
  return [
    sliding("temperature", 1, { min: 0.1, max: 2, step: 0.05 }),
    field("top-k", number("top_k", { min: 1, step: 1, placeholder: "all" })),
    sliding("top_p", 1, { min: 0.05, max: 1, step: 0.05 }),
    field("seed", number("seed", { min: 0, step: 1, placeholder: "0" })),
  ];
}

function written(result, chosen, step) {
  const before = result.read.map(({ token }) => h("span", { class: "piece" }, shown(token)));
  const after = result.chosen.map((one, at) => {
    const keep = () => step(chosen.slice(0, at));
    const hint = `${one.token}: probability ${probability(Math.exp(one.log_prob))}. Press to go back before it.`;
    return h("button", { type: "button", class: "piece chosen", title: hint, onclick: keep }, shown(one.token));
  });
  const total = result.chosen.reduce((sum, one) => sum + one.log_prob, 0);
  const about = result.chosen.length ? `${result.chosen.length} tokens, log-probability ${total.toFixed(4)}: ` : "Nothing generated yet.";
  return h("div", {}, h("p", { class: "pieces" }, before, h("span", { "aria-hidden": "true" }, " → "), after), h("p", { class: "generated" }, about, h("b", {}, result.text)));
}

function back(chosen, step) {
  return button("Back", () => step(chosen.slice(0, -1)), { class: "only-live", disabled: chosen.length === 0 });
}

function buttons(result, chosen, step) {
  const take = (which, more = 0) => () => step([...chosen, result[which]], more);
  const live = (text, pressed) => button(text, pressed, { class: "only-live", disabled: result.ended });
  return h(
    "p",
    { class: "buttons" },
    live("Most probable", take("greedy")),
    " ",
    live("Sample one", take("drawn")),
    " ",
    live(`Sample ${MANY}`, take("drawn", MANY - 1)),
    " ",
    back(chosen, step),
    result.ended ? " The text has ended." : "",
  );
}

function bars(result, chosen, step) {
  const full = Math.max(...result.next.flatMap((one) => [one.probability, one.filtered]), 1e-9);
  const row = (one) => {
    const take = () => step([...chosen, one.id]);
    const bar = (value, name) => {
      const inner = h("span", { class: name });
      inner.style.width = `${(100 * value) / full}%`;
      return inner;
    };
    const marks = [one.id === result.greedy ? "most probable" : "", one.id === result.drawn ? "sampled" : ""].filter(Boolean).join(", ");
    const label = `${shown(one.token)}: ${probability(one.filtered)} after the filters, ${probability(one.probability)} before${marks && ", " + marks}`;
    return h(
      "li",
      { class: one.filtered ? "" : "cut" },
      h("button", { type: "button", class: "next", "aria-label": label, onclick: take, disabled: result.ended }, clipped(shown(one.token), 18)),
      h("span", { class: "two", "aria-hidden": "true" }, bar(one.probability, "before"), bar(one.filtered, "after")),
      h("span", { class: "numbers" }, probability(one.filtered), marks && h("small", {}, ` ${marks}`)),
    );
  };
  const all = result.allowed.toLocaleString("en");
  const note = `Filled bars: probability after temperature, top-k and top-p, which keep ${all} tokens. Outlines: probability of the model itself, whose entropy is ${result.entropy.toFixed(3)} nats. ${result.others.toLocaleString("en")} further tokens are not shown.`;
  return h("div", {}, h("h2", {}, "The next token"), h("ol", { class: "bars" }, result.next.map(row)), h("p", { class: "note" }, note));
}
