// Charts with one look: lines, bars, waterfalls (matrices are in matrix.js). Two ramps, the same everywhere: "amount" from
// nothing to much, "signed" from negative over zero to positive.

import { html, useRef, useState } from "./preact.js";
import { alike, colourOf, three } from "./common.js";
import { Token, percent, useRepaint, useWidth } from "./parts.js";

/** The size of the largest magnitude, or `least` where all are zero. */
export const largest = (values, least = 1e-12) => {
  let most = least;
  for (const x of values) if (Math.abs(x) > most) most = Math.abs(x);
  return most;
};

/** Rows of a label, a bar and a number: [{label, value, said, name, onClick, selected}], around the middle if any is negative. A
    whole bar is `most`, 1 for shares, or the largest value. */
export function Bars({ rows, most = null, label }) {
  const size = most ?? largest(rows.map((row) => row.value)),
    signed = rows.some((row) => row.value < 0),
    number = alike(rows.map((row) => row.value));
  return html`<div class="bars" role="table" aria-label=${label}>${rows.map((row) => {
    const width = Math.min(1, Math.abs(row.value) / size) * (signed ? 50 : 100);
    const left = signed ? (row.value < 0 ? 50 - width : 50) : 0;
    return html`<div class=${row.selected ? "name wanted" : "name"} onClick=${row.onClick}>${row.label}</div>
      <div class="track"><div class="fill" style=${{ left: `${left}%`, width: `${width}%`, background: row.value < 0 ? "var(--negative)" : "var(--positive)" }}></div></div>
      <div class="number" data-name=${row.name} data-value=${String(row.value)}>${row.said ?? number(row.value)}</div>`;
  })}</div>`;
}

/** The likeliest tokens, as bars; the one that stands in the text is framed. */
export const TopBars = ({ rows, name, own, most = 8 }) =>
  html`<${Bars} label=${name} most=${1} rows=${rows.slice(0, most).map((one) => ({ label: html`<${Token} text=${one.text} />`, value: one.p, said: percent(one.p), name: `${name}.${one.id}`, selected: one.id === own }))} />`;

/** Parts that add up: [{label, value, name, onClick}]; each bar begins where the last ends, and the last row is the sum. */
export function Waterfall({ rows, total, label }) {
  let sum = 0;
  const ends = rows.map((row) => [sum, (sum += row.value)]);
  const least = Math.min(0, total, ...ends.flat()),
    most = Math.max(0, total, ...ends.flat()),
    size = most - least || 1,
    number = alike([...rows.map((row) => row.value), total]);
  const bar = (from, to) =>
    html`<div class="track"><div class="fill" style=${{ left: `${(100 * (Math.min(from, to) - least)) / size}%`, width: `${Math.max(0.3, (100 * Math.abs(to - from)) / size)}%`, background: to < from ? "var(--negative)" : "var(--positive)" }}></div></div>`;
  return html`<div class="bars waterfall" role="table" aria-label=${label}>${rows.map(
    (row, k) => html`
      <div class=${row.selected ? "name wanted" : "name"} onClick=${row.onClick}>${row.label}</div>${bar(...ends[k])}<div class="number" data-name=${row.name} data-value=${String(row.value)}>${number(row.value)}</div>`,
  )}
    <div class="name"><b>sum</b></div>${bar(0, total)}<div class="number" data-name=${`${label}.total`} data-value=${String(total)}><b>${number(total)}</b></div></div>`;
}

const LINES = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];

/** Three to seven round numbers from low to high; of a logarithmic axis, whose ends are logarithms, powers of ten. */
function ticksOf(low, high, log, whole = false) {
  if (log) {
    const first = Math.ceil(low / Math.LN10),
      last = Math.floor(high / Math.LN10);
    if (last > first)
      return Array.from({ length: last - first + 1 }, (_, k) => 10 ** (first + k)).filter(
        (_, k) => k % Math.ceil((last - first + 1) / 7) === 0,
      );
    const ends = [Math.exp(low), Math.exp((low + high) / 2), Math.exp(high)];
    return whole ? [...new Set(ends.map(Math.round))] : ends;
  }
  const rough = (high - low) / 5,
    unit = 10 ** Math.floor(Math.log10(rough)),
    step = [1, 2, 5, 10].map((k) => k * unit).find((one) => one >= rough * 0.99 && (!whole || one >= 1)) ?? 1;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) =>
    Number(((first + k) * step).toPrecision(12)),
  );
}

/** A place on an axis: whole numbers with all of their digits. */
const place = (x) => (Number.isInteger(x) ? String(x) : three(x));

