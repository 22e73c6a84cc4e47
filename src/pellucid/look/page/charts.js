"use strict";
// Charts with one look: heat maps on canvas with a cross-hair, lines, bars, waterfalls. Two ramps, the same everywhere:
// "amount" from nothing to much, "signed" from negative over zero to positive.

import { html, useEffect, useRef, useState } from "./preact.js";
import { colourOf, rampAt, three } from "./common.js";
import { useRepaint, useWidth } from "./parts.js";

/** The size of the largest magnitude, or `least` where all are zero. */
export const largest = (values, least = 1e-12) => { let most = least; for (const x of values) if (Math.abs(x) > most) most = Math.abs(x); return most; };

const NO_RINGS = [];

/**
 * A matrix of numbers in rows. `values` may hold NaN, which is left empty.
 *   ramp        "amount": `low` to `high`; "signed": -`high` to `high`
 *   describe    (row, column, value) -> the text of the line below, for the cell under the pointer or the keyboard
 *   selected    [row, column] or null;  onSelect(row, column) on a click and on Enter
 *   rowNames, columnNames   texts beside the map, where there is room
 *   rings       cells [row, column] that get a ring
 */
export function HeatMap({ values, rows, columns, ramp = "amount", low = 0, high = null, describe, selected, onSelect, rowNames, columnNames, label, cell = 0, name, rings = NO_RINGS }) {
  const canvas = useRef(), [at, setAt] = useState(null), repaint = useRepaint();
  const most = high ?? largest(values);
  const side = cell || Math.max(3, Math.min(26, Math.floor(560 / Math.max(columns, rows))));
  const gutter = rowNames ? 76 : 0, head = columnNames && side >= 9 ? 60 : 0;
  const width = gutter + columns * side, height = head + rows * side;
  useEffect(() => {
    const scale = devicePixelRatio || 1, c = canvas.current;
    c.width = width * scale; c.height = height * scale;
    const pen = c.getContext("2d"), style = getComputedStyle(document.documentElement);
    pen.scale(scale, scale);
    for (let r = 0; r < rows; r++) for (let k = 0; k < columns; k++) {
      const x = values[r * columns + k];
      if (Number.isNaN(x) || x === null) continue;
      const [red, green, blue] = rampAt(ramp === "signed" ? x / most : (x - low) / (most - low || 1), ramp);
      pen.fillStyle = `rgb(${red},${green},${blue})`;
      pen.fillRect(gutter + k * side, head + r * side, side > 5 ? side - 1 : side, side > 5 ? side - 1 : side);
    }
    pen.fillStyle = style.getPropertyValue("--quiet");
    pen.font = `12px ${style.getPropertyValue("--mono")}`;
    pen.textBaseline = "middle";
    if (rowNames && side >= 9) rowNames.forEach((text, r) => { pen.textAlign = "right"; pen.fillText(text.slice(0, 9), gutter - 6, head + (r + 0.5) * side); });
    if (head) columnNames.forEach((text, k) => { pen.save(); pen.translate(gutter + (k + 0.5) * side, head - 5); pen.rotate(-Math.PI / 3); pen.textAlign = "left"; pen.fillText(text.slice(0, 8), 0, 0); pen.restore(); });
    const mark = (cellAt, colour) => { if (!cellAt) return; pen.strokeStyle = colour; pen.lineWidth = 2; pen.strokeRect(gutter + cellAt[1] * side, head + cellAt[0] * side, side - 1, side - 1); };
    mark(selected, style.getPropertyValue("--accent"));
    for (const { colour, thick } of [{ colour: "--ground", thick: 4 }, { colour: "--text", thick: 1.5 }]) for (const [r, k] of rings) {
      pen.strokeStyle = style.getPropertyValue(colour); pen.lineWidth = thick;
      pen.beginPath(); pen.arc(gutter + (k + 0.5) * side - 0.5, head + (r + 0.5) * side - 0.5, Math.max(2, 0.3 * side), 0, 7); pen.stroke();
    }
    if (at) {
      pen.fillStyle = "rgb(128 128 128 / .18)";
      pen.fillRect(gutter, head + at[0] * side, columns * side, side);
      pen.fillRect(gutter + at[1] * side, head, side, rows * side);
      mark(at, style.getPropertyValue("--text"));
    }
  }, [values, rows, columns, ramp, low, most, side, at, selected?.[0], selected?.[1], repaint, rowNames, columnNames, rings]);
  const cellOf = (event) => {
    const box = canvas.current.getBoundingClientRect(), zoom = width / box.width;
    const k = Math.floor(((event.clientX - box.left) * zoom - gutter) / side), r = Math.floor(((event.clientY - box.top) * zoom - head) / side);
    return r >= 0 && r < rows && k >= 0 && k < columns ? [r, k] : null;
  };
  const move = (event) => { const to = cellOf(event); if (to?.[0] !== at?.[0] || to?.[1] !== at?.[1]) setAt(to); };
  const press = (event) => {
    const [r, k] = at ?? selected ?? [0, 0];
    const to = { ArrowLeft: [r, k - 1], ArrowRight: [r, k + 1], ArrowUp: [r - 1, k], ArrowDown: [r + 1, k] }[event.key];
    if (event.key === "Enter" && onSelect) onSelect(r, k);
    if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault(); event.stopPropagation();
    setAt([Math.min(rows - 1, Math.max(0, to[0])), Math.min(columns - 1, Math.max(0, to[1]))]);
  };
  const shown = at ?? selected;
  const value = shown ? values[shown[0] * columns + shown[1]] : null;
  return html`<figure class="heat">
    <canvas ref=${canvas} class="canvas" style=${{ width: `${width}px`, aspectRatio: `${width} / ${height}`, cursor: onSelect ? "pointer" : "crosshair" }} tabindex="0" role="img" aria-label=${label} data-name=${name}
      onPointerMove=${move} onPointerLeave=${() => setAt(null)} onClick=${(event) => { const to = cellOf(event); if (to && onSelect) onSelect(...to); }} onKeyDown=${press} onBlur=${() => setAt(null)}></canvas>
    <figcaption aria-live="polite">${shown ? (describe ? describe(shown[0], shown[1], value) : three(value)) : "\u00a0"}</figcaption>
  </figure>`;
}

