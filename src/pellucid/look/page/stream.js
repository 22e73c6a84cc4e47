// The page Stream: what the stream would predict at every point, tokens followed through it, who wrote a logit, lengths.

import { html, useEffect, useMemo, useRef, useState } from "./preact.js";
import { colourOf, marked, printing } from "./common.js";
import { getJson, route, useJson, useLines, useLoad } from "./api.js";
import {
  Choice,
  CopyButton,
  Num,
  Term,
  Toggle,
  Token,
  Waiting,
  percent,
  three,
  useRepaint,
  useWidth,
} from "./parts.js";
import { Bars, Lines, Scale, Waterfall, largest } from "./charts.js";
import { Canvas, Facts, HINT, Loaded, Matrix, Quiet, TokenField, fitted, partName } from "./matrix.js";
import { addDefaults } from "./state.js";

addDefaults({ stat: "probability", mid: false, point: -1, pins: [], split: [], trail: "rank" });

export const page = { name: "stream", title: "Stream", needs: "trace", Page };

const BITS = { kl: "bits", entropy: "bits", surprisal: "bits" };
const STATS = {
  probability: "probability",
  rank: "rank of the next token",
  kl: "KL to the end",
  entropy: "entropy",
  surprisal: "surprisal",
};

const finite = (x) => (Number.isFinite(x) ? x : null);

/** blocks.3.norm_1 and blocks.3.resid_mid as "3 middle". */
function pointName(point) {
  const [, layer, rest] = point.split(".");
  return rest === "resid_pre" ? "embedding" : rest === "resid_post" ? `layer ${layer}` : `${layer} middle`;
}

function Page({ view, set, model, a, pos }) {
  const shared = { view, set, model, a, pos };
  return html`${a.predicts ? html`${model.n_layers ? html`<${Lens} ...${shared} />` : null}<${Logit} ...${shared} />` : html`<section class="panel"><p>This model has no readout: its stream is not turned into a prediction, so there is no lens and no logit to split.</p></section>`}<${Norms} ...${shared} />`;
}

// The lens -----------------------------------------------------------------------------------

function Lens({ view, set, model, a, pos }) {
  const path = route(`api/t/${a.id}/stream/lens`, { mid: view.mid }),
    stat = STATS[view.stat] ? view.stat : "probability";
  const load = useLines(path, null, (_, line) => (line.arrays ? { ...line, ...line.arrays, path } : line), [path]),
    done = load.value?.of ? `, ${load.value.done} of ${load.value.of} points` : "";
  const lens = load.value?.path === path ? load.value : null,
    last = lens ? lens.points.length - 1 : 0,
    point = view.point < 0 || view.point > last ? last : view.point;
  const ramp = useMemo(() => lens && ramped(lens, stat, model.n_vocab), [lens, stat]);
  return html`<${Loaded} id="lens" title="What the stream would predict" of=${load} value=${lens} what=${`reading the stream${done}`} before=${a.code} tools=${html`<${Toggle} label="between attention and MLP" value=${view.mid} onChange=${(mid) => set({ mid, point: -1 })} />`}
      head=${html`<${Quiet}>Each cell: the likeliest token if the network ended there (the <${Term} t="logit lens" />). Rows are points of the <${Term} t="residual stream" />, from the embedding up to the last layer.<//>
      <div class="row"><span class="quiet">Colour</span><${Choice} label="Colour" value=${stat} options=${STATS} onChange=${(to) => set({ stat: to })} /><span class="push"></span>${ramp ? html`<${Scale} low=${ramp.low} high=${ramp.high} />` : null}</div>`}>
    ${() => html`<${Grid} ...${{ lens, ramp, stat }} at=${[point, pos]} onSelect=${([p, i]) => set({ point: p, pos: i })} /><${Cell} ...${{ view, set, a, lens, point, pos }} />`}
  <//>`;
}

/** A rank with all of its digits. */
const counted = (x) => (Number.isFinite(x) ? x.toLocaleString("en") : "\u2013");