/** Heights of texts moved apart, at least 13 from each other and none below `most`, in the order given. */
function spread(heights, most) {
  const order = heights.map((_, k) => k).sort((i, j) => heights[i] - heights[j]),
    moved = heights.slice();
  order.forEach((k, n) => {
    if (n) moved[k] = Math.max(moved[k], moved[order[n - 1]] + 13);
  });
  order.reverse().forEach((k, n) => {
    moved[k] = Math.min(moved[k], n ? moved[order[n - 1]] - 13 : most);
  });
  return moved;
}

/**
 * Lines over x: series = [{name, x: [...], y: [...]}], each named where it ends. A y of null is left out.
 *   band  {low, high, name}: a grey band between two values
 *   logX, logY  logarithmic axes;  mark  an x at which a vertical line stands;  onSelect(x)
 */
export function Lines({
  series,
  label,
  xName = "",
  yName = "",
  logX = false,
  logY = false,
  mark = null,
  onSelect,
  height = 220,
  band = null,
}) {
  const [at, setAt] = useState(null),
    box = useRef(),
    frame = useRef(),
    wide = Math.max(240, Math.min(660, useWidth(frame, 560))),
    narrow = wide < 420;
  useRepaint();
  const left = narrow ? 44 : 54,
    right = narrow ? 78 : 110,
    top = yName ? 22 : 12,
    bottom = 34;
  const points = series
    .flatMap((one) => one.x.map((x, k) => [x, one.y[k]]))
    .filter(([, y]) => y !== null && Number.isFinite(y));
  if (!points.length) return html`<figure ref=${frame} class="lines"><p class="quiet">Nothing to draw.</p></figure>`;
  const axis = (values, log) => {
    const low = Math.min(...values),
      high = Math.max(...values);
    return log
      ? [Math.log(Math.max(low, 1e-9)), Math.log(Math.max(high, 1e-9))]
      : low === high
        ? [low - 0.5, high + 0.5]
        : [low, high];
  };
  const [x0, x1] = axis(
      points.map(([x]) => x),
      logX,
    ),
    [y0, y1] = axis([...points.map(([, y]) => y), ...(band ? [band.low, band.high] : [])], logY);
  const px = (x) => left + (((logX ? Math.log(Math.max(x, 1e-9)) : x) - x0) / (x1 - x0 || 1)) * (wide - left - right);
  const py = (y) =>
    top + (1 - ((logY ? Math.log(Math.max(y, 1e-9)) : y) - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const xTicks = ticksOf(
      x0,
      x1,
      logX,
      series.every((one) => one.x.every(Number.isInteger)),
    ),
    yTicks = ticksOf(
      y0,
      y1,
      logY,
      points.every(([, y]) => Number.isInteger(y)),
    );
  const names = spread(
    series.map((one) => {
      const k = one.y.findLastIndex((y) => y !== null && Number.isFinite(y));
      return k < 0 ? 0 : py(one.y[k]) + 4;
    }),
    height - bottom + 4,
  );
  const find = (event) => {
    const area = box.current.getBoundingClientRect(),
      x = ((event.clientX - area.left) * wide) / area.width;
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
        const colour = `var(${LINES[k % LINES.length]})`,
          last = drawn[drawn.length - 1];
        return html`<polyline fill="none" stroke=${colour} stroke-width="1.8" points=${drawn.map(([x, y]) => `${px(x)},${py(y)}`).join(" ")} />
          ${drawn.length < 2 ? html`<circle cx=${px(last[0])} cy=${py(last[1])} r="3" fill=${colour} />` : null}
          <text class="tick" style=${{ fill: colour }} x=${px(last[0]) + 5} y=${names[k]}>${one.name}</text>`;
      })}
      ${at === null ? null : html`<line class="hair" x1=${px(at)} x2=${px(at)} y1=${top} y2=${height - bottom} />`}
    </svg>
    <figcaption>${
      at === null
        ? "\u00a0"
        : `${xName} ${place(at)}: ${series
            .map((one) => {
              const k = one.x.indexOf(at);
              return k < 0 || one.y[k] === null ? null : `${one.name} ${three(one.y[k])}`;
            })
            .filter(Boolean)
            .join(", ")}`
    }</figcaption>
  </figure>`;
}

/** The two ramps' keys: <${Scale} low="0" high="1" />. */
export function Scale({ low, high, ramp = "amount" }) {
  useRepaint();
  const stops = [0, 0.25, 0.5, 0.75, 1].map((x) => colourOf(ramp === "signed" ? 2 * x - 1 : x, ramp).fill);
  return html`<span class="scale">${low}<i style=${{ background: `linear-gradient(90deg, ${stops.join(",")})` }}></i>${high}</span>`;
}