/** Rows of a label, a bar and a number: [{label, value, said, name, onClick, selected}], around the middle where any is negative. */
export function Bars({ rows, most = null, label }) {
  const size = most ?? largest(rows.map((row) => row.value)), signed = rows.some((row) => row.value < 0);
  return html`<div class="bars" role="table" aria-label=${label}>${rows.map((row) => {
    const width = Math.min(1, Math.abs(row.value) / size) * (signed ? 50 : 100);
    const left = signed ? (row.value < 0 ? 50 - width : 50) : 0;
    return html`<div class=${row.selected ? "name wanted" : "name"} onClick=${row.onClick}>${row.label}</div>
      <div class="track"><div class="fill" style=${{ left: `${left}%`, width: `${width}%`, background: row.value < 0 ? "var(--negative)" : "var(--positive)" }}></div></div>
      <div class="number" data-name=${row.name} data-value=${String(row.value)}>${row.said ?? three(row.value)}</div>`;
  })}</div>`;
}

/** Parts that add up: [{label, value, name, onClick}]; each bar begins where the last one ends, and the last row is the sum. */
export function Waterfall({ rows, total, label }) {
  let sum = 0;
  const ends = rows.map((row) => [sum, (sum += row.value)]);
  const least = Math.min(0, total, ...ends.flat()), most = Math.max(0, total, ...ends.flat()), size = most - least || 1;
  const bar = (from, to) => html`<div class="track"><div class="fill" style=${{ left: `${(100 * (Math.min(from, to) - least)) / size}%`, width: `${Math.max(0.3, (100 * Math.abs(to - from)) / size)}%`, background: to < from ? "var(--negative)" : "var(--positive)" }}></div></div>`;
  return html`<div class="bars waterfall" role="table" aria-label=${label}>${rows.map((row, k) => html`
      <div class=${row.selected ? "name wanted" : "name"} onClick=${row.onClick}>${row.label}</div>${bar(...ends[k])}<div class="number" data-name=${row.name} data-value=${String(row.value)}>${three(row.value)}</div>`)}
    <div class="name"><b>sum</b></div>${bar(0, total)}<div class="number" data-name=${`${label}.total`} data-value=${String(total)}><b>${three(total)}</b></div></div>`;
}

