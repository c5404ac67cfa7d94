// Calls to the server. An error has the words of the library.

const LOADING = 700; // milliseconds until a server that loads its models is asked again

export class ApiError extends Error {
  constructor(message, status, param) {
    super(message);
    this.status = status;
    this.param = param; // the field of the request that is wrong
  }
}

export const OVERTAKEN = Symbol("overtaken");

/** The same calls; the answer to one that was followed by another is OVERTAKEN, and its error is dropped. */
export function latest(call) {
  let last = 0;
  return async (...given) => {
    const turn = ++last;
    try {
      const answer = await call(...given);
      return turn === last ? answer : OVERTAKEN;
    } catch (error) {
      if (turn === last) throw error;
      return OVERTAKEN;
    }
  };
}

export class Api {
  #signal;

  /** signal: ends the calls of a view when another one is shown. */
  constructor(signal) {
    this.#signal = signal;
  }

  /** The models that are served: [{id, task, routes}]. */
  async models() {
    return (await this.get("v1/models")).data;
  }

  /** The answer to a request by GET. */
  get(path) {
    return this.#answer(path, {});
  }

  /** The answer to a request by POST, such as ask("translate", {model, texts}). */
  ask(path, fields) {
    const body = JSON.stringify(fields);
    return this.#answer(path, { method: "POST", body, headers: { "Content-Type": "application/json" } });
  }

  async #answer(path, options) {
    const response = await fetch(path, { ...options, signal: this.#signal }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server does not answer. Is it still running?", 0);
    });
    const value = await response.json().catch(() => null);
    if (response.ok && value !== null) return value;
    const error = value?.error;
    if (error?.code === "loading") {
      await new Promise((wake) => setTimeout(wake, LOADING));
      return this.#answer(path, options);
    }
    throw new ApiError(error?.message ?? `The server answered ${response.status}.`, response.status, error?.param);
  }
}
