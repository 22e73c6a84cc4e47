// The panels of a trace that saved pages have too: `heads` is what attention_overview answers, `lens` what lens_grid does.

import { html, useEffect, useMemo, useRef, useState } from "./preact.js";
import { colourOf, marked, printing } from "./common.js";
import { Choice, Term, Token, alike, percent, plural, three, useRepaint, useWidth } from "./parts.js";
import { Bars, largest } from "./charts.js";
import { Canvas, Facts, Matrix, Quiet, bitmap, fitted } from "./matrix.js";

const SORTS = {
  layer: "layer",
  induction: "induction",
  previous: "previous token",
  first: "first token",
  duplicate: "earlier copies",
  entropy: "entropy",
  copying: "copying",
};

/** Every pattern as a tile on one canvas, in an order that is chosen above it. */
export function Thumbnails({ heads, sorted, onSort, named = [], selected, onSelect }) {
  const sorts = Object.fromEntries(Object.entries(SORTS).filter(([kind]) => kind === "layer" || heads.scores[kind])),
    sort = sorts[sorted] ? sorted : "layer";
  const box = useRef(),
    repaint = useRepaint(),
    wide = useWidth(box, 640),
    { tiles } = heads,
    [layers, n, rows, columns] = tiles.shape;
  const order = useMemo(() => {
    const all = Array.from({ length: layers * n }, (_, k) => k),
      score = (k) => heads.scores[sort][Math.floor(k / n)]?.[k % n] ?? -Infinity;
    return sort === "layer"
      ? all
      : all.sort((p, q) => (sort === "entropy" ? score(p) - score(q) : score(q) - score(p)));
  }, [heads, sort]);
  // one bitmap for all heads: tile k stands at (k % n, k / n)
  const atlas = useMemo(
    () =>
      bitmap(layers * rows, n * columns, "amount", (k) => {
        const y = Math.floor(k / (n * columns)),
          x = k % (n * columns);
        return tiles.data[
          ((Math.floor(y / rows) * n + Math.floor(x / columns)) * rows + (y % rows)) * columns + (x % columns)
        ];
      }),
    [tiles, repaint],
  );
  const across =
    sort === "layer" && wide / n >= 24
      ? n
      : Math.max(1, Math.min(order.length, Math.floor(wide / (wide < 500 ? 62 : 84))));
  const gap = wide / across > 40 ? 6 : 2,
    size = Math.min(150, Math.floor(wide / across) - gap),
    caption = size >= 38 ? 15 : 0;
  const tall = Math.max(8, Math.round(Math.min(1.5, rows / columns) * size)),
    step = tall + caption + gap;
  const said = (k) => `${Math.floor(k / n)}.${k % n}`,
    score = (k) => three(heads.scores[sort][Math.floor(k / n)]?.[k % n] ?? null);
  const nameOf = (k) => named.find((one) => one.layer * n + one.head === k);
  const draw = (pen, ink, over) =>
    order.forEach((k, j) => {
      const x = (j % across) * (size + gap),
        y = Math.floor(j / across) * step;
      pen.imageSmoothingEnabled = size < columns;
      pen.drawImage(atlas, (k % n) * columns, Math.floor(k / n) * rows, columns, rows, x, y, size, tall);
      pen.strokeStyle = k === selected ? ink.accent : k === over ? ink.text : ink.line;
      pen.lineWidth = k === selected ? 2 : 1;
      pen.strokeRect(x + 0.5, y + 0.5, size - 1, tall - 1);
      if (!caption) return;
      pen.textAlign = "left";
      pen.fillStyle = k === selected ? ink.accent : ink.quiet;
      pen.fillText(said(k), x + 1, y + tall + 9);
      const more =
        sort === "layer" ? ({ induction: "ind", previous: "prev", first: "first" }[nameOf(k)?.kind] ?? "") : score(k);
      if (!more || pen.measureText(said(k) + more).width + 8 > size) return;
      pen.textAlign = "right";
      pen.fillStyle = sort === "layer" ? ink.accent : ink.text;
      pen.fillText(more, x + size - 1, y + tall + 9);
    });
  const hit = (x, y) => {
    const k = Math.floor(x / (size + gap));
    return k < 0 || k >= across || y < 0 ? null : (order[Math.floor(y / step) * across + k] ?? null);
  };
  return html`<div class="row"><span class="quiet">Sort by</span><${Choice} label="Sort by" value=${sort} options=${sorts} onChange=${onSort} /></div>
    <figure ref=${box} class="drawn"><${Canvas} width=${across * (size + gap)} height=${Math.ceil(order.length / across) * step} draw=${draw} hit=${hit} onPick=${onSelect} name="thumbnails" label=${`The patterns of ${plural(order.length, "head")}`}
    onArrow=${(dx, dy) => {
      const to = order[order.indexOf(selected) + dx + dy * across];
      if (to !== undefined) onSelect(to);
    }}
    said=${(k) => (k === null ? "Rows are queries, columns the keys that they read; the further from the ground, the more attention (square-root scale)." : `Head ${said(k)}${sort === "layer" ? "" : `: ${SORTS[sort]} ${score(k)}`}${nameOf(k) ? `, ${nameOf(k).name} ${three(nameOf(k).score)}` : ""}`)} /></figure>`;
}

