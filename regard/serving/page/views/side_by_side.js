// Two models, or two layers of one, side by side on one text: their attention and their answers.

import { choice, chosenModel, exampleOf, field, question, submit } from "../controls.js";
import { clipped, h, isolated, probability, put, shown } from "../dom.js";
import { kindName, kindsOf } from "../heads.js";
import { drawMatrix, ramp, roots } from "../heat.js";
import { mainKind, map, readBy, unitOf } from "./attention.js";

export const title = "Side by side";
export const route = "/ui/attention";
export const about = "Two models, or two layers of one, on the same text.";
const SIDES = ["left", "right"];

export async function preview(box, model, api) {
  const asked = await exampleOf(api, model);
  const { result } = await api.ask("ui/attention", asked);
  const kind = mainKind(result);
  const layers = result.layers.filter((one) => one.kind === kind);
  const sides = [layers[0], layers.at(-1)].map(async ({ layer }) => {
    const one = (await api.ask("ui/head", { ...asked, kind, layer })).result;
    const heat = h("canvas", { class: "heat crisp", "aria-hidden": "true" });
    drawMatrix(heat, roots(one.roots), one.queries.length, one.keys.length, ramp(), true);
    return h("figure", {}, heat, h("figcaption", {}, `layer ${layer}`));
  });
  put(box, await Promise.all(sides));
}

export async function render(root, parameters, api) {
  const left = await chosenModel(root, parameters, api, route);
  if (!left) return;
  const models = (await api.models()).filter((one) => one.routes.includes(route));
  const names = models.map((one) => one.id);
  const other = parameters.text("right", names.find((one) => one !== left.name));
  const chosen = { left: left.name, right: names.includes(other) ? other : left.name };
  const reset = Object.fromEntries(SIDES.map((side) => [`${side}_row`, null]));
  const second = choice("right", names, chosen.right, (right) => parameters.go({ right, right_row: null }));
  root.append(question((values) => parameters.go({ ...values, ...reset }), left.field, left.textField, submit("Compare"), field("Second model", second)));
  const unit = parameters.text("unit", "words");
  const columns = SIDES.map((side) => h("section", { class: "half", "aria-label": `On the ${side}: ${chosen[side]}` }));
  root.append(h("div", { class: "halves" }, columns));
  const same = chosen.left === chosen.right;
  const drawn = SIDES.map((side, index) => drawSide(columns[index], parameters, api, models.find((one) => one.id === chosen[side]), side, { ...readBy(left), unit }, same));
  await Promise.all(drawn);
}

async function drawSide(column, parameters, api, model, side, reading, same) {
  const request = { ...reading, model: model.id };
  const heading = h("h2", {}, model.id, " ", h("small", {}, model.task));
  put(column, heading, h("p", { class: "status" }, "computing…"));
  let result;
  try {
    ({ result } = await api.ask("ui/attention", request));
  } catch (error) {
    put(column, heading);
    if (error.name === "AbortError") throw error;
    column.append(h("p", { class: "error", role: "alert" }, error.message));
    return;
  }
  const kinds = kindsOf(result);
  const key = (name) => `${side}_${name}`;
  const kind = kinds.includes(parameters.text(key("kind"))) ? parameters.text(key("kind")) : mainKind(result);
  const layers = result.layers.filter((one) => one.kind === kind);
  const usual = same && side === "right" ? layers.at(-1) : layers[0];
  const layer = layers.find((one) => one.layer === parameters.number(key("layer"))) ?? usual;
  const head = layer.heads.includes(parameters.number(key("head"))) ? parameters.number(key("head")) : null;
  const change = (name) => (value) => parameters.go({ [key(name)]: value, ...(name === "kind" && { [key("layer")]: null, [key("head")]: null }) });
  const heads = [["", "mean of all heads"], ...layer.heads.map((one) => [one, `head ${one}`])];
  const settings = h(
    "div",
    { class: "controls" },
    kinds.length > 1 && field("Attention", choice(key("kind"), kinds.map((one) => [one, kindName(one)]), kind, change("kind"))),
    field("Layer", choice(key("layer"), layers.map((one) => one.layer), layer.layer, change("layer"))),
    field("Head", choice(key("head"), heads, head ?? "", change("head"))),
    unitOf(parameters, result),
  );
  const answer = await answerOf(api, request, result.answer);
  const place = h("div");
  put(column, heading, answer, settings, place);
  const row = { at: parameters.index(key("row")), chosen: (at) => parameters.set({ [key("row")]: at }) };
  await drawMap(place, api, { ...request, kind, layer: layer.layer, ...(head && { head }) }, row);
}

async function answerOf(api, { unit, ...request }, known) {
  const said = known || (await api.ask("ui/masked_heads", request)).result.with_all?.text;
  return said ? h("p", {}, "Answer: ", h("b", {}, said)) : null;
}

// row: the one of the address, and what stores another one there.
async function drawMap(place, api, asked, row) {
  const { result } = await api.ask("ui/head", asked);
  const { queries, keys } = result;
  const matrix = roots(result.roots);
  const most = h("p", { role: "status", class: "note" });
  const say = (at) => {
    const weights = keys.map((token, column) => [matrix.weight(at * keys.length + column), token]).sort((one, other) => other[0] - one[0]);
    const best = weights.slice(0, 4).map(([weight, token]) => `${isolated(clipped(shown(token), 20))} ${probability(weight)}`);
    put(most, `“${isolated(clipped(shown(queries[at]), 20))}” attends most to: ${best.join(", ")}.`);
  };
  const follow = (at) => (row.chosen(at), say(at));
  if (row.at !== null && row.at < queries.length) say(row.at);
  const name = `${asked.model}, layer ${asked.layer}, ${asked.head ? `head ${asked.head}` : "mean of the heads"}`;
  put(place, map({ matrix, queries, keys }, name, true, follow), most);
}
