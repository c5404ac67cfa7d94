// Elements. Whatever a model or a file says becomes a text node or the value of an attribute;
// nothing is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/** h("label", {for: "text"}, "Text", child): an element of HTML. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** svg("rect", {x: 1, width: 8}): an element of SVG. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// An attribute that begins with "on" is a listener; `style` is an object, which a strict policy
// allows; true is an empty attribute; false, null and undefined are none.
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** Replace what an element contains; what had the focus has it again, if it is there again. */
export function put(element, ...children) {
  const find = focused(element);
  element.replaceChildren(...children.flat().filter((child) => child != null && child !== false));
  find(element);
  return element;
}

const CONTROLS = "a, button, input, select, textarea, summary, [tabindex]";

/**
 * What gives the focus back to the control within an element that has it, when others like it have taken their places:
 * to the one of the same kind and name.
 */
export function focused(element) {
  const one = document.activeElement;
  if (one === element || !element.contains(one)) return () => {};
  const [name, at] = [named(one), like(element, named(one)).indexOf(one)];
  return (now) => {
    if (document.activeElement !== document.body) return; // the reader has gone on
    const found = like(now, name);
    (found[at] ?? found.at(-1))?.focus({ preventScroll: true });
  };
}

const named = (one) => `${one.tagName} ${one.getAttribute("name") || one.textContent}`;
const like = (element, name) => [...element.querySelectorAll(CONTROLS)].filter((one) => named(one) === name);

/** A token as it is shown: spaces, line ends and what changes the direction of text have signs. */
export function shown(token) {
  const signs = token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
  return signs.replace(/[\p{Cc}\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/** A text whose direction does not change the order of what stands beside it, where both are one text. */
export const isolated = (text) => `\u2068${text}\u2069`;

/** A text that has at most so many characters. */
export function clipped(text, most) {
  const letters = [...text];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text;
}

/** A probability or weight in four decimals; a smaller one with its exponent. */
export function probability(value) {
  if (value === 0 || value >= 0.00005) return value.toFixed(4);
  return value.toExponential(1);
}

/** The value of a custom property of the style sheet, such as "accent". */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The bytes that base64 codes. */
export function bytesOf(coded) {
  const text = atob(coded);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
