// The parts that every page is made of: panels, numbers, tokens, choices.

import { html, useEffect, useRef, useState } from "./preact.js";
import { follow, printing, spelled, themeButton, three } from "./common.js";
import { TERMS } from "./terms.js";

export { alike, percent, plural, three } from "./common.js";

/** A number, rounded for reading, or as `said` writes it; the attributes hold its name and all of its digits. */
export const Num = ({ name, value, unit = "", digits = 3, said }) =>
  html`<span class="num" data-name=${name} data-value=${String(value)} title=${`${name} = ${value}`}>${value === null || value === undefined ? "\u2013" : said ? said(value) : digits === 3 ? three(value) : Number(value.toPrecision(digits)).toLocaleString("en")}${unit && Number.isFinite(value) ? `\u00a0${unit}` : ""}</span>`;

/** A term that explains itself on hover and on focus: <${Term} t="residual stream" />. The texts are in terms.js. */
export function Term({ t, children }) {
  const said = TERMS[t];
  return html`<span class="term" tabindex="0" aria-description=${said ?? ""} data-said=${said ?? ""}>${children?.length ? children : t}</span>`;
}

/** Show what a term means beside it, wherever on the page it stands. The frame calls this once. */
export function explainTerms() {
  const box = document.createElement("div");
  box.className = "explanation";
  box.hidden = true;
  document.body.append(box);
  const open = (event) => {
    const term = event.target.closest?.(".term");
    if (!term?.dataset.said) return;
    box.textContent = term.dataset.said;
    box.hidden = false;
    const at = term.getBoundingClientRect(),
      under = at.bottom + box.offsetHeight + 6 < innerHeight;
    box.style.left = `${scrollX + Math.max(8, Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${scrollY + (under ? at.bottom + 4 : at.top - box.offsetHeight - 4)}px`;
  };
  const close = () => {
    box.hidden = true;
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, open);
  for (const kind of ["pointerout", "focusout"]) document.addEventListener(kind, close);
  document.addEventListener("keydown", (event) => event.key === "Escape" && close());
}

/** A token in its box; white space is made visible. A text that is not there yet is empty. */
export function Token({ text, special, onClick, selected, title, style }) {
  const ref = useRef();
  useEffect(() => {
    ref.current.replaceChildren(...(special ? [text ?? ""] : spelled(text ?? "")));
  }, [text, special]);
  const classes = `chip${special ? " special" : ""}`;
  return onClick
    ? html`<button ref=${ref} class=${classes} dir="auto" type="button" aria-pressed=${selected ? "true" : "false"} onClick=${onClick} title=${title} style=${style}></button>`
    : html`<span ref=${ref} class=${classes} dir="auto" title=${title} style=${style}></span>`;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Python that opens the model which is shown: what is copied begins with it. */
export const loading = { code: "" };

export function CopyButton({ code: own, label = "Copy as Python" }) {
  const code = label.endsWith("Python") ? `${loading.code}\n${own}` : own;
  const [said, say] = useState(label);
  const copy = async () => {
    if (await copyText(code)) {
      say("Copied");
      setTimeout(() => say(label), 1500);
    } else say("Not allowed to copy");
  };
  return html`<button class="act small" type="button" data-code=${code} title=${code} onClick=${copy}>${said}</button>`;
}

/**
 * A panel: its title, what it shows, "copy as Python", and one sentence on what it does not show.
 * `code` runs behind the code that opens the model (`loading`).
 */
export const Panel = ({ title, code, not, children, tools, id }) =>
  html`<section class="panel" id=${id} aria-label=${title}>
    <div class="head"><h2>${title}</h2><div class="tools">${tools}${code ? html`<${CopyButton} code=${code} />` : null}</div></div>
    ${children}
    ${not ? html`<p class="not"><b>Not shown:</b> ${not}</p>` : null}
  </section>`;

/** The server's sentence about what is wrong. */
export const Failed = ({ of }) => (of.error ? html`<p class="error" role="alert">${of.error.message}</p>` : null);

/** What stands in a panel while its numbers are loaded, with the seconds, or the server's sentence about what is wrong. */
export function Waiting({ of, what = "computing" }) {
  if (of.error) return html`<${Failed} of=${of} />`;
  if (of.loading)
    return html`<p class="quiet" role="status" data-waiting>${what}${of.seconds >= 0.4 ? ` \u2026 ${of.seconds.toFixed(1)} s` : " \u2026"}</p>`;
  return null;
}

/** Where an edit acts, in words: one index, several, or a range from and to. */
export const placesOf = (edit) =>
  ["head", "kv_head", "pos", "key", "neuron"]
    .filter((axis) => edit[axis] !== undefined && edit[axis] !== null)
    .map((axis) => {
      const at = edit[axis];
      return `${axis} ${typeof at === "object" && !Array.isArray(at) ? `${at.from ?? "first"} to ${at.to ?? "last"}` : [].concat(at).join(", ")}`;
    })
    .join("; ");

/** One of a few words: <${Choice} label="Sort by" value=${view.sort} options=${{ layer: "layer", score: "score" }} onChange=${(sort) => set({ sort })} />. */
export const Choice = ({ label, value, options, onChange }) =>
  html`<span class="choice" role="group" aria-label=${label}>${Object.entries(options).map(
    ([name, said]) =>
      html`<button type="button" class="act small" aria-pressed=${value === name ? "true" : "false"} onClick=${() => onChange(name)}>${said}</button>`,
  )}</span>`;

export const Slider = ({ label, value, min, max, step = "any", onInput, said }) =>
  html`<label class="slider"><span>${label} <b>${said ?? three(value)}</b></span><input type="range" min=${min} max=${max} step=${step} value=${value} onInput=${(event) => onInput(Number(event.target.value))} /></label>`;

export const Toggle = ({ label, value, onChange }) =>
  html`<label class="toggle"><input type="checkbox" checked=${value} onChange=${(event) => onChange(event.target.checked)} /> ${label}</label>`;

/** A number that grows whenever the theme or the window's size changes, so that canvases are painted again. */
let paints = 0;
const painters = new Set();
follow(() => {
  paints += 1;
  for (const paint of painters) paint(paints);
});
export function useRepaint() {
  const [n, repaint] = useState(paints);
  useEffect(() => {
    painters.add(repaint);
    return () => painters.delete(repaint);
  }, []);
  return n;
}

/** The width of an element in CSS pixels, followed as it changes; before printing it is measured at once. */
export function useWidth(ref, usual = 600) {
  useRepaint();
  const [width, set] = useState(usual);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => set(Math.floor(entry.contentRect.width)));
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return printing && ref.current ? ref.current.clientWidth : width;
}