/** The scores of one head on this text, in words. */
export function HeadScores({ heads, layer, head }) {
  const shares = alike(
    Object.entries(heads.scores)
      .filter(([kind]) => kind !== "entropy")
      .map(([, values]) => values[layer]?.[head]),
  );
  return html`<h3>Head ${layer}.${head} on this text</h3>
    <${Facts} rows=${Object.entries(heads.scores).map(([kind, values]) => [html`<${Term} t=${SORTS[kind]} />`, `score.${kind}`, values[layer]?.[head] ?? null, kind === "entropy" ? "bits" : "", kind === "entropy" ? null : shares])} />
    ${heads.copying_reason ? html`<${Quiet}>No copying score: ${heads.copying_reason}.<//>` : null}`;
}

/** The matrix of one head, `values` in rows of queries; a row or a column stands for `cell` positions. */
export const HeadMatrix = ({ name, queries, keys, cell = 1, signed, unit = "attention", ...matrix }) =>
  html`<${Matrix} name="attention" label=${`Head ${name}: queries in rows, keys in columns`} ramp=${signed ? "signed" : "amount"} companded=${!signed} high=${1} biggest=${40} rowNames=${queries.map(marked)} columnNames=${keys.map(marked)} ...${matrix}
    describe=${(r, k, x) => html`<${Token} text=${queries[r]} /> at ${r * cell} reads <${Token} text=${keys[k]} /> at ${k * cell}: ${Number.isFinite(x) ? html`${unit} <b>${three(x)}</b>` : "it may not"}`} />`;

/** The columns of one row with the largest values, by `size`. */
export const strongest = (values, columns, row, most = 8, size = Math.abs) =>
  Array.from({ length: columns }, (_, k) => k)
    .filter((k) => Number.isFinite(values[row * columns + k]))
    .sort((p, q) => size(values[row * columns + q]) - size(values[row * columns + p]))
    .slice(0, most);

/** What a row reads, the strongest keys first. */
export const KeyBars = ({
  queries,
  keys,
  cell = 1,
  row,
  columns,
  values,
  top,
  chosen,
  most = 1,
  unit = "attention",
  onKey,
}) =>
  html`<h3>What <${Token} text=${queries[row]} /> at ${row * cell} reads: ${unit}</h3>
    <${Bars} label="The keys of this query" most=${most} rows=${top.map((k) => ({ label: html`<${Token} text=${keys[k]} onClick=${onKey && (() => onKey(k))} /> ${k * cell}`, value: values[row * columns + k], selected: k === chosen, name: `row.${k}` }))} />`;

const WINDOW = 32;

