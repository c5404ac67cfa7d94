// Two models, or two layers of one, side by side on one text: their attention and their answers.

import { choice, controls, field, submit, textArea } from "../controls.js";
import { clipped, h, isolated, probability, put, shown } from "../dom.js";
import { kindName, kindsOf } from "../heads.js";
import { roots } from "../heat.js";
import { LONG, map } from "./attention.js";

export const title = "Side by side";
export const route = "/ui/attention";
const EXAMPLE = "The animal didn't cross the street because it was too tired.";
const SIDES = ["left", "right"];

export async function render(root, parameters, api) {
  const models = (await api.models()).filter((one) => one.routes.includes(route));
  if (!models.length) {
    root.append(h("p", { class: "empty" }, "No model on this server can be shown in this view."));
    return;
  }
  const names = models.map((one) => one.id);
  const first = names.includes(parameters.text("model")) ? parameters.text("model") : names[0];
  const asked = { left: parameters.text("left", first), right: parameters.text("right", names.find((one) => one !== first) ?? first) };
  const chosen = Object.fromEntries(SIDES.map((side) => [side, names.includes(asked[side]) ? asked[side] : names[0]]));
  const text = parameters.text("text", EXAMPLE);
  root.append(
    controls(
      (values) => parameters.go({ ...values, ...Object.fromEntries(SIDES.map((side) => [`${side}_row`, null])) }),
      ...SIDES.map((side) => field(`Model on the ${side}`, choice(side, names, chosen[side]))),
      ...[field("Text", textArea("text", text)), submit("Compare")],
    ),
  );
  const columns = SIDES.map((side) => h("section", { class: "half", "aria-label": `On the ${side}: ${chosen[side]}` }));
  root.append(h("div", { class: "halves" }, columns));
  const same = chosen.left === chosen.right;
  const drawn = SIDES.map((side, index) => drawSide(columns[index], parameters, api, models.find((one) => one.id === chosen[side]), side, text, same));
  await Promise.all(drawn);
}

async function drawSide(column, parameters, api, model, side, text, same) {
  const request = { model: model.id, texts: text };
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
  const kind = kinds.includes(parameters.text(key("kind"))) ? parameters.text(key("kind")) : kinds.includes("cross") ? "cross" : kinds[0];
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
  );
  const answer = await answerOf(api, request, result.answer);
  const place = h("div");
  put(column, heading, answer, settings, place);
  const row = { at: parameters.index(key("row")), chosen: (at) => parameters.set({ [key("row")]: at }) };
  await drawMap(place, api, { ...request, kind, layer: layer.layer, ...(head && { head }) }, row);
}

async function answerOf(api, request, known) {
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
  put(place, map({ matrix, queries, keys }, name, keys.length > LONG, follow), most);
}
