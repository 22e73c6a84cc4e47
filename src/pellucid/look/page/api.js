// Requests to the server that sent this page, lines of JSON, and loading that is cancelled when it is no longer wanted.

import { useEffect, useState } from "./preact.js";
import { decoded } from "./parts.js";

const STORED = "pellucid-key";
export const key = {
  get: () => sessionStorage.getItem(STORED),
  keep: (value) => sessionStorage.setItem(STORED, value),
};

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, body, signal) {
  const headers = body === null ? {} : { "Content-Type": "application/json" };
  if (key.get() !== null) headers.Authorization = `Bearer ${key.get()}`;
  const response = await fetch(path, {
    method: body === null ? "GET" : "POST",
    headers,
    signal,
    body: body === null ? undefined : JSON.stringify(body),
  });
  if (response.ok) return response;
  let message = `the server answered with status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    /* no sentence of ours */
  }
  throw new ServerError(response.status, message);
}

/** The prompts of traces by their ids, so that a trace that the server no longer keeps is asked for again. */
const prompts = new Map();

async function ask(path, body, signal) {
  try {
    return await request(path, body, signal);
  } catch (error) {
    const id = path.match(/^api\/t\/([0-9a-f]+)\//)?.[1];
    if (error.status !== 410 || !prompts.has(id)) throw error;
    await request("api/trace", prompts.get(id), signal);
    return request(path, body, signal);
  }
}

/** A path with a query: route("api/t/1/x/embed", { pos: 3 }); what is null or undefined is left out. */
export function route(path, query = {}) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined));
  return words.size ? `${path}?${words}` : path;
}

export const getJson = async (path, signal) => decoded(await (await ask(path, null, signal)).json());
export const postJson = async (path, body, signal) => decoded(await (await ask(path, body, signal)).json());

/** The trace of a prompt {text, ids, source, bos, checkpoint, edits}, with that text. */
export async function getTrace(prompt, signal) {
  const trace = await postJson("api/trace", prompt, signal);
  prompts.set(trace.id, prompt);
  return { ...trace, text: prompt.text };
}

/** The objects of a streamed answer, one by one: for await (const cell of postLines(path, body, signal)). */
export async function* postLines(path, body, signal) {
  const reader = (await ask(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line) continue;
      const item = JSON.parse(line);
      if (item.error) throw new ServerError(item.status ?? 500, item.error);
      yield decoded(item);
    }
  }
}

const NOTHING = { value: null, error: null, loading: false, seconds: 0 };

/**
 * What `load(signal, show)` returns, loaded again whenever `deps` change; an earlier request is cancelled then.
 * {value, error, loading, seconds}: value is the last one while the next is loaded, unless `load` shows what is there
 * so far. `load` may be null: nothing is loaded.
 */
export function useLoad(load, deps) {
  const [state, set] = useState(NOTHING);
  useEffect(() => {
    if (!load) {
      set(NOTHING);
      return undefined;
    }
    const control = new AbortController(),
      begun = performance.now(),
      change = (more) => !control.signal.aborted && set((old) => ({ ...old, ...more }));
    const tick = setInterval(() => change({ seconds: (performance.now() - begun) / 1000 }), 200);
    change({ loading: true, error: null, seconds: 0 });
    load(control.signal, (value) => change({ value }))
      .then(
        (value) => change({ value, loading: false, seconds: 0 }),
        (error) => change({ error, loading: false, seconds: 0 }),
      )
      .finally(() => clearInterval(tick));
    return () => {
      control.abort();
      clearInterval(tick);
    };
  }, deps);
  return state;
}

/** The JSON of a route; nothing is asked for where `path` is null. */
export function useJson(path, query) {
  const asked = path && route(path, query);
  return useLoad(asked ? (signal) => getJson(asked, signal) : null, [asked]);
}

/** What `fold(value, line)` makes of the lines of an answer, shown after each of them; a GET where `body` is null. */
export function useLines(path, body, fold, deps) {
  // the lines of an earlier question are not kept: they belong to another trace, or another choice
  const asked = JSON.stringify(deps),
    load = useLoad(
      path
        ? async (signal, show) => {
            let value = null;
            show({ asked, value });
            for await (const line of postLines(path, body, signal)) show({ asked, value: (value = fold(value, line)) });
            return { asked, value };
          }
        : null,
      deps,
    );
  return { ...load, value: load.value?.asked === asked ? load.value.value : null };
}
