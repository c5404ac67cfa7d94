// The models that are served, and the views that each has.

import { h } from "../dom.js";
import { Parameters } from "../parameters.js";
import { table } from "../tables.js";

export const title = "Models";
export const route = null;

export async function render(root, parameters, api, views) {
  const shown = [...views].filter(([, view]) => view.route !== null);
  const links = (model) =>
    shown
      .filter(([, view]) => model.routes.includes(view.route))
      .map(([name, view]) => h("a", { class: "chip", href: new Parameters(name, "").address({ model: model.id }) }, view.title));
  const rows = (await api.models()).map((one) => ({ cells: [h("b", {}, one.id), one.task, links(one)] }));
  root.append(
    h("p", {}, "The models on this server, and the views that can show each. The address of a view contains all choices: share it to show others the same."),
    table("Models", ["Model", "Task", "Views"], rows),
  );
}
