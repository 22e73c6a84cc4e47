// Long answers that come line by line, drawn while they come and cancelled when they are not wanted any more.

import { useEffect, useState } from "./preact.js";
import { postLines } from "./api.js";

/**
 * What `fold(value, line)` makes of the lines of an answer, drawn after each of them: {value, error, loading, seconds}.
 * `path` may be null: nothing is asked. Where `body` is null it is a GET. The request is cancelled when `deps` change and when the page goes elsewhere.
 */
export function useLines(path, body, fold, deps) {
  const [state, set] = useState({ value: null, error: null, loading: false, seconds: 0 });
  useEffect(() => {
    if (!path) { set({ value: null, error: null, loading: false, seconds: 0 }); return undefined; }
    const control = new AbortController(), begun = performance.now(), seconds = () => (performance.now() - begun) / 1000;
    const tick = setInterval(() => set((old) => ({ ...old, seconds: seconds() })), 200);
    set({ value: null, error: null, loading: true, seconds: 0 });
    (async () => {
      let value = null;
      for await (const line of postLines(path, body, control.signal)) {
        value = fold(value, line);
        set({ value, error: null, loading: true, seconds: seconds() });
      }
      set({ value, error: null, loading: false, seconds: 0 });
    })().catch((error) => !control.signal.aborted && set((old) => ({ ...old, error, loading: false })))
      .finally(() => clearInterval(tick));
    return () => { control.abort(); clearInterval(tick); };
  }, deps);
  return state;
}
