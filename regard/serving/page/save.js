// A drawn view as one HTML file, which needs no server, no script and no network.

import { h } from "./dom.js";

const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

const STYLE = fetch("page/style.css").then((response) => response.text()); // the server may stop later

/** Save what a view has drawn under its title. */
export async function save(root, title, name) {
  const style = await STYLE;
  // As text: the policy of this page holds for documents that it makes, and forbids their styles.
  const text = documentOf(root, title).outerHTML.replace("</head>", () => `<style>${style}</style></head>`);
  const link = h("a", { href: URL.createObjectURL(new Blob(["<!doctype html>\n", text, "\n"], { type: "text/html" })), download: `${name}.html` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The document of a saved view, without its style.
function documentOf(root, title) {
  const page = document.implementation.createHTMLDocument(title).documentElement;
  const meta = (attributes) => h("meta", attributes);
  const head = page.querySelector("head");
  head.prepend(meta({ charset: "utf-8" }), meta({ "http-equiv": "Content-Security-Policy", content: POLICY }));
  head.append(meta({ name: "viewport", content: "width=device-width, initial-scale=1" }));
  head.append(meta({ name: "color-scheme", content: "light dark" }));
  page.setAttribute("lang", "en");
  page.querySelector("body").append(h("main", { class: "saved" }, h("h1", {}, title), still(root)));
  return page;
}

// A copy without what needs a script: controls become their values, a canvas becomes an image.
function still(root) {
  const copy = root.cloneNode(true);
  const pairs = (selector) => {
    const copies = copy.querySelectorAll(selector);
    return [...root.querySelectorAll(selector)].map((one, index) => [one, copies[index]]);
  };
  for (const [canvas, other] of pairs("canvas")) {
    const image = h("img", { src: canvas.toDataURL(), alt: canvas.getAttribute("aria-label") ?? "", class: canvas.className });
    for (const side of ["width", "height"]) image.style[side] = canvas.style[side];
    other.replaceWith(image);
  }
  for (const [control, other] of pairs("select, textarea, input")) other.replaceWith(h("span", { class: "value" }, valueOf(control)));
  for (const label of copy.querySelectorAll("label")) label.removeAttribute("for");
  for (const one of copy.querySelectorAll("button.main, .only-live, [hidden]")) one.remove();
  for (const one of copy.querySelectorAll("button")) {
    const pressed = one.getAttribute("aria-pressed") === "true" ? " on" : "";
    one.replaceWith(h("span", { class: one.className + pressed, title: one.title || null }, ...one.childNodes));
  }
  for (const link of copy.querySelectorAll("a[href]")) link.replaceWith(...link.childNodes);
  for (const form of copy.querySelectorAll("form")) form.replaceWith(h("div", { class: form.className }, ...form.childNodes));
  for (const one of copy.querySelectorAll("[tabindex]")) if (!one.classList.contains("scrolls")) one.removeAttribute("tabindex");
  return copy;
}

function valueOf(control) {
  if (control.type === "checkbox") return control.checked ? "yes" : "no";
  return control.tagName === "SELECT" ? control.selectedOptions[0]?.textContent ?? "" : control.value;
}
