// The state of a view, which stands in its address: #NAME?key=value. An address can be shared.

export class Parameters {
  constructor(view, query) {
    this.view = view;
    this.values = new URLSearchParams(query);
  }

  /** The text of a key. */
  text(key, otherwise = "") {
    return this.values.get(key) ?? otherwise;
  }

  /** The number of a key; `otherwise` where it is missing or no number. */
  number(key, otherwise = null) {
    const given = this.values.get(key);
    const value = given === null || given.trim() === "" ? NaN : Number(given);
    return Number.isFinite(value) ? value : otherwise;
  }

  /** The whole number of a key, at least 0; `otherwise` where it is missing or another one. */
  index(key, otherwise = null) {
    const value = this.number(key);
    return Number.isInteger(value) && value >= 0 ? value : otherwise;
  }

  /** Whether the address has a key. */
  has(key) {
    return this.values.has(key);
  }

  /** Change the address and draw nothing: {head: 3, token: null}; null and "" remove a key. */
  set(changes) {
    this.#change(changes);
    history.replaceState(null, "", this.address());
  }

  /** Change the address and draw the view again; "back" of the browser returns. */
  go(changes) {
    this.#change(changes);
    const before = location.hash;
    location.hash = this.address();
    if (location.hash === before) window.dispatchEvent(new HashChangeEvent("hashchange"));
  }

  /** Draw the view with these values alone. */
  start(values) {
    this.values = new URLSearchParams();
    this.go(values);
  }

  /** The address, with other values where `changes` has some. */
  address(changes = {}) {
    const other = new Parameters(this.view, this.values);
    other.#change(changes);
    const query = other.values.toString();
    return `#${this.view}${query ? "?" + query : ""}`;
  }

  #change(changes) {
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") this.values.delete(key);
      else this.values.set(key, value);
    }
  }
}
