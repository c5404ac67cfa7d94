// Shows the view that the address names, and draws it again when the address or the colours change.

import { Api, ApiError } from "./api.js";
import { button } from "./controls.js";
import { focused, h, put } from "./dom.js";
import { Parameters } from "./parameters.js";
import { save } from "./save.js";
import { views } from "./views/index.js";

const main = document.querySelector("#main");
const FIRST = views.keys().next().value;
let leave = () => {};
let shownView = null;

/** The view of the address: its name and its parameters. */
function asked() {
  const [, name, query] = /^#([^?]*)\??(.*)$/s.exec(location.hash) ?? [null, "", ""];
  return views.has(name) ? new Parameters(name, query) : new Parameters(FIRST, "");
}

async function show() {
  leave();
  const parameters = asked();
  const view = views.get(parameters.view);
  const leaving = new AbortController();
  leave = () => leaving.abort();
  const title = h("h1", { tabindex: "-1" }, view.title);
  const root = h("div", { class: "view" });
  const keep = button("Save as one HTML file", () => save(root, document.title, parameters.view), { class: "save" });
  const status = h("p", { class: "status", role: "status" });
  const focus = focused(main);
  put(main, h("div", { class: "heading" }, title, keep), status, root);
  document.title = `${view.title} · Regard`;
  drawNavigation(parameters);
  if (shownView !== null && shownView !== parameters.view) title.focus();
  shownView = parameters.view;
  const slow = setTimeout(() => put(status, "computing…"), 250);
  main.setAttribute("aria-busy", "true");
  try {
    await view.render(root, parameters, new Api(leaving.signal), views);
  } catch (error) {
    if (leaving.signal.aborted) return;
    root.append(h("p", { role: "alert", class: "error" }, error.message));
    const later = error.status === 0 || error.status >= 500; // a server that was stopped may be started again
    if (later) root.append(h("p", { class: "only-live" }, button("Try again", show)));
    if (error.status === undefined) throw error;
  } finally {
    clearTimeout(slow);
    if (!leaving.signal.aborted) {
      put(status);
      main.removeAttribute("aria-busy");
      focus(main);
    }
  }
}

// The views, with the model and the text of the one that is shown.
function drawNavigation(parameters) {
  const kept = {};
  for (const key of ["model", "text"]) kept[key] = parameters.text(key);
  const links = [...views].map(([name, { title }]) =>
    h("a", { href: new Parameters(name, "").address(kept), "aria-current": name === parameters.view && "page" }, title),
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