/** Queries on the left, keys on the right, and a line for what each reads; those of the chosen query stand out. */
export function TokenLines({ data, rows, columns, queries, keys, query, high = 1, onQuery }) {
  const box = useRef(),
    wide = useWidth(box, 420),
    start = (n) => Math.max(0, Math.min(n - WINDOW, query - WINDOW / 2));
  const q0 = start(rows),
    k0 = rows === columns ? q0 : start(columns),
    q1 = Math.min(rows, q0 + WINDOW),
    k1 = Math.min(columns, k0 + WINDOW);
  const line = 19,
    width = Math.min(wide, 460),
    edge = Math.min(130, width * 0.32),
    y = (j) => 3 + (j + 0.5) * line;
  const draw = (pen, ink, over) => {
    const chosen = over ?? query,
      size = (r, k) => {
        const x = Math.abs(data[r * columns + k]) / (high || 1);
        return Number.isFinite(x) ? x : 0;
      };
    const lines = (r, strong) => {
      for (let k = k0; k < k1; k++) {
        const x = size(r, k);
        if (x < (strong ? 0.004 : 0.08)) continue;
        pen.globalAlpha = Math.min(1, strong ? 0.12 + 0.88 * x : 0.28 * x);
        pen.lineWidth = strong ? 1 + 4 * x : 1;
        pen.strokeStyle = data[r * columns + k] < 0 ? ink.negative : ink.positive;
        pen.beginPath();
        pen.moveTo(edge, y(r - q0));
        pen.bezierCurveTo(width / 2, y(r - q0), width / 2, y(k - k0), width - edge, y(k - k0));
        pen.stroke();
      }
    };
    for (let r = q0; r < q1; r++) if (r !== chosen) lines(r, false);
    lines(chosen, true);
    pen.globalAlpha = 1;
    pen.font = `12px ${ink.mono}`;
    const write = (text, x, j, align, colour) => {
      pen.textAlign = align;
      pen.fillStyle = colour;
      pen.fillText(fitted(pen, marked(text), edge - 10), x, y(j));
    };
    for (let r = q0; r < q1; r++) write(queries[r], edge - 6, r - q0, "right", r === chosen ? ink.accent : ink.text);
    for (let k = k0; k < k1; k++)
      write(keys[k], width - edge + 6, k - k0, "left", size(chosen, k) > 0.02 ? ink.text : ink.quiet);
  };
  const hit = (x, at) => {
    const r = q0 + Math.floor((at - 3) / line);
    return x < width / 2 && r >= q0 && r < q1 ? r : null;
  };
  return html`<figure ref=${box} class="drawn"><${Canvas} width=${width} height=${line * Math.max(q1 - q0, k1 - k0) + 6} draw=${draw} hit=${hit} onPick=${onQuery} label="Lines from each query on the left to the keys that it reads on the right"
    said=${() => (q1 - q0 < rows ? `Positions ${q0} to ${q1 - 1}, around the chosen one, of ${rows}.` : null)} /></figure>`;
}

const BITS = { kl: "bits", entropy: "bits", surprisal: "bits" };
export const STATS = {
  probability: "probability",
  rank: "rank of the next token",
  kl: "KL to the end",
  entropy: "entropy",
  surprisal: "surprisal",
};

/** blocks.3.norm_1 and blocks.3.resid_mid as "3 middle". */
export function pointName(point) {
  const [, layer, rest] = point.split(".");
  return rest === "resid_pre" ? "embedding" : rest === "resid_post" ? `layer ${layer}` : `${layer} middle`;
}

/** A rank with all of its digits. */
export const counted = (x) => (Number.isFinite(x) ? x.toLocaleString("en") : "\u2013");

/** One number of every cell, where it stands on the ramp, and the ends of the ramp's key. Ranks count from 1 here, from 0 in Python. */
export function ramped(lens, stat, vocabulary) {
  const [, points, n] = lens.stats.shape,
    of = Object.keys(STATS).indexOf(stat),
    data = lens.stats.data.subarray(of * points * n, (of + 1) * points * n);
  if (stat === "rank")
    return {
      data: data.map((x) => x + 1),
      level: (x) => 1 - Math.log(x) / Math.log(vocabulary),
      low: `rank ${counted(vocabulary)}`,
      high: "1",
    };
  const most =
    stat === "probability"
      ? 1
      : stat === "entropy"
        ? Math.log2(vocabulary)
        : largest(data.filter(Number.isFinite), 0.01);
  return { data, level: (x) => x / most, low: "0", high: stat === "probability" ? "1" : `${three(most)} bits` };
}

const CELL = 24;
/** On paper, which does not scroll, the grid is in strips below each other of this width in pixels. */
const PAPER = 640,
  MOST_STRIPS = 12;

