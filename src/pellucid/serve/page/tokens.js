// Tokens as the server names them, and the text that they make: every token coloured by its surprisal.

import { colourOf, follow, make, percent, spelled, three } from "./common.js";
import { bars } from "./elements.js";

/** Surprisal of this many bits, or more, has the colour at the end of the scale. */
export const MOST_BITS = 8;
const AS_BYTES = /^bytes:(\\x[0-9a-f]{2})+$/;
const utf8 = new TextEncoder();

/** Bytes as text, or null where they are not whole characters. */
function strict(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** How many bytes at the end begin a character of which more bytes must come. */
function openTail(bytes) {
  for (let k = 1; k <= Math.min(3, bytes.length); k++) {
    const tail = bytes.subarray(bytes.length - k);
    if ((tail[0] & 0xc0) === 0x80) continue;
    if (tail[0] < 0x80) return 0;
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(tail, { stream: true }) === "" ? k : 0;
    } catch {
      return 0;
    }
  }
  return 0;
}

const joined = (parts) => Uint8Array.from(parts.flatMap((part) => [...part]));

/** A token of a text completion: its name, where a part of a character is written bytes:\xe2, and its probability. */
function named(name, logprob, special) {
  if (special.has(name)) return { bytes: new Uint8Array(), special: name, logprob };
  const bytes = AS_BYTES.test(name) ? Uint8Array.from(name.slice(6).match(/[0-9a-f]{2}/g), (x) => parseInt(x, 16)) : utf8.encode(name);
  return { bytes, special: null, logprob };
}

/** Tokens from the lists of a text completion; `special` holds the names of tokens that have no text. */
export function fromLists(lists, special) {
  return lists.tokens.map((name, i) => {
    const top = Object.entries(lists.top_logprobs?.[i] ?? {}).map(([other, logprob]) => named(other, logprob, special));
    return { ...named(name, lists.token_logprobs[i], special), top };
  });
}

/** Tokens from the entries of a chat completion, where a special token has no bytes. */
export function fromEntries(entries) {
  const token = ({ token: name, bytes, logprob }) => ({ bytes: Uint8Array.from(bytes), special: bytes.length ? null : name, logprob });
  return entries.map((entry) => ({ ...token(entry), top: entry.top_logprobs.map(token) }));
}

/** What a special token is called. */
const special = (name) => (name === "<|endoftext|>" ? "end of text" : name);

const bits = (logprob) => (logprob === null ? null : -logprob / Math.LN2);

/** Text for reading: white space stays as it is, with a mark before what cannot be seen. */
function readable(text) {
  const nodes = [];
  for (const part of text.split(/(\n)/)) {
    if (part === "\n") nodes.push(make("span", { class: "blank", "aria-hidden": "true" }, "\u21b5"), "\n");
    else if (part) for (const node of spelled(part)) nodes.push(typeof node === "string" || node.textContent !== "\u00b7" ? node : " ");
  }
  return nodes;
}

/** A text of tokens as it comes. Tokens that share a character are one button, so that what is read is characters.

    before   the text in front of it
    branch   called with the text up to an alternative, the alternative included
    label    what the whole is called */
export class WrittenText {
  constructor({ before = "", branch, label, popover }) {
    Object.assign(this, { before, branch, popover });
    this.element = make("div", { class: "written", role: "group", dir: "auto", "aria-label": label });
    this.text = ""; // as the server sent it
    this.shown = ""; // as far as buttons hold it
    this.waiting = []; // tokens whose characters have not all come
    this.ready = []; // pieces whose text the server has not sent yet: it may belong to a stop string
    this.pieces = [];
    this.bits = 0;
    this.scored = 0;
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  push(text, tokens) {
    this.text += text;
    for (const token of tokens) {
      if (token.logprob !== null) {
        this.bits += bits(token.logprob);
        this.scored++;
      }
      if (token.special) {
        this.complete(this.waiting.length);
        this.ready.push({ tokens: [token], text: "", special: token.special });
        continue;
      }
      this.waiting.push(token);
      const bytes = joined(this.waiting.map((t) => t.bytes)), closed = bytes.length - openTail(bytes);
      let n = 0, read = 0;
      while (n < this.waiting.length && read + this.waiting[n].bytes.length <= closed) read += this.waiting[n++].bytes.length;
      this.complete(n);
    }
    while (this.ready.length && this.shown.length + this.ready[0].text.length <= this.text.length) this.show(this.ready.shift());
  }

  /** The first n of the waiting tokens are whole characters, or never will be. */
  complete(n) {
    if (!n) return;
    const tokens = this.waiting.splice(0, n), bytes = joined(tokens.map((t) => t.bytes));
    this.ready.push({ tokens, text: new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes) });
  }

  /** The last token has come: what a stop string cut off is not shown. */
  finish() {
    this.complete(this.waiting.length);
    for (const piece of this.ready) {
      piece.text = piece.special ? "" : this.text.slice(this.shown.length, this.shown.length + piece.text.length);
      if (piece.text || piece.special) this.show(piece);
    }
    this.ready = [];
  }

  show(piece) {
    piece.start = this.before + this.shown;
    this.shown += piece.text;
    piece.bits = piece.tokens.some((t) => t.logprob === null) ? null : piece.tokens.reduce((sum, t) => sum + bits(t.logprob), 0);
    const said = piece.bits === null ? "nothing came before it" : `${three(piece.bits)} bits`;
    piece.element = make("span", {
      class: piece.special ? "token special" : "token", role: "button", tabindex: this.pieces.length ? -1 : 0, "aria-expanded": "false",
      "aria-description": said,
    }, ...(piece.special ? [special(piece.special)] : readable(piece.text)));
    piece.owner = this;
    pieceOf.set(piece.element, piece);
    this.popover.attach(piece);
    this.pieces.push(piece);
    paint(piece);
    this.element.append(piece.element);
  }

