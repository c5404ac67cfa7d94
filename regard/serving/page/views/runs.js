// Runs while they train: their curves, drawn again as they grow; and tables of comparisons.

import { h, put } from "../dom.js";
import { picture } from "../picture.js";
import { table } from "../tables.js";

export const title = "Runs";
export const route = null;
export const about = "The learning curves of trainings, also while they run.";
const EVERY = 2000; // ms between two looks at a run that trains
const QUIET = 120; // s after which a run without a result is said to be quiet

export const there = async (api) => (await api.ask("ui/runs", {})).runs.length > 0;

export async function preview(box, model, api) {
  const { runs } = await api.ask("ui/runs", {});
  put(box, picture((await api.ask("ui/curves", { name: runs[0].name })).picture));
}

export async function render(root, parameters, api) {
  const { runs, comparisons } = await api.ask("ui/runs", {});
  if (!runs.length && !comparisons.length) {
    root.append(
      h("p", { class: "empty" }, "There are no runs to show. The command names the folders in which they are: ", h("code", {}, "regard serve --ui MODEL --runs runs")),
    );
    return;
  }
  const run = parameters.text("run");
  const comparison = parameters.text("comparison");
  const chosen = h("div");
  root.append(chosen, lists(parameters, runs, comparisons));
  if (comparison) await drawComparison(chosen, api, comparison);
  else if (run) await follow(chosen, api, run);
}

function lists(parameters, runs, comparisons) {
  const link = (key, name) => h("a", { href: parameters.address({ run: null, comparison: null, [key]: name }) }, name);
  const rows = runs.map((one) => ({ cells: [link("run", one.name), stateOf(one), scoresOf(one)], marked: one.name === parameters.text("run") }));
  return h(
    "div",
    {},
    comparisons.length > 0 && [h("h2", {}, "Comparisons"), h("ul", {}, comparisons.map((name) => h("li", {}, link("comparison", name))))],
    runs.length > 0 && [h("h2", {}, "All runs"), table("Runs", ["Run", "State", "Scores"], rows)],
  );
}

function stateOf({ ended, quiet }) {
  if (ended !== null) return `ended: ${ended}`;
  return quiet < QUIET ? "training" : `nothing written for ${duration(quiet)}`;
}

function duration(seconds) {
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

const scoresOf = ({ scores }) =>
  Object.entries(scores ?? {})
    .map(([name, value]) => `${name} ${value.toPrecision(4)}`)
    .join(", ");

// Draws a run; then again, beside what else the view does, when it has written more.
async function follow(root, api, name) {
  const state = h("p", { role: "status" });
  const place = h("div", { class: "charts" });
  put(root, h("h2", {}, name), state, place);
  let drawn = null;
  const draw = async () => {
    const run = await api.ask("ui/curves", { name });
    put(state, [stateOf(run), lastOf(run.last), scoresOf(run)].filter(Boolean).join(" · "));
    const written = JSON.stringify(run.last);
    if (written !== drawn) put(place, run.picture.parts.length ? picture(run.picture) : "Nothing has been written yet.");
    drawn = written;
    return run;
  };
  const first = await draw();
  const said = (error) => put(state, error.message); // a server that was stopped may be started again
  if (first.ended === null) again(root, () => draw().catch(said), first.quiet);
}

// Draws until the run ends or another view is shown; a run that is quiet is asked less often.
async function again(root, draw, quiet) {
  while (await later(root, quiet < QUIET ? 1 : 5)) {
    const run = await draw();
    if (run.ended) return;
    quiet = run.quiet ?? 0;
  }
}

// Whether the view is still shown after a while; a page that nobody sees asks for nothing.
async function later(root, times) {
  for (let i = 0; i < times || document.hidden; i++) {
    await new Promise((done) => setTimeout(done, EVERY));
    if (!root.isConnected) return false;
  }
  return true;
}

function lastOf(last) {
  const counts = ["step", "epoch"].filter((name) => last[name] !== undefined);
  return counts.map((name) => `${name} ${Number(last[name]).toLocaleString("en")}`).join(", ");
}

async function drawComparison(root, api, name) {
  const found = await api.ask("ui/comparison", { name });
  put(root, h("h2", {}, name), h("p", {}, `The best by ${found.quality}: `, h("b", {}, found.best), "."), h("div", { class: "charts" }, found.pictures.map(picture)));
}
