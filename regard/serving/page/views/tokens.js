// Tokenization step by step: the merges or longest matches of each word.

import { chosenModel, exampleOf, question, submit } from "../controls.js";
import { clipped, h, isolated, put, shown } from "../dom.js";
import { table } from "../tables.js";

export const title = "Tokens";
export const route = "/ui/tokens";
export const about = "How the words of a text become tokens.";

export async function preview(box, model, api) {
  const { result } = await api.ask("ui/tokens", await exampleOf(api, model));
  put(box, h("p", {}, pieces(result.words.flatMap((word) => word.tokens))));
}

export async function render(root, parameters, api) {
  const model = await chosenModel(root, parameters, api, route);
  if (!model) return;
  root.append(question((values) => parameters.go(values), model.field, model.textField, submit("Show")));
  const { result } = await api.ask("ui/tokens", { model: model.name, texts: model.text });
  const all = result.words.flatMap((word) => word.tokens);
  root.append(
    h("p", {}, `The tokenizer (${result.tokenizer}) makes ${all.length} tokens of ${result.words.length} words.`),
    h("p", { class: "pieces", "aria-label": "Tokens" }, all.map((token) => h("span", { class: "piece" }, shown(token)))),
    ...result.words.map(drawWord),
  );
}

function drawWord(word) {
  const heading = h("summary", {}, h("b", {}, shown(word.word)), " → ", word.tokens.map((token) => h("span", { class: "piece" }, shown(token))));
  const draw = { merges, "longest match": matches }[word.algorithm];
  if (!draw) return h("p", { class: "word" }, ...heading.childNodes);
  return h("details", { class: "word", open: word.tokens.length > 1 }, heading, draw(word));
}

const pieces = (symbols) => symbols.map((one) => h("span", { class: "piece" }, shown(one)));

function merges(word) {
  const first = { cells: ["", "characters", pieces(word.symbols)] };
  const rows = word.steps.map((step) => ({
    cells: [`merge ${(step.rank + 1).toLocaleString("en")}`, `${isolated(shown(step.left))} + ${isolated(shown(step.right))}`, pieces(step.symbols)],
  }));
  return table(`Merges of ${word.word}`, ["Rule", "Merged", "Symbols"], [first, ...rows]);
}

function matches(word) {
  const rows = word.steps.map((step) => ({
    cells: [String(step.start), step.found === null ? "nothing" : pieces([step.found]), clipped(tried(step.tried), 160)],
    marked: step.found !== null,
  }));
  return table(`Matches of ${word.word}`, ["From", "Found", "Tried, longest first"], rows);
}

function tried(all) {
  return (all.length < 9 ? all : [...all.slice(0, 3), "…", ...all.slice(-4)]).join("  ");
}