const LINES = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];

/** Three to seven round numbers from low to high; of a logarithmic axis, whose ends are logarithms, powers of ten or less. */
function ticksOf(low, high, log, whole = false) {
  if (log) {
    const first = Math.ceil(low / Math.LN10), last = Math.floor(high / Math.LN10);
    if (last > first) return Array.from({ length: last - first + 1 }, (_, k) => 10 ** (first + k)).filter((_, k) => k % Math.ceil((last - first + 1) / 7) === 0);
    return [Math.exp(low), Math.exp((low + high) / 2), Math.exp(high)];
  }
  const rough = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((k) => k * unit).find((one) => one >= rough * 0.99 && (!whole || one >= 1)) ?? 1;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
}

/** A place on an axis: whole numbers with all of their digits. */
const place = (x) => (Number.isInteger(x) ? String(x) : three(x));

/** Heights of texts moved apart, at least 13 from each other and none below `most`, in the order of the heights that were wanted. */
function spread(heights, most) {
  const order = heights.map((_, k) => k).sort((i, j) => heights[i] - heights[j]), moved = heights.slice();
  order.forEach((k, n) => { if (n) moved[k] = Math.max(moved[k], moved[order[n - 1]] + 13); });
  order.reverse().forEach((k, n) => { moved[k] = Math.min(moved[k], n ? moved[order[n - 1]] - 13 : most); });
  return moved;
}

/**
 * Lines over x: series = [{name, x: [...], y: [...]}], each named where it ends. A y of null is left out.
 *   band  {low, high, name}: a grey band between two values
 *   logX, logY  logarithmic axes;  mark  an x at which a vertical line stands;  onSelect(x)
 */