export function ThemeButton() {
  const place = useRef();
  useEffect(() => {
    place.current.replaceChildren(themeButton());
  }, []);
  return html`<span ref=${place}></span>`;
}

/** The keyboard: arrows go along tokens, [ and ] along layers, h to the next head, / to the prompt; not while something is written. */
export function useKeys({ pos, n, layer, layers, head, heads, set }) {
  useEffect(() => {
    const press = (event) => {
      if (
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        event.target.closest("input, textarea, select, [role=slider]")
      )
        return;
      if (event.key.startsWith("Arrow") && event.target.closest(".terms, pre")) return; // they are scrolled with the arrows
      const act = {
        ArrowLeft: () => pos > 0 && set({ pos: pos - 1 }),
        ArrowRight: () => pos < n - 1 && set({ pos: pos + 1 }),
        h: () => set({ head: (head + 1) % (heads || 1) }),
        "[": () => set({ layer: Math.max(0, layer - 1) }),
        "]": () => set({ layer: Math.min(layers - 1, layer + 1) }),
        "/": () => document.getElementById("prompt")?.focus(),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}

const KINDS = { f4: Float32Array, i8: BigInt64Array, i4: Int32Array, u1: Uint8Array, b1: Uint8Array };

/** The array in a file of numpy's format, version 1, in base64. */
function parseNpy(text) {
  const raw = atob(text),
    bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
  const start = 10 + bytes[8] + 256 * bytes[9],
    header = raw.slice(10, start);
  const kind = header.match(/'descr': '[<|]([a-z]\d)'/)[1],
    shape = header
      .match(/'shape': \(([^)]*)\)/)[1]
      .split(",")
      .filter((x) => x.trim())
      .map(Number);
  return { data: new KINDS[kind](bytes.buffer.slice(start)), shape };
}

/** An answer whose `arrays`, .npy files in base64, are {data, shape}; data is a typed array in the order of rows. */
export const decoded = (answer) =>
  answer.arrays
    ? { ...answer, arrays: Object.fromEntries(Object.entries(answer.arrays).map(([name, x]) => [name, parseNpy(x)])) }
    : answer;
