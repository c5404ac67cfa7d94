// One cell of a recurrent model over a text, and the search for cells with a meaning.

import { button, chosenModel, choice, exampleOf, field, numberInput, question, submit } from "../controls.js";
import { h, put } from "../dom.js";
import { picture } from "../picture.js";
import { table } from "../tables.js";

export const title = "Cells";
export const route = "/ui/cell";
export const about = "A text coloured by one cell of a recurrent model.";
const KINDS = [["text", "any text: quotes, lines, parentheses"], ["python", "Python: strings, comments, if, indentation"]];

export async function preview(box, model, api) {
  const { result } = await api.ask("ui/cell", { ...(await exampleOf(api, model)), layer: 1, number: 1 });
  put(box, picture(result.picture));
}

export async function render(root, parameters, api) {
  const model = await chosenModel(root, parameters, api, route);
  if (!model) return;
  const text = parameters.has("text") ? model.text : model.examples.map(([one]) => one).join("\n"); // more than one line
  model.textField.querySelector("textarea").value = text;
  const layer = parameters.number("layer", 1);
  const number = parameters.number("cell", 1);
  const layers = h("div");
  const cell = numberInput("cell", number, { min: 1, step: 1 });
  const search = (kind) => parameters.go({ ...read(form), search: kind });
  const kinds = choice("search", KINDS, parameters.text("search", "text"));
  const draw = (values) => parameters.go({ ...values, search: parameters.text("search") });
  const form = question(draw, model.field, model.textField, submit("Show"), layers, field("Cell", cell));
  const found = h("div");
  const place = h("div");
  root.append(form, place, h("h2", {}, "Cells that follow a property of the text"), h("div", { class: "controls only-live" }, field("Properties", kinds),
    button("Search this text", () => search(kinds.value))), found);
  const { result } = await api.ask("ui/cell", { model: model.name, texts: text, layer, number });
  const names = result.layers.map((one, index) => [index + 1, `${one.name} (${one.cells} cells)`]);
  put(layers, field("Layer", choice("layer", names, layer)));
  cell.max = result.layers[layer - 1].cells;
  const step = (to, label) => h("a", { href: parameters.address({ cell: to }), class: "chip" }, label);
  const steps = h("p", { class: "only-live" }, number > 1 && step(number - 1, "← previous cell"), number < cell.max && step(number + 1, "next cell →"));
  put(place, picture(result.picture), steps);
  if (parameters.has("search")) await drawFound(found, parameters, api, model.name, text);
  else put(found, h("p", { class: "note" }, "Every cell is correlated with properties of the text, over its first half; the best cells for each property are listed here, with their correlation over the second half."));
}

const read = (form) => Object.fromEntries(new FormData(form));

async function drawFound(place, parameters, api, model, text) {
  put(place, h("p", { role: "status" }, "searching…"));
  const properties = parameters.text("search");
  let result;
  try {
    ({ result } = await api.ask("ui/cells", { model, texts: text, properties }));
  } catch (error) {
    put(place);
    throw error;
  }
  const rows = Object.entries(result.cells).flatMap(([name, cells]) =>
    cells.length
      ? cells.map((one, index) => ({ cells: [index ? "" : name, cellLink(parameters, one), figure(one.correlation), figure(one.held_out)] }))
      : [{ cells: [name, "does not vary", "", ""] }],
  );
  put(place, ...result.lines.map((line) => h("p", { class: "note" }, line)), table("Cells and properties", ["Property", "Cell", "First half", "Held out"], rows));
}

function cellLink(parameters, { layer, number }) {
  const name = `layer ${layer}, cell ${number}`;
  return h("a", { href: parameters.address({ layer, cell: number }), "aria-label": `Show ${name}` }, name);
}

const figure = (value) => h("span", { class: "figure" }, value === null ? "–" : value.toFixed(3));