export function Lines({ series, label, xName = "", yName = "", logX = false, logY = false, mark = null, onSelect, height = 220, band = null }) {
  const [at, setAt] = useState(null), box = useRef(), frame = useRef(), wide = Math.max(240, Math.min(660, useWidth(frame, 560))), narrow = wide < 420;
  useRepaint();
  const left = narrow ? 44 : 54, right = narrow ? 78 : 110, top = yName ? 22 : 12, bottom = 34;
  const points = series.flatMap((one) => one.x.map((x, k) => [x, one.y[k]])).filter(([, y]) => y !== null && Number.isFinite(y));
  if (!points.length) return html`<figure ref=${frame} class="lines"><p class="quiet">Nothing to draw.</p></figure>`;
  const axis = (values, log) => { const low = Math.min(...values), high = Math.max(...values); return log ? [Math.log(Math.max(low, 1e-9)), Math.log(Math.max(high, 1e-9))] : low === high ? [low - 0.5, high + 0.5] : [low, high]; };
  const [x0, x1] = axis(points.map(([x]) => x), logX), [y0, y1] = axis([...points.map(([, y]) => y), ...(band ? [band.low, band.high] : [])], logY);
  const px = (x) => left + (((logX ? Math.log(Math.max(x, 1e-9)) : x) - x0) / (x1 - x0 || 1)) * (wide - left - right);
  const py = (y) => top + (1 - ((logY ? Math.log(Math.max(y, 1e-9)) : y) - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const xTicks = ticksOf(x0, x1, logX, series.every((one) => one.x.every(Number.isInteger))), yTicks = ticksOf(y0, y1, logY);
  const names = spread(series.map((one) => { const k = one.y.findLastIndex((y) => y !== null && Number.isFinite(y)); return k < 0 ? 0 : py(one.y[k]) + 4; }), height - bottom + 4);
  const find = (event) => {
    const area = box.current.getBoundingClientRect(), x = ((event.clientX - area.left) * wide) / area.width;
    const near = points.reduce((best, p) => (Math.abs(px(p[0]) - x) < Math.abs(px(best[0]) - x) ? p : best));
    return near[0];
  };
  return html`<figure ref=${frame} class="lines">
    <svg ref=${box} viewBox=${`0 0 ${wide} ${height}`} role="img" aria-label=${label} onPointerMove=${(event) => setAt(find(event))} onPointerLeave=${() => setAt(null)} onClick=${(event) => onSelect?.(find(event))}>
      ${yTicks.map((y) => html`<line class="grid" x1=${left} x2=${wide - right} y1=${py(y)} y2=${py(y)} /><text class="tick" x=${left - 6} y=${py(y) + 4} text-anchor="end">${three(y)}</text>`)}
      ${xTicks.map((x) => html`<text class="tick" x=${px(x)} y=${height - bottom + 16} text-anchor="middle">${place(x)}</text>`)}
      <text class="tick" x=${(left + wide - right) / 2} y=${height - 3} text-anchor="middle">${xName}</text>
      ${yName ? html`<text class="tick" x=${left} y=${10}>${yName}</text>` : null}
      ${band ? html`<rect class="band" x=${left} width=${wide - left - right} y=${py(band.high)} height=${Math.max(1, py(band.low) - py(band.high))} /><text class="tick" x=${wide - right + 5} y=${py((band.low + band.high) / 2) + 4}>${band.name}</text>` : null}
      ${mark === null ? null : html`<line class="mark" x1=${px(mark)} x2=${px(mark)} y1=${top} y2=${height - bottom} />`}
      ${series.map((one, k) => {
        const drawn = one.x.map((x, j) => [x, one.y[j]]).filter(([, y]) => y !== null && Number.isFinite(y));
        if (!drawn.length) return null;
        const colour = `var(${LINES[k % LINES.length]})`, last = drawn[drawn.length - 1];
        return html`<polyline fill="none" stroke=${colour} stroke-width="1.8" points=${drawn.map(([x, y]) => `${px(x)},${py(y)}`).join(" ")} />
          ${drawn.length < 2 ? html`<circle cx=${px(last[0])} cy=${py(last[1])} r="3" fill=${colour} />` : null}
          <text class="tick" style=${{ fill: colour }} x=${px(last[0]) + 5} y=${names[k]}>${one.name}</text>`;
      })}
      ${at === null ? null : html`<line class="hair" x1=${px(at)} x2=${px(at)} y1=${top} y2=${height - bottom} />`}
    </svg>
    <figcaption>${at === null ? "\u00a0" : `${xName} ${place(at)}: ${series.map((one) => { const k = one.x.indexOf(at); return k < 0 || one.y[k] === null ? null : `${one.name} ${three(one.y[k])}`; }).filter(Boolean).join(", ")}`}</figcaption>
  </figure>`;
}

/** The two ramps' keys: <${Scale} low="0" high="1" />. */
export function Scale({ low, high, ramp = "amount" }) {
  useRepaint();
  const stops = [0, 0.25, 0.5, 0.75, 1].map((x) => colourOf(ramp === "signed" ? 2 * x - 1 : x, ramp).fill);
  return html`<span class="scale">${low}<i style=${{ background: `linear-gradient(90deg, ${stops.join(",")})` }}></i>${high}</span>`;
}
