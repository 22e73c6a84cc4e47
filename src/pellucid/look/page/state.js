// The state of the whole page: two prompts, edits, a checkpoint, what is selected. It lives in the address behind the #.

import { useEffect, useState } from "./preact.js";

/** What the address leaves out. The type of each default decides how the address is read back. */
export const defaults = {
  page: "read",
  a: "", // the prompt; "" is the model's example
  b: "", // the second prompt; "" is none
  source: "", // the input of an encoder
  source_b: "", // that of the second prompt; "" is the same
  bos: false,
  checkpoint: "", // the step of a checkpoint; "" is the one that was opened
  edits: [], // as pellucid.edits.to_json writes them
  pos: -1, // the selected position of prompt a; -1 is the last
  layer: 0,
  head: 0,
  target: "", // the token whose logit is looked at, and the one that it is compared with; "" is what the page chooses
  against: "",
  ngrams: false, // whether n-grams stand beside the model
};

/** Pages add what they keep in the address themselves, with defaults: addDefaults({ sort: "layer" }). */
export function addDefaults(more) {
  for (const name of Object.keys(more)) if (name in defaults) throw new Error(`the state has ${name} already`);
  Object.assign(defaults, more);
  // a page that is loaded later finds what the address holds for it
  if (view) tell({ ...readAddress(), ...view });
}

let view = null;
const listeners = new Set();
const tell = (now) => {
  view = now;
  for (const listener of listeners) listener(view);
};

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const values = {};
  for (const [name, usual] of Object.entries(defaults)) {
    values[name] = usual;
    if (!asked.has(name)) continue;
    const text = asked.get(name);
    if (typeof usual === "string") {
      values[name] = text;
      continue;
    }
    try {
      const value = JSON.parse(text);
      if (typeof value === typeof usual && Array.isArray(value) === Array.isArray(usual)) values[name] = value;
    } catch {
      /* an address that somebody has changed by hand: the default stands */
    }
  }
  return values;
}

export function address(values) {
  const asked = new URLSearchParams(location.hash.slice(1));
  // what belongs to pages that are not loaded yet stays as it is
  for (const name of Object.keys(defaults)) asked.delete(name);
  for (const [name, usual] of Object.entries(defaults))
    if (written(values[name]) !== written(usual)) asked.set(name, written(values[name]));
  return `#${asked}`;
}

/** The state now. */
export const current = () => (view ??= readAddress());

/** Change some of the state: set({ layer: 3 }). A change of page or prompt can be undone with the browser's Back. */
export function set(change) {
  const before = current(),
    now = { ...before, ...change };
  const turned = ["page", "a", "b", "source", "source_b"].some(
    (name) => name in change && change[name] !== before[name],
  );
  history[turned ? "pushState" : "replaceState"](null, "", address(now));
  tell(now);
}

for (const kind of ["popstate", "hashchange"]) addEventListener(kind, () => tell(readAddress()));

/** The state, for a component that is drawn again when it changes. */
export function useView() {
  const [seen, see] = useState(current());
  useEffect(() => {
    listeners.add(see);
    see(current());
    return () => listeners.delete(see);
  }, []);
  return seen;
}