  /** The arrow keys move along the text; one token alone is reached with Tab. */
  move(event) {
    const at = this.pieces.findIndex((piece) => piece.element === event.target);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: this.pieces.length - 1 }[event.key];
    if (at < 0 || to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.pieces[Math.min(this.pieces.length - 1, Math.max(0, to))].element.focus();
  }

  focused(piece) {
    for (const other of this.pieces) other.element.tabIndex = other === piece ? 0 : -1;
  }
}

/** The pieces by their elements, so that those on the page are painted again when the theme changes. */
const pieceOf = new WeakMap();
follow(() => document.querySelectorAll(".token").forEach((element) => paint(pieceOf.get(element))));

function paint(piece) {
  if (piece.bits === null) return;
  const { fill, ink } = colourOf(piece.bits / MOST_BITS);
  Object.assign(piece.element.style, { background: fill, color: ink });
}

/** The list of what else could have stood in a token's place: on hover and on focus, held by a press. */
export class Alternatives {
  constructor(element) {
    this.element = element;
    this.piece = null;
    this.held = false;
    this.timer = 0;
    element.addEventListener("pointerenter", () => clearTimeout(this.timer));
    element.addEventListener("pointerleave", () => this.later(() => this.held || this.close(), 250));
    element.addEventListener("keydown", (event) => this.move(event));
    element.addEventListener("focusout", (event) => {
      if (!element.contains(event.relatedTarget) && event.relatedTarget !== this.piece?.element) this.close();
    });
    addEventListener("keydown", (event) => event.key === "Escape" && this.close(true));
    addEventListener("pointerdown", (event) => this.piece && !element.contains(event.target) && !this.piece.element.contains(event.target) && this.close());
    addEventListener("resize", () => this.piece && this.place());
  }

  later(act, wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(act, wait);
  }

  attach(piece) {
    const e = piece.element;
    e.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && !this.held && this.later(() => this.open(piece), 60));
    e.addEventListener("pointerleave", () => !this.held && this.later(() => this.close(), 250));
    e.addEventListener("focus", () => {
      piece.owner.focused(piece);
      this.open(piece);
    });
    e.addEventListener("blur", (event) => !this.element.contains(event.relatedTarget) && !this.held && this.close());
    e.addEventListener("click", () => {
      if (getSelection().toString()) return; // a text that is being marked, to be copied
      this.open(piece);
      this.held = true;
    });
    e.addEventListener("keydown", (event) => {
      if (!["Enter", " ", "ArrowDown"].includes(event.key)) return;
      event.preventDefault();
      this.open(piece);
      this.element.querySelector("button:not([disabled])")?.focus();
    });
  }

  open(piece) {
    clearTimeout(this.timer);
    if (this.piece === piece) return;
    this.close();
    this.piece = piece;
    piece.element.setAttribute("aria-expanded", "true");
    const rows = piece.tokens.flatMap((token, i) => this.about(piece, token, i));
    this.element.replaceChildren(...rows);
    this.element.hidden = false;
    this.place();
  }

  /** What is said of one token, and its alternatives. */
  about(piece, token, i) {
    const n = piece.tokens.length, which = n > 1 ? `Part ${i + 1} of ${n}: ` : "";
    if (token.logprob === null) return [make("p", {}, `${which}Nothing came before the first token, so nothing was expected.`)];
    const said = make("p", {}, `${which}${three(bits(token.logprob))} bits, probability ${percent(Math.exp(token.logprob))}`);
    const read = piece.tokens.slice(0, i).map((t) => t.bytes);
    const rows = [...token.top].sort((a, b) => b.logprob - a.logprob).map((other) => {
      const text = other.special ? null : strict(joined([...read, other.bytes]));
      const shown = other.special ? [special(other.special)] : text === null ? [hexadecimal(other.bytes)] : spelled(text);
      const why = other.special ? "This is no text: text cannot be written on from it." : text === null ? "This is a part of a character: text cannot be written on from it." : null;
      const act = () => {
        this.close();
        piece.owner.branch(piece.start + text);
      };
      const name = make("button", { class: "chip", type: "button", dir: "auto", disabled: why !== null, title: why, onclick: act }, ...shown);
      const wanted = other.special === token.special && other.bytes.join() === token.bytes.join();
      return { name, value: Math.exp(other.logprob), text: percent(Math.exp(other.logprob)), wanted };
    });
    return rows.length ? [said, bars(rows, 1)] : [said];
  }

  place() {
    const boxes = this.piece.element.getClientRects(), box = boxes[boxes.length - 1];
    if (!box) return;
    const { offsetWidth: width, offsetHeight: height } = this.element, wide = document.documentElement.clientWidth;
    const under = box.bottom + height + 8 <= innerHeight || box.top - height < 0;
    const left = Math.max(10, Math.min(box.left, wide - width - 10));
    Object.assign(this.element.style, { left: `${left + scrollX}px`, top: `${(under ? box.bottom : box.top - height) + scrollY}px` });
  }

  move(event) {
    const buttons = [...this.element.querySelectorAll("button:not([disabled])")], at = buttons.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    buttons[Math.min(buttons.length - 1, Math.max(0, at + step))]?.focus();
  }

  close(back = false) {
    clearTimeout(this.timer);
    const piece = this.piece;
    if (!piece) return;
    const inside = this.element.contains(document.activeElement);
    this.piece = null;
    this.held = false;
    this.element.hidden = true;
    piece.element.setAttribute("aria-expanded", "false");
    if (back && inside) {
      piece.element.focus();
      this.close();
    }
  }
}

const hexadecimal = (bytes) => Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
