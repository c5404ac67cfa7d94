// Shows the view that the address names, and draws it again when the address or the colours change.

import { Api, ApiError } from "./api.js";
import { button } from "./controls.js";
import { focused, h, put } from "./dom.js";
import { Parameters } from "./parameters.js";
import { save } from "./save.js";
import { views } from "./views/index.js";

const main = document.querySelector("#main");
const FIRST = views.keys().next().value;
const SLOW = 250; // milliseconds until a view that is awaited is announced, and the one before is dimmed
const title = h("h1", { tabindex: "-1" });
const status = h("p", { class: "status", role: "status" });
let root = h("div", { class: "view" });
let leave = () => {};
let shownView = null;

const keep = button("Save as HTML", () => save(root, document.title, shownView), { class: "save" });
main.append(h("div", { class: "heading" }, title, status, keep), root);

/** The view of the address: its name and its parameters. */
function asked() {
  const [, name, query] = /^#([^?]*)\??(.*)$/s.exec(location.hash) ?? [null, "", ""];
  return views.has(name) ? new Parameters(name, query) : new Parameters(FIRST, "");
}

// The view before stays until the next one is drawn, so that the page neither empties nor scrolls meanwhile.
async function show() {
  leave();
  const parameters = asked();
  const view = views.get(parameters.view);
  const leaving = new AbortController();
  leave = () => leaving.abort();
  put(title, view.title);
  document.title = `${view.title} · Regard`;
  drawNavigation(parameters);
  const moved = shownView !== null && shownView !== parameters.view;
  if (moved) title.focus();
  const before = root;
  const next = h("div", { class: shownView === null ? "view" : "view awaited" });
  main.append(next);
  const slow = setTimeout(() => (put(status, "computing…"), before.classList.add("left")), SLOW);
  main.setAttribute("aria-busy", "true");
  try {
    await view.render(next, parameters, new Api(leaving.signal), views);
  } catch (error) {
    if (leaving.signal.aborted) return;
    next.append(h("p", { role: "alert", class: "error" }, error.message));
    const later = error.status === 0 || error.status >= 500; // a server that was stopped may be started again
    if (later) next.append(h("p", { class: "only-live" }, button("Try again", show)));
    if (error.status === undefined) throw error;
  } finally {
    clearTimeout(slow);
    if (leaving.signal.aborted) next.remove();
    else swap(before, next, parameters, moved);
  }
}

function swap(before, next, parameters, moved) {
  const focus = focused(main);
  before.remove();
  next.classList.remove("awaited");
  [root, shownView] = [next, parameters.view];
  put(status);
  main.removeAttribute("aria-busy");
  if (moved) scrollTo(0, 0);
  focus(main);
}

// The views, with the model and the text of the one that is shown.
function drawNavigation(parameters) {
  const kept = {};
  for (const key of ["model", "text"]) kept[key] = parameters.text(key);
  const links = [...views].map(([name, view]) =>
    h("a", { href: new Parameters(name, "").address(kept), "aria-current": name === parameters.view && "page" }, view.title),
  );
  put(document.querySelector("#views"), links);
}

// Errors of what was pressed in a view: of a server that has stopped, for instance.
window.addEventListener("unhandledrejection", (event) => {
  const error = event.reason;
  const left = error?.name === "AbortError"; // another view is shown
  if (left || error instanceof ApiError) event.preventDefault();
  if (!left && error instanceof Error) put(document.querySelector("#main .status"), h("span", { role: "alert" }, error.message));
});
main.addEventListener("click", () => document.querySelector("#main .status [role=alert]")?.remove(), true);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address keeps the view
  main.focus();
});
window.addEventListener("hashchange", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
show();
