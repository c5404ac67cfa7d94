// The lectures' examples, one page each; the server computes their pictures.

import { controls, field, numberInput } from "../controls.js";
import { h, put } from "../dom.js";
import { Parameters } from "../parameters.js";
import { paragraphs, picture } from "../picture.js";

export const title = "Lessons";
export const route = null;
export const about = "Short explanations, each with a picture that is computed.";

export const there = async () => true;

export async function preview(box, model, api) {
  put(box, picture((await api.ask("ui/lesson", { name: "positions" })).picture));
}

export async function render(root, parameters, api, views) {
  const { lessons } = await api.ask("ui/lessons", {});
  const names = lessons.map((one) => one.name);
  const name = parameters.text("lesson");
  if (!name) return drawList(root, lessons);
  const at = names.indexOf(name);
  const page = h("div");
  root.append(h("p", { class: "only-live" }, h("a", { href: "#lessons" }, "All lessons"), neighbours(lessons, at)), page);
  await draw(page, parameters, api, views, name);
}

function drawList(root, lessons) {
  const links = lessons.map((one) => h("li", {}, h("a", { href: linkTo(one.name) }, one.title)));
  root.append(
    h("p", {}, "Each lesson explains one idea in a few sentences, with a picture that this server computes and numbers that you can change. Most link to a view that shows the same in a model."),
    h("ol", { class: "lessons" }, links),
  );
}

const linkTo = (lesson) => new Parameters("lessons", "").address({ lesson });

function neighbours(lessons, at) {
  const link = (one, mark) => one && h("span", {}, " · ", h("a", { href: linkTo(one.name) }, mark(one.title)));
  return [link(lessons[at - 1], (text) => `← ${text}`), link(lessons[at + 1], (text) => `${text} →`)].filter((one) => one && at >= 0);
}

async function draw(page, parameters, api, views, name) {
  const given = {};
  for (const key of parameters.values.keys()) {
    if (!["lesson", "model", "text"].includes(key)) given[key] = parameters.number(key, parameters.text(key));
  }
  const lesson = await api.ask("ui/lesson", { name, numbers: given });
  const place = h("div", { class: "pictures" }, picture(lesson.picture));
  const problem = h("p", { role: "status", class: "note" });
  let asked = 0;
  const change = async (values) => {
    const turn = ++asked;
    try {
      const next = await api.ask("ui/lesson", { name, numbers: values });
      if (turn !== asked) return;
      put(place, picture(next.picture));
      put(problem);
      const changed = lesson.controls.filter((one) => values[one.name] !== one.default);
      parameters.set({ ...Object.fromEntries(lesson.controls.map((one) => [one.name, null])), ...Object.fromEntries(changed.map((one) => [one.name, values[one.name]])) });
    } catch (error) {
      if (error.name !== "AbortError" && turn === asked) put(problem, error.message);
    }
  };
  const links = await modelLinks(api, views, lesson.links);
  put(
    page,
    h("h2", {}, lesson.title),
    h("div", { class: "prose" }, paragraphs(lesson.text)),
    lesson.controls.length > 0 && numbersOf(lesson, change),
    problem,
    place,
    lesson.tasks.length > 0 && [h("h3", {}, "To try"), h("ol", {}, lesson.tasks.map((task) => h("li", {}, task)))],
    links.length > 0 && [h("h3", { class: "only-live" }, "In a model"), h("ul", { class: "only-live" }, links)],
  );
}

function numbersOf(lesson, change) {
  const fields = lesson.controls.map((one) => {
    const { name, label, low: min, high: max, step } = one;
    return field(label, numberInput(name, lesson.numbers[name], { min, max, step, required: true }), `${min} to ${max}`);
  });
  const form = controls(() => {}, ...fields);
  form.addEventListener("input", () => {
    const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, Number(value)]));
    if (form.checkValidity()) change(values);
    else form.reportValidity();
  });
  return form;
}

// For each link the models that are served and have such a view.
async function modelLinks(api, views, links) {
  if (!links.length) return [];
  const models = await api.models();
  return links.map(({ view, label, route, parameters }) => {
    const fit = views.has(view) ? models.filter((one) => one.routes.includes(route)) : [];
    const to = fit.map((one) => h("a", { class: "chip", href: new Parameters(view, "").address({ model: one.id, ...parameters }) }, one.id));
    return h("li", {}, `${label}: `, to.length ? to : "no model on this server has this view.");
  });
}
