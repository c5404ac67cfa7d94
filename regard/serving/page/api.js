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

const known = new Map(); // what a server says once: its models and their examples

export class Api {
  #signal;

  /** signal: ends the calls of a view when another one is shown. */
  constructor(signal) {
    this.#signal = signal;
  }

  /** The models that are served: [{id, task, routes}]. */
  async models() {
    return (await once("v1/models", {})).data;
  }

  /** Texts for a model: {own, texts}; `own`: they are of its validation data; a text is one string, or two of a pair. */
  examples(model) {
    return once("ui/examples", posted({ model }));
  }

  /** The answer to a request by POST, such as ask("translate", {model, texts}). */
  ask(path, fields) {
    return answer(path, { ...posted(fields), signal: this.#signal });
  }
}

const posted = (fields) => ({ method: "POST", body: JSON.stringify(fields), headers: { "Content-Type": "application/json" } });

// No view ends these calls, since others wait for the same answer.
async function once(path, options) {
  const key = path + (options.body ?? "");
  if (!known.has(key)) known.set(key, answer(path, options));
  try {
    return await known.get(key);
  } catch (error) {
    known.delete(key); // asked again by the next view
    throw error;
  }
}

async function answer(path, options) {
  const response = await fetch(path, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?", 0);
  });
  const value = await response.json().catch(() => null);
  if (response.ok && value !== null) return value;
  const error = value?.error;
  if (error?.code === "loading") {
    await new Promise((wake) => setTimeout(wake, LOADING));
    return answer(path, options);
  }
  throw new ApiError(error?.message ?? `The server answered ${response.status}.`, response.status, error?.param);
}
