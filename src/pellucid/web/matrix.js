// What the pages about attention, the stream and the weights share: panels of a route, canvases, matrices that stay fluid
// at a thousand tokens (their colours are painted once into a bitmap, over which a cross-hair moves).

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./preact.js";
import { alike, ramps } from "./common.js";
import { Num, Panel, Waiting, useRepaint, useWidth } from "./parts.js";

/**
 * A panel of what is loaded: children(value) when it is there; `before` is code that its own code needs. Under an error
 * there is nothing: an earlier value answers another question.
 */
export function Loaded({ of, what, title, id, tools, before, head, value = of.value, children }) {
  const shown = of.error ? null : value;
  return html`<${Panel} id=${id} title=${title} tools=${tools} code=${shown?.code && [before, shown.code].filter(Boolean).join("\n")} not=${shown?.not_shown}>${head}<${Waiting} of=${of} what=${what} />${shown ? children(shown) : null}<//>`;
}

/** Numbers in a row, each with its words: [[words, name, value, unit, said]]; of `one` kind they share their decimals. */
export const Facts = ({ rows, one, children }) =>
  html`<p class="row figures">${rows.map(([words, name, value, unit, said]) => html`<span>${words} <${Num} name=${name} value=${value} unit=${unit} said=${one ? alike(rows.map((row) => row[2])) : said} /></span>`)}${children}</p>`;

export const Quiet = ({ children, why }) => html`<p class="quiet" data-reason=${why}>${children}</p>`;

const WORDS = {
  embed: "embedding",
  "embed_projected.bias": "bias of the projection",
  pos_embed: "positions",
  seg_embed: "segments",
  ngram_embed: "n-grams",
  bias: "biases",
  edited: "edits",
  "final_norm.bias": "bias of the final norm",
  "unembed.bias": "bias of the readout",
};

/** A part of a logit, of a score or of the stream in words: blocks.3.attn.head.2 as head 3.2. */
export function partName(label) {
  if (label.includes(" . ")) return label.split(" . ").map(partName).join(" \u00b7 ");
  const at = label.match(/^blocks\.(\d+)\.(attn|cross|mlp)(?:\.(head|neuron)\.(\d+)(?: <- (\d+))?|_out|\.(bias))(.*)$/);
  if (!at) return label.startsWith("encoder.") ? `encoder's ${partName(label.slice(8))}` : (WORDS[label] ?? label);
  const [, layer, kind, what, index, source, bias, more] = at;
  if (what)
    return `${kind === "cross" ? "cross-" : ""}${what} ${layer}.${index}${source !== undefined ? ` \u2190 ${source}` : ""}${more}`;
  return `${{ attn: "attention", cross: "cross-attention", mlp: "MLP" }[kind]} ${layer}${bias ? ", bias" : ""}${more}`;
}

/** A field for a token, which keeps what was typed until Enter, or until it is left. */
export function TokenField({ id, label, value, placeholder, onChange }) {
  const [typed, type] = useState(value),
    send = (event) => {
      event.preventDefault();
      if (typed !== value) onChange(typed);
    };
  useEffect(() => type(value), [value]);
  return html`<form class="token-field" onSubmit=${send}><label for=${id}>${label}</label><input id=${id} type="text" dir="auto" spellcheck="false" autocomplete="off" value=${typed} placeholder=${placeholder} onInput=${(event) => type(event.target.value)} onBlur=${send} /></form>`;
}

export const HINT = "as the model has it, with its space; #12 is the token of id 12";

// Canvases -----------------------------------------------------------------------------------

/** The colours of the style sheet that canvases draw with. */
export function inks() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(
    ["text", "quiet", "accent", "line", "raised", "ground", "mono", "positive", "negative"].map((name) => [
      name,
      style.getPropertyValue(`--${name}`).trim(),
    ]),
  );
}

