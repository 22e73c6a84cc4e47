"use strict";
// What all of Pellucid's pages share: elements made of text alone, tokens, themes, colours, numbers.
// A saved page has this text in its one script without the word export; pages of a server import it as a module.

const listeners = [];
let waiting = false;

export function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const listener of listeners) listener();
  });
}

/** Call f now and whenever something is chosen, the theme changes or the window is resized. */
export function follow(f) {
  listeners.push(f);
  f();
}

/** An element with attributes and children; strings become text, never markup. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Tokens -------------------------------------------------------------------------------------

const BLANKS = { " ": "\u00b7", "\n": "\u21b5", "\t": "\u2192", "\r": "\u240d", "\u00a0": "\u237d", "\u3000": "\u25a1" };
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/;

/** A token's text as nodes, with white space and invisible characters shown. */
export function spelled(text) {
  const nodes = [];
  let run = "";
  const flush = () => run && nodes.push(run) && (run = "");
  for (const c of text) {
    const mark = BLANKS[c] || (HIDDEN.test(c) && `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
    if (mark) {
      flush();
      nodes.push(make("span", { class: "blank" }, mark));
    } else run += c;
  }
  flush();
  return nodes.length ? nodes : [make("span", { class: "blank" }, "\u2205")];
}

/** The same as one string, for canvases and labels. */
export const marked = (text) => spelled(text).map((n) => n.textContent ?? n).join("");

// Themes -------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = null; // light or dark once it is chosen by hand; the system's until then

/** True while the page is being printed: it is light then, and drawn for paper (common_print.css). */
export let printing = false;

/** Dress the page: the style sheet goes by data-theme. */
export function dress() {
  document.documentElement.dataset.theme = printing ? "light" : theme ?? (dark.matches ? "dark" : "light");
}
dress();

for (const event of ["beforeprint", "afterprint"]) addEventListener(event, () => {
  printing = event === "beforeprint";
  document.documentElement.toggleAttribute("data-printing", printing);
  dress();
  readRamps();
  for (const listener of listeners) listener(); // at once: the picture for the printer is taken when this returns
});

/** A button that changes from light to dark and back. */
export function themeButton() {
  const button = make("button", { class: "theme", onclick: () => { theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; again(); } });
  const name = () => { button.textContent = document.documentElement.dataset.theme === "dark" ? "Light theme" : "Dark theme"; };
  const again = () => { dress(); name(); readRamps(); redraw(); };
  dark.addEventListener("change", again);
  name();
  return button;
}

// Colours ------------------------------------------------------------------------------------

export let ramps;

/** Two ramps of 256 colours from the style sheet: sequential for amounts, diverging for signed numbers. */
export function readRamps() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16));
  };
  const ramp = (stops) =>
    Array.from({ length: 256 }, (_, k) => {
      const x = (k / 255) * (stops.length - 1), s = Math.min(Math.floor(x), stops.length - 2);
      return stops[s].map((c, i) => Math.round(c + (stops[s + 1][i] - c) * (x - s)));
    });
  ramps = {
    amount: ramp(["--low", "--mid", "--high"].map(colour)),
    signed: ramp(["--negative", "--zero", "--positive"].map(colour)),
    text: style.getPropertyValue("--text").trim(),
    ground: style.getPropertyValue("--ground").trim(),
  };
}

/** The colour of x in [0, 1], or in [-1, 1] on the signed ramp, as red, green and blue. */
export function rampAt(x, ramp = "amount") {
  return ramps[ramp][Math.round(255 * Math.min(1, Math.max(0, ramp === "signed" ? (x + 1) / 2 : x)))];
}

/** The same as CSS, and whether dark or light text reads on it. */
export function colourOf(x, ramp = "amount") {
  const [r, g, b] = rampAt(x, ramp);
  const light = 0.2126 * (r / 255) ** 2.2 + 0.7152 * (g / 255) ** 2.2 + 0.0722 * (b / 255) ** 2.2;
  return { fill: `rgb(${r},${g},${b})`, ink: light > 0.18 ? "#12161d" : "#ffffff" };
}

// Numbers ------------------------------------------------------------------------------------

export const three = (x) => (x === null || Number.isNaN(x) ? "\u2013" : Math.abs(x) >= 0.001 || x === 0 ? String(Number(x.toPrecision(3))) : x.toExponential(1));
/** 1 layer, 2 layers. */
export const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
export const percent = (x) => (x >= 0.0005 ? `${(100 * x).toFixed(1)} %` : "< 0.1 %");

/** How the numbers of one row or column are written: with the decimals that give the largest of them three digits. */
export function alike(values) {
  const known = values.filter((x) => Number.isFinite(x)), most = known.reduce((m, x) => Math.max(m, Math.abs(x)), 0);
  const decimals = known.every(Number.isInteger) ? 0 : Math.max(0, 2 - Math.floor(Math.log10(most)));
  const write = (x) => (most < 0.001 && most > 0 ? (x ? x.toExponential(1) : "0") : x.toFixed(decimals).replace(/^-(?=[0.]*$)/, ""));
  return (x) => (Number.isFinite(x) ? write(x) : "\u2013");
}
