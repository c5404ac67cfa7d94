// Heads masked, and the answer compared with that of all heads.

import { latest, OVERTAKEN } from "../api.js";
import { choice, chosenModel, exampleOf, field, question, submit, textArea } from "../controls.js";
import { h, probability, put } from "../dom.js";
import { headGrid, kindName, kindsOf } from "../heads.js";
import { table } from "../tables.js";
import { mainKind, readBy, smallGrid, unitOf } from "./attention.js";

export const title = "Masked heads";
export const route = "/ui/masked_heads";
export const about = "How the answer changes without some heads.";

export async function preview(box, model, api) {
  const { result } = await api.ask("ui/attention", await exampleOf(api, model));
  const kind = mainKind(result);
  const grid = smallGrid(result.layers.filter((one) => one.kind === kind), (layer, head) => (3 * layer + head) % 7 === 0);
  grid.classList.add("switches");
  put(box, grid);
}

export async function render(root, parameters, api) {
  const model = await chosenModel(root, parameters, api, route);
  if (!model) return;
  const asked = readBy(model);
  const second = model.second ? field("Second text", textArea("second", model.second)) : h("span");
  const form = question(({ text, second }) => parameters.go({ model: model.name, text, second }), model.field, model.textField, submit("Compare"), second);
  root.append(form);
  const { result } = await api.ask("ui/attention", { ...asked, unit: parameters.text("unit", "words") });
  const kinds = kindsOf(result);
  const kind = kinds.includes(parameters.text("kind")) ? parameters.text("kind") : mainKind(result);
  const kindChoice = choice("kind", kinds.map((one) => [one, kindName(one)]), kind, (value) => parameters.go({ kind: value, masked: null }));
  form.lastChild.prepend(...[kinds.length > 1 && field("Attention", kindChoice), unitOf(parameters, result)].filter(Boolean));
  const layers = result.layers.filter((one) => one.kind === kind);
  const masked = new Set(headsOf(parameters.text("masked"), layers));
  const ask = latest((fields) => api.ask("ui/masked_heads", fields));
  const compared = h("section", { "aria-live": "polite" });
  const grid = headGrid(
    layers,
    `Heads of the ${kindName(kind)}: pressed ones are masked`,
    true,
    (layer, head) => masked.has(`${layer}:${head}`),
    async (layer, head, pressed) => {
      const name = `${layer}:${head}`;
      if (!masked.delete(name)) masked.add(name);
      pressed.setAttribute("aria-pressed", String(masked.has(name)));
      parameters.set({ kind, masked: [...masked].join(",") });
      await compare(compared, ask, asked, kind, masked);
    },
  );
  grid.classList.add("switches");
  root.append(h("p", { class: "note" }, "Press a head to mask it, or to unmask it; each row is a layer. A masked head adds nothing to the result (Michel et al. 2019, equation 1 with ξ = 0)."), h("div", { class: "heads-and-one" }, grid, compared));
  await compare(compared, ask, asked, kind, masked);
}

// "2:1,3:4" -> those of them that the model has.
function headsOf(text, layers) {
  const there = new Set(layers.flatMap((one) => one.heads.map((head) => `${one.layer}:${head}`)));
  return text.split(",").filter((one) => there.has(one));
}

async function compare(box, ask, asked, kind, masked) {
  const masked_heads = [...masked].map((one) => one.split(":").map(Number)).map(([layer, head]) => ({ kind, layer, head }));
  const heads = [...masked];
  const answer = await ask({ ...asked, masked_heads });
  if (answer === OVERTAKEN) return;
  const { result } = answer;
  const heading = h("h2", {}, heads.length ? `Without ${heads.map((one) => `head ${one.replace(":", ".")}`).join(", ")}` : "With all heads");
  const note = h("small", {}, heads.length ? "Layer and number of each head." : "");
  put(box, heading, note, "cosine" in result ? vectors(result) : answers(result));
}

function vectors({ cosine, distance }) {
  return h("p", {}, `Cosine similarity of the text's vectors with all heads and without these: `, h("b", {}, cosine.toFixed(6)), `; their distance: ${distance.toPrecision(3)}.`);
}

function answers({ with_all: before, without: after }) {
  const same = before.text === after.text;
  const texts = h("dl", { class: "pair" }, h("dt", {}, "all heads"), h("dd", {}, before.text), h("dt", {}, "without masked heads"), h("dd", {}, marked(before.text, after.text)));
  const parts = Object.keys(before).filter((key) => key !== "text").map((key) => values(key, before[key], after[key]));
  return h("div", {}, h("p", {}, same ? "The answer is the same." : h("b", {}, "The answer changes.")), texts, parts);
}

// The words of a text that the other one does not have at the same place.
function marked(before, after) {
  const words = before.split(" ");
  return after.split(" ").flatMap((word, at) => [at ? " " : "", word === words[at] ? word : h("mark", {}, word)]);
}

function values(key, before, after) {
  const pairs = before && after && typeof before === "object" && !Array.isArray(before) ? Object.keys(before) : null;
  if (pairs?.every((name) => typeof before[name] === "number")) {
    const rows = pairs.map((name) => ({ cells: [name, bar(before[name]), bar(after[name] ?? 0)] }));
    return h("div", {}, h("h3", {}, key), table(key, ["", "all heads", "without masked heads"], rows));
  }
  if (typeof before === "number") return h("p", {}, `${key}: ${probability(before)}, then ${probability(after)}`);
  return null;
}

function bar(value) {
  const inner = h("span", { class: "bar" });
  inner.style.width = `${Math.max(0, Math.min(1, value)) * 120}px`;
  return h("span", { class: "bar-cell" }, inner, probability(value));
}