/** A text cut to a width in pixels. */
export function fitted(pen, text, width) {
  let end = text.length;
  if (pen.measureText(text).width <= width) return text;
  while (end > 1 && pen.measureText(`${text.slice(0, end)}\u2026`).width > width) end--;
  return `${text.slice(0, end)}\u2026`;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * A canvas of width x height CSS pixels.
 *   draw(pen, ink, over)   paints it;  hit(x, y) says what is at a point, null for nothing
 *   onPick(thing)          on a click and on Enter;  onArrow(dx, dy, over) on the arrow keys: what is under the keyboard then
 *   said(over)             the line below
 */
export function Canvas({ width, height, draw, hit, onPick, onArrow, said, label, name, style }) {
  const canvas = useRef(),
    [over, setOver] = useState(null);
  useRepaint();
  useLayoutEffect(() => {
    // before the next frame, which a printer takes
    const c = canvas.current,
      scale = devicePixelRatio || 1,
      [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (c.width !== w) c.width = w;
    if (c.height !== h) c.height = h;
    const pen = c.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.textBaseline = "middle";
    pen.font = "12px system-ui, sans-serif";
    draw(pen, inks(), over);
  });
  const at = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return hit?.(event.clientX - box.left, event.clientY - box.top) ?? null;
  };
  const go = (to) => {
    if (String(to) !== String(over)) setOver(to);
  };
  const press = (event) => {
    const [dx, dy] = ARROWS[event.key] ?? [];
    if (event.key === "Enter" && over !== null) onPick?.(over);
    if (dx === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const to = onArrow(dx, dy, over);
    if (to !== undefined) setOver(to);
  };
  return html`<canvas ref=${canvas} role="img" aria-label=${label} data-name=${name} tabindex=${onArrow ? 0 : null} style=${{ width: `${width}px`, height: `${height}px`, cursor: onPick ? "pointer" : "crosshair", ...style }}
      onPointerMove=${(event) => go(at(event))} onPointerLeave=${() => go(null)} onBlur=${() => go(null)} onKeyDown=${onArrow ? press : null} onClick=${(
        event,
      ) => {
        const to = at(event);
        if (to !== null) onPick?.(to);
      }}></canvas>
    ${said ? html`<figcaption aria-live="polite">${said(over) ?? "\u00a0"}</figcaption>` : null}`;
}

/** A bitmap of rows x columns; `level(k)` is the index of a colour in the ramp, 0 to 255, or -1 for an empty cell. */
export function bitmap(rows, columns, ramp, level) {
  const picture = new OffscreenCanvas(Math.max(1, columns), Math.max(1, rows)),
    pen = picture.getContext("2d");
  const image = pen.createImageData(picture.width, picture.height),
    words = new Uint32Array(image.data.buffer);
  const colours = Uint32Array.from(
    ramps[ramp],
    ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red,
  );
  for (let k = 0; k < rows * columns; k++) {
    const index = level(k);
    if (index >= 0) words[k] = colours[index];
  }
  pen.putImageData(image, 0, 0);
  return picture;
}

const clamp = (x, n) => Math.min(n - 1, Math.max(0, x));

/**
 * A matrix with a cross-hair. `values` in rows, NaN and infinities left empty.
 *   ramp      "amount": 0 to `high`; "signed": -`high` to `high`; `companded` shows the square root of an amount
 *   rowNames, columnNames   texts of the axes, tokens with their blanks marked
 *   selected  [row, column];  onSelect(row, column);  describe(row, column, value) -> the line below
 *   most      the width in pixels;  biggest, that of a cell;  tall, the height of a row, else cells are squares
 *   rings     cells [row, column] that get a ring
 */
export function Matrix({
  values,
  rows,
  columns,
  ramp = "amount",
  high,
  companded,
  rowNames,
  columnNames,
  selected,
  onSelect,
  describe,
  label,
  name,
  most = 620,
  biggest = 28,
  tall = null,
  rings = [],
}) {
  const box = useRef(),
    repaint = useRepaint(),
    room = Math.min(most, useWidth(box));
  const named = rowNames && (tall ?? room / columns) > 9,
    longest = (names) => 7.3 * Math.min(12, Math.max(...names.map((text) => text.length)));
  const left = named ? Math.min(92, room * 0.24, longest(rowNames) + 10) : 0,
    top = named && columnNames && room / columns > 9 ? Math.min(66, 14 + 0.95 * longest(columnNames)) : 0;
  const lean = Math.min(26, top * 0.42); // how far the last name leans over the edge
  const side = Math.min(biggest, (room - left - lean) / columns),
    down = tall ?? side,
    right = left + side * columns,
    bottom = top + down * rows;
  const pooled = (size) => Math.max(1, Math.ceil(1 / (size * (devicePixelRatio || 1)))), // the largest of a pixel is drawn
    pool = pooled(side),
    poolRows = pooled(down);
  const picture = useMemo(() => {
    const across = Math.ceil(columns / pool);
    return bitmap(Math.ceil(rows / poolRows), across, ramp, (cell) => {
      const r0 = Math.floor(cell / across) * poolRows,
        k0 = (cell % across) * pool;
      let x = NaN;
      for (let r = r0; r < Math.min(rows, r0 + poolRows); r++)
        for (let k = k0; k < Math.min(columns, k0 + pool); k++) {
          const y = values[r * columns + k];
          if (Number.isFinite(y) && !(Math.abs(y) <= Math.abs(x))) x = y;
        }
      const u = x / (high || 1);
      return Number.isNaN(u)
        ? -1
        : Math.round(
            255 * Math.min(1, Math.max(0, ramp === "signed" ? (u + 1) / 2 : companded ? Math.sqrt(Math.max(0, u)) : u)),
          );
    });
  }, [values, rows, columns, ramp, high, companded, pool, poolRows, repaint]);
  const draw = (pen, ink, over) => {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, left, top, side * pool * picture.width, down * poolRows * picture.height);
    pen.strokeStyle = ink.raised;
    pen.beginPath();
    if (Math.min(side, down) > 6) {
      // thin lines between cells
      for (let r = 1; r < rows; r++) {
        pen.moveTo(left, top + r * down);
        pen.lineTo(right, top + r * down);
      }
      for (let k = 1; k < columns; k++) {
        pen.moveTo(left + k * side, top);
        pen.lineTo(left + k * side, bottom);
      }
      pen.stroke();
    }
    const [r, k] = over ?? selected ?? [-1, -1];
    pen.font = `${Math.min(12, Math.max(9, down - 2))}px ${ink.mono}`;
    pen.textAlign = "right";
    if (left)
      rowNames.forEach((text, j) => {
        pen.fillStyle = j === r ? ink.text : ink.quiet;
        pen.fillText(fitted(pen, text, left - 8), left - 5, top + (j + 0.5) * down);
      });
    pen.textAlign = "left";
    if (top)
      columnNames.forEach((text, j) => {
        pen.save();
        pen.translate(left + (j + 0.5) * side, top - 5);
        pen.rotate(-Math.PI / 2.6);
        pen.fillStyle = j === k ? ink.text : ink.quiet;
        pen.fillText(fitted(pen, text, top * 1.02), 0, 0);
        pen.restore();
      });
    if (r >= 0) {
      pen.fillStyle = "rgb(128 128 128 / .16)";
      pen.fillRect(left, top + r * down, side * columns, Math.max(1, down));
      pen.fillRect(left + k * side, top, Math.max(1, side), down * rows);
    }
    for (const [colour, thick] of [
      [ink.ground, 4],
      [ink.text, 1.5],
    ])
      for (const [r, k] of rings) {
        pen.strokeStyle = colour;
        pen.lineWidth = thick;
        pen.beginPath();
        pen.arc(left + (k + 0.5) * side, top + (r + 0.5) * down, Math.max(2, 0.3 * side), 0, 7);
        pen.stroke();
      }
    for (const [cell, colour] of [
      [selected, ink.accent],
      [over, ink.text],
    ])
      if (cell) {
        pen.strokeStyle = colour;
        pen.lineWidth = 2;
        pen.strokeRect(left + cell[1] * side, top + cell[0] * down, Math.max(side, 3), Math.max(down, 3));
      }
  };
  const hit = (x, y) => {
    const r = Math.floor((y - top) / down),
      k = Math.floor((x - left) / side);
    return r >= 0 && r < rows && k >= 0 && k < columns ? [r, k] : null;
  };
  return html`<figure class="drawn" ref=${box}><${Canvas} width=${right + lean} height=${bottom} draw=${draw} hit=${hit} label=${label} name=${name} onPick=${onSelect && ((cell) => onSelect(...cell))}
    onArrow=${(dx, dy, over) => {
      const [r, k] = over ?? selected ?? [0, 0];
      return [clamp(r + dy, rows), clamp(k + dx, columns)];
    }}
    said=${(over) => {
      const at = over ?? selected;
      return at && describe(...at, values[at[0] * columns + at[1]]);
    }} /></figure>`;
}