/** The grid on a canvas as wide as its frame, which draws only the columns in sight; the last point is on top. */
export function LensGrid({ lens, ramp, stat, at, onSelect }) {
  const frame = useRef(),
    [left, setLeft] = useState(0),
    wide = useWidth(frame, 900),
    [points, n, k] = lens.ids.shape,
    small = wide < 500;
  const gutter = 78,
    cell = Math.max(small ? 56 : 74, Math.min(150, Math.floor(((printing ? PAPER : wide) - gutter) / n))),
    y = (p) => CELL * (points - p);
  useRepaint();
  const part = (left, wide) => (pen, ink, over) => {
    const first = Math.max(0, Math.floor(left / cell)),
      last = Math.min(n - 1, Math.ceil((left + wide) / cell));
    pen.font = `12px ${ink.mono}`;
    pen.textAlign = "center";
    for (let i = first; i <= last; i++) {
      const x = gutter + i * cell - left,
        write = (text, top, colour) => {
          pen.fillStyle = colour;
          pen.fillText(fitted(pen, marked(text), cell - 8), x + cell / 2, top + CELL / 2);
        };
      write(lens.tokens[i], 0, i === at[1] ? ink.accent : ink.quiet);
      for (let p = 0; p < points; p++) {
        const value = ramp.data[p * n + i],
          known = Number.isFinite(value),
          colour = colourOf(known ? ramp.level(value) : 0);
        if (known) {
          pen.fillStyle = colour.fill;
          pen.fillRect(x + 0.5, y(p) + 0.5, cell - 1, CELL - 1);
        }
        write(lens.words[lens.ids.data[(p * n + i) * k]], y(p), known ? colour.ink : ink.text);
      }
    }
    for (const [c, colour] of [
      [over, ink.text],
      [at, ink.accent],
    ])
      if (c) {
        pen.strokeStyle = colour;
        pen.lineWidth = 2;
        pen.strokeRect(gutter + c[1] * cell - left + 1, y(c[0]) + 1, cell - 2, CELL - 2);
      }
    pen.fillStyle = ink.raised;
    pen.fillRect(0, 0, gutter - 2, y(-1));
    pen.textAlign = "left";
    pen.font = "12px system-ui, sans-serif";
    lens.points.forEach((name, p) => {
      pen.fillStyle = p === at[0] ? ink.accent : ink.quiet;
      pen.fillText(fitted(pen, pointName(name), gutter - 8), 0, y(p) + CELL / 2);
    });
  };
  useEffect(() => {
    // the chosen position stays in sight
    const x = at[1] * cell,
      view = frame.current;
    if (x < view.scrollLeft || x + cell > view.scrollLeft + wide - gutter)
      view.scrollLeft = Math.max(0, x - (wide - gutter) / 2);
  }, [at[1], cell, wide]);
  const hit = (x, top) => {
    const i = Math.floor((x - gutter + left) / cell),
      p = points - Math.floor(top / CELL);
    return x > gutter && i >= 0 && i < n && p >= 0 && p < points ? [p, i] : null;
  };
  const columns = Math.max(1, Math.floor((PAPER - gutter) / cell)),
    strips = printing ? Math.min(MOST_STRIPS, Math.ceil(n / columns)) : 0;
  const strip = (_, s) => {
    const width = gutter + Math.min(columns, n - s * columns) * cell;
    return html`<${Canvas} width=${width} height=${y(-1) + 4} draw=${part(s * columns * cell, width)} label=${`The logit lens from position ${s * columns}`} />`;
  };
  return html`<figure class="drawn"><div class="strips">${Array.from({ length: strips }, strip)}</div><div ref=${frame} class="frame" tabindex="-1" onScroll=${(event) => setLeft(event.currentTarget.scrollLeft)}><div style=${{ width: `${Math.max(wide, gutter + n * cell)}px` }}>
    <${Canvas} width=${wide} height=${y(-1) + 4} draw=${part(left, wide)} hit=${hit} onPick=${onSelect} name="lens" label="The logit lens: positions in columns, points of the stream in rows" style=${{ position: "sticky", left: "0px", maxWidth: "none" }}
      onArrow=${(dx, dy) => onSelect([Math.max(0, Math.min(points - 1, at[0] - dy)), Math.max(0, Math.min(n - 1, at[1] + dx))])} /></div></div>
    <figcaption>${pointName(lens.points[at[0]])} at ${at[1]}: ${STATS[stat]} <b>${stat === "rank" ? counted(ramp.data[at[0] * n + at[1]]) : three(ramp.data[at[0] * n + at[1]])}</b> ${BITS[stat] ?? ""}</figcaption></figure>`;
}

/** The chosen cell: the likeliest tokens there, of which some may be `pinned`, and its numbers. */
export function LensCell({ lens, point, pos, pinned = [], onToken }) {
  const [points, n, k] = lens.ids.shape,
    start = (point * n + pos) * k,
    target = lens.target[pos];
  return html`<h3>${pointName(lens.points[point])}, after <${Token} text=${lens.tokens[pos]} /> at ${pos}</h3>
    <${Bars} label="The likeliest tokens there" most=${1} rows=${Array.from({ length: k }, (_, j) => {
      const id = lens.ids.data[start + j],
        p = lens.probabilities.data[start + j];
      return {
        label: html`<${Token} text=${lens.words[id]} onClick=${onToken && (() => onToken(id))} title=${onToken && "Follow this token, or no longer"} />`,
        selected: pinned.includes(id),
        value: p,
        said: percent(p),
        name: `lens.${point}.${pos}.${id}`,
      };
    })} />
    <${Facts} rows=${Object.keys(STATS).map((stat, s) => [STATS[stat], `lens.${stat}`, lens.stats.data[(s * points + point) * n + pos] + (stat === "rank" ? 1 : 0), BITS[stat], stat === "rank" ? counted : null])}>${target === null ? null : html`<span>the text goes on with <${Token} text=${lens.words[target]} /></span>`}<//>`;
}