/** One number of every cell, where it stands on the ramp, and the ends of the ramp's key. Ranks count from 1 here, from 0 in Python. */
function ramped(lens, stat, vocabulary) {
  const [, points, n] = lens.stats.shape,
    of = Object.keys(STATS).indexOf(stat),
    data = lens.stats.data.subarray(of * points * n, (of + 1) * points * n);
  if (stat === "rank")
    return {
      data: data.map((x) => x + 1),
      level: (x) => 1 - Math.log(x) / Math.log(vocabulary),
      low: `rank ${vocabulary.toLocaleString("en")}`,
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
function Grid({ lens, ramp, stat, at, onSelect }) {
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

/** The chosen cell: its likeliest tokens, its numbers, and the pinned tokens' way through the stream. */
function Cell({ view, set, a, lens, point, pos }) {
  const [points, n, k] = lens.ids.shape,
    start = (point * n + pos) * k,
    target = lens.target[pos],
    { trail } = view;
  const usual = [...new Set([target, ...a.top[pos].slice(0, 3).map((one) => one.id)])].filter((id) => id !== null),
    pins = view.pins.length ? view.pins : usual;
  const pin = (id) => set({ pins: pins.includes(id) ? pins.filter((one) => one !== id) : [...pins, id].slice(-6) });
  const followed = useJson(`api/t/${a.id}/stream/follow`, {
      tokens: JSON.stringify(pins.map((id) => `#${id}`)),
      pos,
      mid: view.mid,
    }),
    value = followed.value;
  const series = value?.tokens.map((token, j) => ({
    name: marked(token.text),
    x: value.points.map((_, p) => p),
    y: value.points.map((_, p) => (trail === "rank" ? value.rank[p][j] + 1 : value.probability[p][j])),
  }));
  return html`<div class="beside even"><div><h3>${pointName(lens.points[point])}, after <${Token} text=${lens.tokens[pos]} /> at ${pos}</h3>
      <${Bars} label="The likeliest tokens there" most=${1} rows=${Array.from({ length: k }, (_, j) => {
        const id = lens.ids.data[start + j],
          p = lens.probabilities.data[start + j];
        return {
          label: html`<${Token} text=${lens.words[id]} onClick=${() => pin(id)} title="Follow this token, or no longer" />`,
          selected: pins.includes(id),
          value: p,
          said: percent(p),
          name: `lens.${point}.${pos}.${id}`,
        };
      })} />
      <${Facts} rows=${Object.keys(STATS).map((stat, s) => [STATS[stat], `lens.${stat}`, finite(lens.stats.data[(s * points + point) * n + pos] + (stat === "rank" ? 1 : 0)), BITS[stat], stat === "rank" ? counted : null])}>${target === null ? null : html`<span>the text goes on with <${Token} text=${lens.words[target]} /></span>`}<//></div>
    <div><div class="head"><h3>Tokens followed through the stream</h3><${Choice} label="What is followed" value=${trail} options=${{ rank: "rank", probability: "probability" }} onChange=${(to) => set({ trail: to })} /></div>
      <${Waiting} of=${followed} what="following tokens" />
      ${
        series
          ? html`<div class="row">${value.tokens.map((token) => html`<${Token} text=${token.text} selected=${true} onClick=${() => pin(token.id)} title="No longer follow this token" />`)}</div>
        <${Lines} label="The followed tokens at every point" xName="point" yName=${trail} series=${series} logY=${trail === "rank"} mark=${point} onSelect=${(p) => set({ point: p })} />
        <p class="row figures">${value.tokens.map((token, j) => html`<span><${Token} text=${token.text} /> rank <${Num} name=${`follow.rank.${token.id}`} value=${value.rank[point] ? value.rank[point][j] + 1 : null} said=${counted} />, <${Num} name=${`follow.probability.${token.id}`} value=${value.probability[point]?.[j] ?? null} said=${percent} /></span>`)}<span class="quiet">Rank 1 is the likeliest (0 in Python).</span></p>`
          : null
      }</div></div>`;
}

// Who wrote a logit --------------------------------------------------------------------------

function Logit({ view, set, a, pos }) {
  const [first, second] = a.top[pos],
    [order, setOrder] = useState("computed"),
    token = view.target || `#${first.id}`;
  const vs = view.against || (view.target || !second ? "" : `#${second.id}`),
    asked = { token, vs, pos },
    sum = useJson(`api/t/${a.id}/stream/logit`, asked);
  const open = (depth, label) =>
    html`<button type="button" class="link" aria-expanded=${view.split[depth] === label ? "true" : "false"} onClick=${() => set({ split: view.split[depth] === label ? view.split.slice(0, depth) : [...view.split.slice(0, depth), label] })}>${partName(label)}</button>`;
  return html`<${Loaded} id="logit" title="Who wrote this logit?" of=${sum} what="splitting the logit" before=${a.code} tools=${html`<${Choice} label="Order" value=${order} options=${{ computed: "as computed", size: "largest first" }} onChange=${setOrder} />`}
      head=${html`<${Quiet}><${Term} t="direct logit attribution" />: what each part wrote, seen by the readout.<//><div class="row fields"><${TokenField} id="target" label="token" value=${view.target} placeholder=${marked(first.text)} onChange=${(target) => set({ target, split: [] })} />
      <${TokenField} id="against" label="less the logit of" value=${view.against} placeholder=${view.target ? "no other token" : second ? marked(second.text) : ""} onChange=${(against) => set({ against, split: [] })} /><span class="quiet screen">${HINT}</span></div>`}>
    ${(panel) => {
      const rows = panel.parts.map((row) => ({
        label: row.split ? open(0, row.label) : partName(row.label),
        value: row.value,
        selected: view.split[0] === row.label,
        name: `logit.${row.label}`,
      }));
      if (order === "size") rows.sort((p, q) => Math.abs(q.value) - Math.abs(p.value));
      return html`<p class="row figures"><span>${panel.vs !== null ? html`The logit of <${Token} text=${panel.token} /> less that of <${Token} text=${panel.vs} />` : html`The logit of <${Token} text=${panel.token} />`} after <${Token} text=${panel.tokens[panel.position]} /> at ${panel.position} is <${Num} name="logit.value" value=${panel.logit} unit="logits" />${panel.after_cap === null ? "" : html`, <${Num} name="logit.after_cap" value=${panel.after_cap} /> after the cap`}.</span></p>
        ${panel.note ? html`<${Quiet}>Exact, and to be read with this: ${panel.note}.<//>` : null}
        <div class="beside even"><${Waterfall} label="logit" total=${panel.total} rows=${rows} />
          <div>${view.split.length ? view.split.map((label, depth) => html`<${Split} key=${label} ...${{ a, asked, label, view, depth, open }} />`) : html`<p class="quiet screen">Choose an attention or an MLP to see which of its heads or neurons wrote, and a head to see from which token it read.</p>`}</div></div>`;
    }}
  <//>`;
}

function Split({ a, asked, label, view, depth, open }) {
  const path = route(`api/t/${a.id}/stream/logit/part`, { ...asked, label }),
    part = useLoad((signal) => getJson(path, signal).then((found) => ({ ...found, id: a.id })), [path]);
  const value = part.value?.id === a.id ? part.value : null,
    words = { head: "by head", source: "by the token that it read", neuron: "by neuron", expert: "by expert" };
  const read = label.includes(".cross.") ? a.source : a.tokens;
  const name = (row) => {
    const source = row.label.match(/ <- (\d+)$/)?.[1];
    return row.split
      ? open(depth + 1, row.label)
      : source === undefined
        ? partName(row.label)
        : html`<${Token} text=${read[source].text} special=${read[source].special} /> ${source}`;
  };
  return html`<section class="split" aria-label=${`${partName(label)} in parts`}><${Waiting} of=${part} what="splitting it" />
    ${
      value
        ? html`<div class="head"><h3>${partName(label)} ${words[value.by]}: <${Num} name=${`split.${label}`} value=${value.sum} /></h3><${CopyButton} code=${`${a.code}\n${value.code}`} /></div>
      <${Bars} label=${`Parts of ${label}`} rows=${value.parts.map((row) => ({ label: name(row), value: row.value, selected: view.split[depth + 1] === row.label, name: `split.${label}.${row.label}` }))} />`
        : null
    }</section>`;
}

// Lengths ------------------------------------------------------------------------------------

function Norms({ a, pos, set }) {
  const norms = useLoad(
      (signal) =>
        getJson(`api/t/${a.id}/stream/norms`, signal).then((panel) => ({ ...panel, ...panel.arrays, id: a.id })),
      [a.id],
    ),
    value = norms.value?.id === a.id ? norms.value : null;
  const n = value?.tokens.length,
    at = (array, j) => array.data[j * n + pos];
  const line = (name, names, array) => ({
    name,
    x: names.map(([one]) => depthOf(one)),
    y: names.map(([, j]) => at(array, j)),
  });
  return html`<${Loaded} id="norms" title="How long the vectors are" of=${norms} value=${value} what="measuring the stream" before=${a.code}>
    ${() => {
      const points = value.points.map((name, j) => [name, j]),
        writes = value.writes.map((name, j) => [name, j]),
        of = (end) => writes.filter(([name]) => name.endsWith(`.${end}`));
      const series = [
        line("stream", points, value.stream),
        line("attention", of("attn_out"), value.lengths),
        line("cross-attention", of("cross_out"), value.lengths),
        line("MLP", of("mlp_out"), value.lengths),
      ].filter((one) => one.x.length);
      return html`<${Quiet}>The length of the stream after each part, and of what each attention and MLP adds to it, at <${Token} text=${value.tokens[pos]} /> (${pos}).<//>
        <${Lines} label="Lengths by depth" xName="layer" yName="length" series=${series} />
        <${Facts} one=${true} rows=${[...writes.slice(0, 4).map(([name, j]) => [partName(name), `norm.${name}`, at(value.lengths, j)]), ["the stream at the end", "norm.end", points.length ? at(value.stream, points.length - 1) : null]]} />
        ${points.length ? html`<h3>The stream at every position</h3><${Matrix} name="norms" label="Length of the stream: points in rows, positions in columns" values=${value.stream.data} rows=${points.length} columns=${n} high=${largest(value.stream.data)} rowNames=${value.points.map(pointName)} columnNames=${value.tokens.map(marked)} most=${1100} biggest=${40} onSelect=${(_, i) => set({ pos: i })} describe=${(r, k, x) => `${pointName(value.points[r])} at ${k}: ${three(x)}`} />` : null}`;
    }}
  <//>`;
}

/** Where a point or a write stands, in layers: the embedding at 0, the end of layer l at l + 1. */
function depthOf(name) {
  const [, layer, what] = name.split(".");
  return Number(layer) + (what === "resid_pre" ? 0 : what === "resid_post" || what === "mlp_out" ? 1 : 0.5);
}
