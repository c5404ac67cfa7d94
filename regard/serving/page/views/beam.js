// A beam search as a growing tree: what was tried at each step, what was kept, and what won.

import { button, chosenModel, exampleOf, field, numberInput, question, slider, submit, unitChoice } from "../controls.js";
import { clipped, h, put, shown, svg } from "../dom.js";
import { table } from "../tables.js";

export const title = "Beam search";
export const route = "/ui/beam";
export const about = "Beam search as a growing tree of tokens.";
const [COLUMN, LINE, BOX] = [142, 24, 114];

export async function preview(box, model, api) {
  const asked = await exampleOf(api, model, true);
  const { result } = await api.ask("ui/beam", { ...asked, beams: 3, max_tokens: 3 });
  put(box, tree(withDepth(result, "text"), { step: 3, pruned: true }));
}

export async function render(root, parameters, api) {
  const model = await chosenModel(root, parameters, api, route, true);
  if (!model) return;
  const { text } = model;
  const [beams, tokens] = [parameters.number("beams", 3), parameters.number("max_tokens", 12)];
  root.append(
    question(
      ({ text, beams, max_tokens }) => parameters.go({ model: model.name, text, beams, max_tokens, step: null }),
      ...[model.field, model.textField, submit("Search")],
      field("Beams", numberInput("beams", beams, { min: 2, max: 12 })),
      field("Tokens, at most", numberInput("max_tokens", tokens, { min: 1, max: 80 })),
      unitChoice("Show tokens as", parameters, {}, [["words", "text"], ["tokens", "vocabulary entries"]]),
    ),
  );
  const { result } = await api.ask("ui/beam", { model: model.name, texts: text, beams, max_tokens: tokens });
  const nodes = withDepth(result, parameters.text("unit") === "tokens" ? "token" : "text");
  const last = Math.max(...nodes.map((one) => one.depth));
  const picture = h("div", { class: "scrolls tree", tabindex: "0", role: "region", "aria-label": "Tree of the search" });
  const state = { step: Math.min(last, parameters.index("step", last)), pruned: parameters.text("pruned") !== "no" };
  const draw = () => {
    put(picture, tree(nodes, state));
    put(count, `${state.step} of ${last}`);
    range.value = state.step;
  };
  const go = (step) => {
    state.step = step;
    parameters.set({ step: step === last ? null : step });
    draw();
  };
  const count = h("output", { class: "only-live" });
  const range = slider("step", state.step, { min: 0, max: last, step: 1 }, go);
  const box = h("input", { type: "checkbox", name: "pruned", checked: state.pruned });
  box.addEventListener("change", () => {
    state.pruned = box.checked;
    parameters.set({ pruned: box.checked ? null : "no" });
    draw();
  });
  root.append(
    h("div", { class: "controls" }, h("div", { class: "slid" }, field("Step", range), count), player(state, last, go), field("Show pruned tokens", box)),
    picture,
    h("p", { class: "note" }, "Each box is a token, with the log-probability of the text up to it. Thick: the best hypothesis; with a square: finished; dashed: pruned, since others were more probable."),
    hypotheses(result),
  );
  draw();
  picture.scrollTop = picture.querySelector(".node").getBBox().y - picture.clientHeight / 2; // the start
}

function player(state, last, go) {
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    put(play, "Play");
  };
  const play = button("Play", () => {
    if (timer !== null) return stop();
    if (state.step === last) go(0);
    put(play, "Pause");
    timer = setInterval(() => {
      if (!play.isConnected || state.step >= last) return stop();
      go(state.step + 1);
    }, 700);
  }, { class: "only-live" });
  return play;
}

// name: of the field of a node that is shown.
function withDepth(result, name) {
  const winning = new Set(result.winning);
  const nodes = result.nodes.map((one, index) => ({ ...one, token: one[name], index, wins: winning.has(index), children: [], depth: 0 }));
  for (const one of nodes) {
    if (one.parent === null) continue;
    one.depth = nodes[one.parent].depth + 1;
    nodes[one.parent].children.push(one);
  }
  return nodes;
}

// Leaves take a line each; a parent stands in the middle of its children. Places do not change with
// the step, so that the tree grows and nothing jumps.
function tree(nodes, { step, pruned }) {
  const there = (one) => pruned || one.state !== "pruned" || one.wins;
  const order = [];
  const pending = [nodes[0]];
  while (pending.length) {
    const one = pending.pop();
    order.push(one);
    pending.push(...one.children.filter(there).sort((a, b) => a.log_prob - b.log_prob));
  }
  let free = 0;
  for (const one of order.reverse()) {
    const below = one.children.filter(there).map((child) => child.y);
    one.y = below.length ? (Math.min(...below) + Math.max(...below)) / 2 : free++;
  }
  const lines = [];
  const boxes = [];
  for (const one of order.reverse()) {
    if (one.depth > step) continue;
    const [x, y] = place(one, free);
    const state = one.wins ? "winner" : one.state;
    if (one.parent !== null) {
      const [fromX, fromY] = place(nodes[one.parent], free);
      const middle = (fromX + BOX + x) / 2;
      lines.push(svg("path", { d: `M${fromX + BOX} ${fromY} C${middle} ${fromY} ${middle} ${y} ${x} ${y}`, class: `edge ${state}` }));
    }
    boxes.push(box(one, x, y, state));
  }
  const width = (Math.max(...order.map((one) => one.depth)) + 1) * COLUMN + 4;
  const height = free * LINE + 8;
  const name = `Tree with ${boxes.length} tokens after step ${step}`;
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name }, lines, boxes);
}

const place = (one, lines) => [one.depth * COLUMN + 2, (lines - 1 - one.y + 0.5) * LINE + 4];

function box(one, x, y, state) {
  const hint = `${one.token}: log-probability ${one.log_prob.toFixed(4)}, ${state}`;
  return svg(
    "g",
    { class: `node ${state}` },
    svg("title", {}, hint),
    svg("rect", { x, y: y - 9, width: BOX, height: 18, rx: one.state === "finished" ? 0 : 4 }),
    svg("text", { x: x + 5, y, "dominant-baseline": "central" }, clipped(shown(one.token), 8) + (one.state === "finished" ? " ■" : "")),
    svg("text", { x: x + BOX - 4, y, "text-anchor": "end", "dominant-baseline": "central", class: "small" }, one.depth ? one.log_prob.toFixed(2) : ""),
  );
}

function hypotheses(result) {
  const rows = result.hypotheses.map((one, at) => ({ cells: [at + 1, one.text, one.score.toFixed(4), one.log_prob.toFixed(4)], marked: at === 0 }));
  return h("div", {}, h("h2", {}, "Hypotheses"), table("Hypotheses", ["", "Text", "Score", "Log-probability"], rows));
}
