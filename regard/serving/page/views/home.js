// What there is to see: a card with a small picture for each view, drawn by the models that are served.

import { h, put } from "../dom.js";
import { Parameters } from "../parameters.js";

export const title = "Home";
export const route = null;

export async function render(root, parameters, api, views) {
  const models = await api.models();
  const cards = [];
  const absent = [];
  for (const [name, view] of views) {
    if (!view.about) continue;
    const able = models.filter((one) => one.routes.includes(view.route));
    const there = view.there ? await view.there(api) : able.length > 0;
    if (there) cards.push(card(name, view, able, api));
    else absent.push(view);
  }
  const said = models.map((one) => [h("b", {}, one.id), ` ${one.task}`]);
  root.append(
    h("p", { class: "served" }, models.length ? "Models: " : "No model is served.", said.flatMap((one, at) => (at ? [" · ", ...one] : one))),
    h("div", { class: "cards" }, cards.map((one) => one.element)),
    absent.length > 0 && h("p", { class: "note" }, "Not for what is served here: ", absent.map((one) => h("span", { class: "absent" }, h("b", {}, one.title), ` ${one.about}`))),
  );
  await Promise.all(cards.map((one) => one.drawn()));
}

// A card, and what draws its picture.
function card(name, view, models, api) {
  const box = h("div", { class: "preview", "aria-hidden": "true", inert: true });
  const link = (model, text) => h("a", { href: new Parameters(name, "").address(model ? { model: model.id } : {}) }, text);
  const others = models.length > 1 && h("p", { class: "others" }, models.map((one) => link(one, one.id)));
  const element = h("article", { class: "card" }, box, h("h2", {}, link(null, view.title)), h("p", {}, view.about), others);
  const drawn = () => view.preview?.(box, models[0], api).catch((error) => put(box, h("p", { class: "note" }, error.message)));
  return { element, drawn };
}
